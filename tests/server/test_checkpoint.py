"""Checkpoints: whole or absent, damage found, the last ones kept."""

import json
import multiprocessing
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedbnn_core.errors import RunError
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.server.checkpoint import Checkpoint, CheckpointFolder
from tests.tiny_run import run_to_end, write_data


def state(value):
    return {
        "w": np.full((3, 4), value, np.float32),
        "s": np.array(value, np.float32),
        "n": np.array(int(value), np.int64),
    }


def checkpoint(number, best_round=1, **changes):
    content = {
        "round": number,
        "weights": state(number),
        "previous": state(number - 1),
        "best": state(best_round),
        "best_round": best_round,
        "method": {},
        "facts": {"accuracy": 0.1 + 0.2, "none": None},
    }
    return Checkpoint(**content | changes)


def assert_same_arrays(got, wanted):
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes()


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    odd = {"w": np.array([np.float32(1e-45), -0.0, 1 / 3], np.float32)}
    saved = checkpoint(4, weights=odd, method={"m": np.arange(3.0)})
    CheckpointFolder(tmp_path / "c", keep=2).save(saved)
    loaded, damages = CheckpointFolder(tmp_path / "c", keep=2).load_latest()
    assert damages == []
    assert (loaded.round, loaded.best_round, loaded.facts) == (4, 1, saved.facts)
    for part in ("weights", "previous", "best", "method"):
        assert_same_arrays(getattr(loaded, part), getattr(saved, part))


