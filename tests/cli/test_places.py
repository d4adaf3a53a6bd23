"""Places that cannot be written end in one line that names them, not in a trace."""

import signal
import sys

import pytest

from fedbnn_core.cli import main
from tests.reporting.report.runs import write_run

# Nobody can make a file there, not even root.
NOWHERE = "/proc/fedbnn-nowhere"

COMMANDS = {
    "compare plot": ["compare", "{run}", "{run}", "--plot", "/proc/plot.png"],
    "compare csv": ["compare", "{run}", "{run}", "--csv", "/proc/all.csv"],
    "data get": ["data", "get", "svhn", "--data-dir", NOWHERE],
    "device": ["device", "--insecure", "--server", "[::1]:9", "--state", NOWHERE],
    "fleet init": ["fleet", "init", "--host", "h", "--fleet", NOWHERE],
    "partition": ["partition", "--save", "/proc/parts.npz", "--clients", "5"],
    "partition picture": ["partition", "--picture", "/proc/p.png", "--clients", "5"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_one_line_names_the_place(command, tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "run", rounds=2)
    monkeypatch.chdir(tmp_path)
    arguments = [a.format(run=tmp_path / "run") for a in COMMANDS[command]]
    monkeypatch.setattr(signal, "signal", lambda number, action: None)
    monkeypatch.setattr(sys, "argv", ["fedbnn", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr()
    assert end.value.code == 1
    last = told.err.strip().splitlines()[-1]
    assert "/proc/" in last
    assert "Traceback" not in told.err
