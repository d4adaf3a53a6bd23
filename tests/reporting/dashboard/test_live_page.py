"""The dashboard's page in a real browser, while a run goes on."""

import json
import time

from tests.reporting.dashboard.conftest import serving
from tests.reporting.report.runs import invented_lines, invented_summary, write_run

POINTS = """
const lines = document.querySelectorAll(`[data-chart="${arguments[0]}"] polyline`);
return [...lines].map((line) => line.points.length);
"""


def append(path, line):
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_a_new_round_is_shown_within_three_seconds(browser, tmp_path):
    lines = invented_lines(rounds=6, layers=4, clients=20, planned=9)
    path = write_run(tmp_path / "run", rounds=3, planned=9, finished=False)
    with serving([path]) as address:
        browser.open(address)
        browser.wait("return document.body.innerText.includes('3 of 9 rounds done')")
        assert browser.wait(POINTS, "accuracy") == [3, 3, 3]
        delays = []
        for number in (4, 5, 6):
            append(path, lines[number - 1])
            started = time.monotonic()
            browser.wait(
                "return document.querySelectorAll("
                "'[data-chart=\"lambda\"] polyline')[3].points.length == arguments[0]",
                number,
            )
            delays.append(time.monotonic() - started)
        assert max(delays) < 3.0
        assert browser.run(POINTS, "accuracy") == [6, 6, 6]
        now = {"round": 7, "clients": 10, "done": 4, "rejected": 1}
        (path / "progress.json").write_text(json.dumps(now))
        browser.wait(
            "return document.body.innerText.includes("
            "'round 7: 4 of 10 clients done, 1 rejected')"
        )
        (path / "summary.json").write_text(json.dumps(invented_summary(lines)))
        browser.wait("return document.body.innerText.includes('The run has finished')")
        assert "81.25 %" in browser.run("return document.body.innerText")
        assert browser.complaints() == []
        elsewhere = [
            url
            for url in browser.requests()
            if not url.startswith((address, "data:", "blob:"))
        ]
        assert elsewhere == []


def test_the_first_round_and_a_rewound_run_appear(browser, tmp_path):
    lines = invented_lines(rounds=4, layers=2, clients=20, planned=9)
    path = write_run(tmp_path / "run", rounds=0, planned=9, finished=False)
    with serving([path]) as address:
        browser.open(address)
        browser.wait("return document.body.innerText.includes('0 of 9 rounds done')")
        for line in lines:
            append(path, line)
        browser.wait(
            "return document.querySelectorAll("
            "'[data-chart=\"lambda\"] polyline').length == 2"
        )
        fresh = path / "fresh"
        fresh.write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
        fresh.replace(path / "metrics.jsonl")
        browser.wait("return document.body.innerText.includes('2 of 9 rounds done')")
        assert browser.run(POINTS, "lambda") == [2, 2]


def test_a_dashboard_that_ended_is_said_and_the_page_stays(browser, tmp_path):
    path = write_run(tmp_path / "run", rounds=2, planned=9, finished=False)
    with serving([path]) as address:
        browser.open(address)
        browser.wait(POINTS, "accuracy")
    browser.wait(
        "return document.body.innerText.includes('No answer from the dashboard')"
    )
    assert browser.run(POINTS, "accuracy") == [2, 2, 2]