def test_no_checkpoint_is_no_error(tmp_path):
    assert CheckpointFolder(tmp_path / "absent", keep=1).load_latest() == (None, [])
    assert CheckpointFolder(tmp_path, keep=1).load_latest() == (None, [])


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_last_ones_are_kept_with_all_their_files(tmp_path, keep):
    folder = CheckpointFolder(tmp_path, keep=keep)
    for number in range(7):
        folder.save(checkpoint(number, best_round=number // 3))
    manifests = sorted(tmp_path.glob("*.json"))
    assert [int(p.stem[6:]) for p in manifests] == list(range(7 - keep, 7))
    # Each one's weights, the weights before the first, and the best models of them.
    names = {f"weights-{n:06d}.safetensors" for n in range(6 - keep, 7)}
    names |= {f"best-{n // 3:06d}.safetensors" for n in range(7 - keep, 7)}
    assert {p.name for p in tmp_path.glob("*.safetensors")} == names


def damages():
    def cut(path):
        path.write_bytes(path.read_bytes()[:-7])

    def flip(path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return {
        "cut": cut,
        "flip": flip,
        "empty": lambda path: path.write_bytes(b""),
        "gone": lambda path: path.unlink(),
        "text": lambda path: path.write_text("[1, 2]"),
    }


def saved_folder(path):
    """Save six checkpoints with one best model, and a copy of it beside them."""
    folder = CheckpointFolder(path / "c", keep=3)
    for number in range(6):
        folder.save(checkpoint(number, method={"m": np.array([number])}))
    RunDirectory(path).write_state("best.safetensors", state(1), {"round": "1"})
    return path / "c"


def opened(path):
    best = path.parent / "best.safetensors"
    return CheckpointFolder(path, keep=3, best_copy=best)


FILES = {  # Of the newest checkpoint: the round from which the run goes on without it.
    "round-000005.json": 4,
    "weights-000005.safetensors": 4,
    "weights-000004.safetensors": 5,
    "best-000001.safetensors": 5,
    "method-000005.safetensors": 4,
}


@pytest.mark.parametrize("damage", damages())
@pytest.mark.parametrize("file", FILES)
def test_damaged_file_costs_a_round_at_most(tmp_path, file, damage):
    path = saved_folder(tmp_path)
    manifest = json.loads((path / "round-000005.json").read_text())
    named = {entry["name"] for entry in manifest["files"].values()}
    assert named | {"round-000005.json"} == FILES.keys()
    damages()[damage](path / file)
    loaded, reports = opened(path).load_latest()
    assert loaded.round == FILES[file]
    assert_same_arrays(loaded.weights, state(loaded.round))
    assert_same_arrays(loaded.best, state(1))
    assert loaded.method["m"] == [loaded.round]
    if not (file.endswith("json") and damage == "gone"):
        (report,) = reports
        assert file in report
    # What is saved next can be read again, with its best model.
    folder = opened(path)
    folder.load_latest()
    folder.save(checkpoint(6))
    loaded, reports = CheckpointFolder(path, keep=1).load_latest()
    assert (loaded.round, reports) == (6, [])
    assert_same_arrays(loaded.best, state(1))


def test_best_model_is_not_replaced_by_another_one(tmp_path):
    path = saved_folder(tmp_path)
    RunDirectory(tmp_path).write_state("best.safetensors", state(2), {"round": "2"})
    (path / "best-000001.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="all 3 checkpoints"):
        opened(path).load_latest()


@pytest.mark.parametrize("damage", damages())
@pytest.mark.parametrize("file", ["round-000005.json", "weights-000005.safetensors"])
def test_damaged_newest_is_reported_and_the_one_before_is_used(tmp_path, file, damage):
    folder = CheckpointFolder(tmp_path, keep=3)
    for number in range(6):
        folder.save(checkpoint(number))
    damages()[damage](tmp_path / file)
    folder = CheckpointFolder(tmp_path, keep=3)
    loaded, reports = folder.load_latest()
    assert loaded.round == 4
    assert_same_arrays(loaded.weights, state(4))
    if not (file.endswith("json") and damage == "gone"):
        assert len(reports) == 1
        assert "000005" in reports[0]
    # The round is done again, with another result, and is what counts then.
    folder.save(checkpoint(5, weights=state(77)))
    loaded, reports = CheckpointFolder(tmp_path, keep=3).load_latest()
    assert reports == []
    assert_same_arrays(loaded.weights, state(77))


def test_every_flipped_bit_of_a_manifest_is_noticed(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    folder.save(checkpoint(1))
    path = tmp_path / "round-000001.json"
    content = path.read_bytes()
    compact = json.dumps(json.loads(content)).encode()
    path.write_bytes(compact)  # without spaces that carry no meaning
    assert folder.load_latest()[0].round == 1
    generator = np.random.default_rng(0)
    for _ in range(300):
        spoilt = bytearray(compact)
        spoilt[generator.integers(len(spoilt))] ^= 1 << int(generator.integers(8))
        path.write_bytes(spoilt)
        try:
            loaded, _ = folder.load_latest()
        except RunError:
            continue
        # White space can be changed without changing the content.
        assert json.loads(bytes(spoilt)) == json.loads(compact)
        assert loaded.round == 1


def test_all_damaged_is_an_error(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    for number in range(3):
        folder.save(checkpoint(number))
    for path in tmp_path.glob("weights-*"):
        path.write_bytes(b"")
    with pytest.raises(RunError, match="all 3 checkpoints"):
        CheckpointFolder(tmp_path, keep=3).load_latest()


def test_full_disk_leaves_the_checkpoint_before(tmp_path):
    """A limit on the size of files stands in for a full disk."""
    program = """
import resource, signal, sys
from pathlib import Path
from tests.server.test_checkpoint import checkpoint, np
from fedbnn_core.server.checkpoint import CheckpointFolder
from fedbnn_core.errors import RunError
folder = CheckpointFolder(Path(sys.argv[1]), keep=3)
folder.save(checkpoint(1))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    folder.save(checkpoint(2, weights={"w": np.zeros(10**6, np.float32)}))
except RunError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot write" in done.stdout
    assert "fedbnn resume" in done.stdout
    loaded, reports = CheckpointFolder(tmp_path, keep=3).load_latest()
    assert (loaded.round, reports) == (1, [])


def without_times(directory):
    return [
        {k: v for k, v in line.to_json().items() if "seconds" not in k}
        for line in directory.read_metrics()
    ]


def test_server_killed_at_twenty_random_moments_ends_with_the_same_bits(tmp_path):
    data = write_data(tmp_path / "data.npz", train=64, test=40)
    # The fork server imports torch once for all processes.
    context = multiprocessing.get_context("forkserver")
    modules = ["tests.tiny_run", "torch._dynamo", "torch.utils.tensorboard"]
    context.set_forkserver_preload(modules)

    def start(folder, resumed="", die_at_sync=0):
        ready = context.Event()
        arguments = (str(data), str(folder), str(resumed), ready, die_at_sync)
        process = context.Process(target=run_to_end, args=arguments)
        process.start()
        deadline = time.monotonic() + 120
        while not ready.wait(0.01) and process.is_alive():
            assert time.monotonic() < deadline
        return process, ready.is_set()

    process, _ = start(tmp_path / "whole")
    begun = time.monotonic()
    process.join()
    assert process.exitcode == 0
    seconds = time.monotonic() - begun
    whole = RunDirectory(next((tmp_path / "whole").iterdir()))
    assert len(whole.read_metrics()) == 8

    generator = np.random.default_rng(7)
    kills, hits, ended, resumed = 0, 0, [], ""
    early, before_training = 0, 0
    while kills < 20 or resumed:
        folder = tmp_path / f"killed-{len(ended)}-{early}"
        # Half of the kills hit a file that is being written: a round syncs some 15
        # files and folders, the start about 5. The others come at any time within
        # three rounds.
        while_writing = kills % 2 == 0 and kills < 20
        latest = 6 if kills % 4 == 0 else 30
        die_at_sync = int(generator.integers(1, latest)) if while_writing else 0
        process, began = start(folder, resumed, die_at_sync)
        resumed = resumed or next(folder.iterdir())
        if kills < 20 and not while_writing:
            process.join(generator.random() * seconds * 3 / 8)
            process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            before_training += not began
            hits += len(list(resumed.rglob("*.tmp")))
            if not (resumed / "config.json").exists():
                # Killed before it had a name: nothing is lost, it starts anew.
                early, resumed = early + 1, ""
        else:
            assert process.exitcode == 0
            ended.append(RunDirectory(resumed))
            resumed = ""
    assert hits > 0
    assert before_training > 0
    for run in ended:
        wanted = whole.read_json("summary.json")
        got = run.read_json("summary.json")
        for key in ("best_sha256", "final_sha256", "best_round", "test_accuracy"):
            assert got[key] == wanted[key]
        assert without_times(run) == without_times(whole)
        assert list(run.path.rglob("*.tmp")) == []
