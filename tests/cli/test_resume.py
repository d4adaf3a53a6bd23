"""`fedbnn resume` of a run that was interrupted after its last round."""

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedbnn_core.cli import app
from fedbnn_core.cli.live_view import RunView, live_panel
from tests.tiny_run import TinyFederation, tiny_config, write_data


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    data = write_data(folder / "data.npz")
    federation = TinyFederation(tiny_config(data, folder / "runs", num_server_rounds=1))
    federation.to_end()
    return federation.run.directory


def test_missing_model_and_report_are_made(finished):
    model = finished.path / "model.fbnn"
    content = model.read_bytes()
    model.unlink()
    result = CliRunner().invoke(app, ["resume", str(finished.path)])
    assert result.exit_code == 0, result.output
    assert "Made what was missing: model.fbnn, report.html" in result.output
    assert model.read_bytes() == content
    assert (finished.path / "report.html").stat().st_size > 10_000
    again = CliRunner().invoke(app, ["resume", str(finished.path)])
    assert "nothing to resume" in again.output


def test_summary_tells_the_size_of_the_file(finished):
    summary = json.loads((finished.path / "summary.json").read_text())
    assert summary["one_bit_bytes"] == (finished.path / "model.fbnn").stat().st_size


def test_what_follows_the_last_round_is_told():
    console = Console(width=120, record=True, force_terminal=False)
    view = RunView(console)
    view.line("INFO :      round 1/2  val 10.00 %  1.0 s  0:01 left")
    assert "All rounds are done" not in console.export_text(clear=False)
    view.line("INFO :      round 2/2  val 10.00 %  1.0 s  0:00 left")
    assert "All rounds are done" in console.export_text()


def test_live_view_tells_it_too(finished):
    rounds = finished.read_metrics()
    for total, told in ((1, True), (2, False)):
        console = Console(width=120, record=True)
        console.print(live_panel(rounds, None, total))
        assert ("All rounds are done" in console.export_text()) is told


def test_cause_is_printed_once():
    console = Console(width=120, record=True, force_terminal=False)
    view = RunView(console)
    view.line("ERROR :     Stopped: too few clients")
    view.line("ERROR :     ServerApp thread raised an exception: too few clients")
    assert view.cause == "too few clients"
    assert "too few clients" not in console.export_text()
