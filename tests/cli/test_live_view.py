import io
import json

import pytest
from rich.console import Console

from fedbnn_core.cli.live_view import RunView, live_panel, sparkline
from fedbnn_core.runs.metrics import RoundMetrics
from tests.reporting.report.runs import invented_lines


def drawn(renderable, width=100):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([0.0, 0.5, 1.0], 10, "▁▅█"),
        ([0.3], 10, "▁"),
        ([], 10, ""),
        ([0.2, 0.2], 10, "▁▁"),
        # Means of pairs: 0, 4, 8.
        ([0, 0, 3, 5, 7, 9], 3, "▁▅█"),
    ],
)
def test_sparkline(values, width, expected):
    assert sparkline(values, width) == expected


def test_the_panel_says_what_a_person_wants_to_know():
    lines = invented_lines(rounds=3, layers=1, clients=20, planned=12)
    scores = (0.5, 0.75, 0.625)
    for line, score in zip(lines, scores, strict=True):
        line["val_accuracy"] = score
        line["seconds"] = {"train": 9.0, "aggregate": 0.5, "evaluate": 0.5}
        line["rejected"] = []
    lines[0]["rejected"] = [{"client": 1, "reason": "late"}]
    now = {"round": 4, "clients": 10, "done": 6, "rejected": 2}
    text = drawn(live_panel([RoundMetrics.from_json(x) for x in lines], now, 12))
    assert "3 of 12 done" in text
    assert "1:30 left" in text
    assert "6 of 10 clients done" in text
    assert "now 62.50 %   best 75.00 % in round 2" in text
    assert "▁█▅" in text
    assert "47.7 MB up   47.2 MB down" in text
    assert text.split("Rejected replies")[1].split()[0] == "3"


def test_the_panel_of_a_run_without_rounds_draws():
    assert "0 of 9 done" in drawn(live_panel([], None, 9))
    now = {"round": 1, "clients": 5, "done": 5, "rejected": 0}
    text = drawn(live_panel([], now, 9))
    assert "5 of 5 clients done, aggregating" in text


def test_without_a_terminal_rounds_are_plain_lines():
    console = Console(file=io.StringIO(), width=40)
    log = (
        "\x1b[92mINFO \x1b[0m:      Run directory: /somewhere/runs/one\n"
        "\x1b[92mINFO \x1b[0m:      round 1/6  val 35.70 %  (best 35.70 % in round 1)\n"
        "\x1b[92mINFO \x1b[0m:      something else\n"
        "\x1b[93mWARNING \x1b[0m:   Client 3: reply rejected: late\n"
    )
    with RunView(console) as view:
        for line in log.splitlines():
            view.line(line)
    assert console.file.getvalue() == (
        "round 1/6  val 35.70 %  (best 35.70 % in round 1)\n"
        "WARNING :   Client 3: reply rejected: late\n"
    )
    assert str(view.directory) == "/somewhere/runs/one"
    assert len(view.tail) == 4


def test_a_terminal_gets_the_live_view_of_the_directory(tmp_path):
    lines = invented_lines(rounds=2, layers=1, clients=20, planned=5)
    config = {"config": {"num-server-rounds": 5}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with RunView(console) as view:
        view.line(f"INFO :      Run directory: {tmp_path}")
        view.line("INFO :      round 1/5  val 1 %")
    text = console.file.getvalue()
    assert "2 of 5 done" in text
    assert "round 1/5" not in text
