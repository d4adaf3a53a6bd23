"""Processes are found by their environment, however detached, and ended."""

import os
import subprocess
import sys
import time

from fedbnn_core.launch.processes import end_marked_processes, marked_processes

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(60)"
)


def start(code, marker):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"FEDBNN_TEST_MARK": marker},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def test_marked_processes_end_and_others_stay():
    ours = start("import time; print('ready', flush=True); time.sleep(60)", "ours")
    other = start("import time; print('ready', flush=True); time.sleep(60)", "other")
    try:
        ours.stdout.readline()
        other.stdout.readline()
        assert marked_processes("FEDBNN_TEST_MARK", "ours") == [ours.pid]
        end_marked_processes("FEDBNN_TEST_MARK", "ours")
        assert ours.wait(timeout=5) != 0
        assert marked_processes("FEDBNN_TEST_MARK", "ours") == []
        assert other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


def test_a_process_that_ignores_sigterm_is_killed():
    process = start(STUBBORN, "stubborn")
    try:
        process.stdout.readline()
        started = time.monotonic()
        end_marked_processes("FEDBNN_TEST_MARK", "stubborn")
        assert process.wait(timeout=5) == -9
        assert time.monotonic() - started < 9
    finally:
        process.kill()
        process.wait()


def test_a_prefix_of_the_marker_does_not_match():
    process = start("import time; print('ready', flush=True); time.sleep(60)", "abc")
    try:
        process.stdout.readline()
        assert marked_processes("FEDBNN_TEST_MARK", "ab") == []
    finally:
        process.kill()
        process.wait()
