"""The process that forks for each message, with real sockets and real copies."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedbnn_core.flower import handover
from fedbnn_core.flower.handover import hand_over
from tests.deploy.site import wait_until
from tests.tiny_run import tiny_config, write_data

# Stands for flwr-clientapp: does what its first argument says.
HANDLER = """
import os, signal, sys
from client_app import local_round, warm

def handle():
    what, path = sys.argv[1:3]
    print("handled", what, flush=True)
    with open(path, "a") as file:
        file.write(f"{what} {os.getpid()} {getattr(warm, 'left', '-')}\\n")
    warm.left = what
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise":
        raise ValueError("broken")
    if what == "load":
        local_round.on_load({"key": [["seed", 1]], "own": "", "task": "",
                             "num_partitions": 0})

def load(wanted):
    if wanted["key"] != [["seed", 1]]:
        raise ValueError(wanted)
    warm.left = "loaded"
    open(os.path.join(sys.argv[1], "loaded"), "w").close()

local_round.load = load
idle = float(sys.argv[2])
with warm._listener(sys.argv[1]) as listener:
    print("ready", flush=True)
    warm.serve(listener, handle, idle_seconds=idle)
"""


@pytest.fixture
def waiting(tmp_path):
    """Start the process in a folder whose name is too long for a socket."""
    folder = tmp_path / ("long-" * 20)
    folder.mkdir()
    processes = []

    def start(idle=600.0):
        process = subprocess.Popen(
            [sys.executable, "-c", HANDLER, str(folder), str(idle)],
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process, folder

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def lines_of(path, count):
    def there():
        lines = path.read_text().splitlines() if path.is_file() else []
        return lines if len(lines) >= count else None

    return [line.split() for line in wait_until(there, 20, "line")]


def test_each_message_has_its_own_copy_and_leaves_nothing(waiting, tmp_path):
    process, folder = waiting()
    path = tmp_path / "log"
    for count, what in enumerate(("die", "raise", "plain", "plain"), 1):
        assert hand_over(str(folder), [what, str(path)])
        lines_of(path, count)
    lines = lines_of(path, 4)
    assert [line[0] for line in lines] == ["die", "raise", "plain", "plain"]
    assert len({line[1] for line in lines} | {str(process.pid)}) == 5
    # What one copy had set, no other one sees.
    assert {line[2] for line in lines} == {"-"}
    assert process.poll() is None


def test_what_a_message_needed_is_loaded_for_the_next_one(waiting, tmp_path):
    _, folder = waiting()
    path = tmp_path / "log"
    assert hand_over(str(folder), ["load", str(path)])
    wait_until((folder / "loaded").is_file, 20, "loading")
    assert hand_over(str(folder), ["plain", str(path)])
    assert lines_of(path, 2)[1][2] == "loaded"


def test_data_are_given_back_after_an_idle_while(waiting, tmp_path):
    process, folder = waiting(idle=0.3)
    path = tmp_path / "log"
    assert hand_over(str(folder), ["plain", str(path)])
    lines_of(path, 1)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)  # Nothing was loaded, so nothing is given back.
    assert hand_over(str(folder), ["load", str(path)])
    assert process.wait(20) == 0


def test_a_copy_trains_with_threads_after_data_were_loaded(tmp_path):
    """Threads of torch that were started before a fork would hang the copy."""
    data = write_data(tmp_path / "d.npz", train=64, test=40)
    config = tiny_config(data, tmp_path, client_threads=2, num_server_rounds=1)
    code = f"""
import json, os, sys, threading
from client_app import local_round, warm
from fedbnn_core.messages import TrainOrder
config = {config.to_mapping()!r}
key = tuple(sorted(config.items()))
wanted = json.dumps({{"key": key, "own": "", "task": "", "num_partitions": 4}})
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, wanted.encode() + b"\\n")
    os._exit(0)
os.close(writer)
assert warm._end(reader, child)
assert threading.active_count() == 1
child = os.fork()
if child == 0:
    _, method, _, _ = local_round._loaded(key, "", "")
    order = TrainOrder(0, 1, partition_file="", num_partitions=4)
    broadcast = method.template.broadcast
    local_round.run_local_round(config, {{"partition-id": 1}}, order, broadcast)
    assert local_round._loaded.cache_info().misses == 1
    assert local_round._computed_partition.cache_info().misses == 1
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120)
    assert done.returncode == 7


def test_output_goes_where_the_launcher_s_goes_and_kill_9_spares_the_copy(
    waiting, tmp_path
):
    process, folder = waiting()
    launcher = [sys.executable, "-IS", handover.__file__, str(folder), "/bin/false"]
    told = subprocess.run(
        [*launcher, "plain", str(tmp_path / "log")], capture_output=True, text=True
    )
    assert (told.returncode, told.stdout) == (0, "handled plain\n")
    process.send_signal(signal.SIGKILL)
    process.wait()
    # Nobody waits any more: it becomes the ordinary command, here one that echoes.
    launcher[-1] = "/bin/echo"
    told = subprocess.run([*launcher, "--token", "x y"], capture_output=True, text=True)
    assert told.stdout == "--token x y\n"


def test_a_process_that_ends_without_an_answer_did_not_take_the_message(tmp_path):
    from client_app import warm

    with warm._listener(str(tmp_path)) as listener:

        def refuse():
            connection, _ = listener.accept()
            connection.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        began = time.monotonic()
        assert not hand_over(str(tmp_path), ["plain"])
        assert time.monotonic() - began < 5
        thread.join()
    assert Path.cwd() == Path(os.getcwd())
