"""The command `fedbnn deploy run`, with a run whose log a test writes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.errors import RunError
from fedbnn_core.flower import deployment
from fedbnn_core.flower.control import RunState
from fedbnn_core.flower.deployment import DeploymentResult


@pytest.fixture
def deploy(monkeypatch):
    """Return a function that runs the command over a log."""

    def run(*log):
        def follow(run_id, endpoint, *, on_line):
            for line in log:
                on_line(line)
            state = RunState(run_id, "finished:completed", "", "", 0, 0)
            return DeploymentResult(state, Path("/srv/runs/one"))

        monkeypatch.setattr(deployment, "submit_run", lambda *_, **__: 7)
        monkeypatch.setattr(deployment, "follow_run", follow)
        return CliRunner().invoke(app, ["deploy", "run", "--insecure"])

    return run


def test_the_servers_word_that_a_run_stopped_counts(deploy):
    result = deploy("ERROR :     Stopped: too few devices")
    assert isinstance(result.exception, RunError)
    assert "resume=/srv/runs/one" in str(result.exception)


def test_a_devices_word_does_not(deploy):
    warning = "WARNING :   Device x is excluded: Stopped: bye"
    result = deploy(warning, "INFO :      round 1/1  val 50.00 %")
    assert result.exit_code == 0, result.output
    assert "round 1/1" in result.output
    assert "Completed" in result.output
