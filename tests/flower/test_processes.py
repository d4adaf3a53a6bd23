"""Processes are found by their environment, however detached, and ended."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedbnn_core.flower.processes import end_marked_processes, marked_processes

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


def runs(process):
    """Tell whether a process has its memory still: one that ended may be unreaped."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False


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


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into Linux's /proc")
def test_a_child_that_hides_its_mark_ends_too_and_other_children_stay():
    """As Ray's agents do, which write their title over their environment."""
    hidden = "import time; print('ready', flush=True); time.sleep(60)"
    parent = start(
        "import os, subprocess, sys, time\n"
        "os.environ.pop('FEDBNN_TEST_MARK')\n"
        f"child = subprocess.Popen([sys.executable, '-c', {hidden!r}],"
        " start_new_session=True, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True); time.sleep(60)",
        "parent",
    )
    other = start(hidden, "other")
    try:
        child = int(parent.stdout.readline())
        other.stdout.readline()
        assert runs(child)
        assert b"FEDBNN_TEST_MARK" not in Path(f"/proc/{child}/environ").read_bytes()
        found = marked_processes("FEDBNN_TEST_MARK", "parent")
        assert sorted(found) == sorted([parent.pid, child])
        end_marked_processes("FEDBNN_TEST_MARK", "parent")
        assert parent.wait(timeout=5) != 0
        assert not runs(child)
        assert other.poll() is None
    finally:
        for process in (parent, other):
            process.kill()
            process.wait()
