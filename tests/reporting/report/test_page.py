"""The report in a real browser."""

import json

import pytest

from fedbnn_core.reporting.report import write_report
from fedbnn_core.runs.directory import RunDirectory
from tests.reporting.conftest import ROUNDS
from tests.reporting.report.runs import write_run

CHARTS = [
    *("accuracy", "loss", "train-loss", "bytes", "seconds", "lr", "clock"),
    *("one-minus-alpha", "alpha-beta", "alpha-one-minus-beta", "lambda", "cos-phi"),
]

POINTS = """
const lines = document.querySelectorAll(`[data-chart="${arguments[0]}"] polyline`);
return [...lines].map((line) => line.points.length);
"""


@pytest.fixture(scope="module")
def report(real_run, tmp_path_factory):
    return write_report([real_run], tmp_path_factory.mktemp("report") / "r.html")


def hover(browser, chart, share):
    """Move the pointer over a chart and return the tooltip's words."""
    from selenium.webdriver.common.action_chains import ActionChains

    plot = browser.driver.find_element("css selector", f'[data-chart="{chart}"] .plot')
    browser.run(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot
    )
    size = plot.size
    ActionChains(browser.driver).move_to_element_with_offset(
        plot, int(size["width"] * (share - 0.5)), 0
    ).perform()
    browser.wait("return !arguments[0].querySelector('.tooltip').hidden", plot)
    return plot.find_element("css selector", ".tooltip").text


@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_without_a_complaint_or_a_request(browser, report, dark):
    browser.open(report.as_uri(), dark=dark)
    browser.wait("return document.querySelectorAll('polyline').length > 0")
    assert browser.complaints() == []
    asked = [url for url in browser.requests() if not url.startswith("data:")]
    assert asked == [report.as_uri()]


def test_charts_have_as_many_points_as_the_run_has_rounds(browser, report):
    browser.open(report.as_uri())
    for chart in CHARTS:
        counts = browser.wait(POINTS, chart)
        assert counts, chart
        assert set(counts) == {ROUNDS}, chart
    assert len(browser.run(POINTS, "lambda")) == 4
    assert len(browser.run(POINTS, "accuracy")) == 3


def test_hover_shows_the_value_of_the_round(browser, report, real_run):
    lines = RunDirectory.open(real_run).read_metrics()
    browser.open(report.as_uri())
    browser.wait(POINTS, "lambda")
    # The last round is at the right end, the first at the left.
    last = hover(browser, "accuracy", 0.985)
    assert f"Round {ROUNDS}" in last
    assert f"{100 * lines[-1].val_accuracy:.2f} %" in last
    assert f"{100 * lines[-1].scores['val_accuracy_weights']:.2f} %" in last
    first = hover(browser, "alpha-beta", 0.11)
    layer = lines[0].layers["convs.2"]
    assert "Round 1" in first
    assert f"convs.2\n{layer['alpha'] * layer['beta']:.4f}" in first


def test_keys_move_along_a_chart_and_are_spoken(browser, report, real_run):
    from selenium.webdriver.common.keys import Keys

    browser.open(report.as_uri())
    browser.wait(POINTS, "lambda")
    plot = browser.driver.find_element("css selector", '[data-chart="lambda"] .plot')
    plot.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    spoken = plot.get_attribute("aria-valuetext")
    value = RunDirectory.open(real_run).read_metrics()[1].layers["convs.3"]["lambda"]
    assert spoken.startswith("Round 2: ")
    assert f"convs.3 {value:.4f}" in spoken
    assert plot.get_attribute("aria-valuenow") == "2"


def test_headline_config_and_rejected_replies_are_there(browser, report, real_run):
    summary = RunDirectory.open(real_run).read_json("summary.json")
    browser.open(report.as_uri())
    words = browser.wait("return document.body.innerText")
    assert f"{100 * summary['test_accuracy']:.2f} %" in words
    # Markup in a client's message stays text.
    assert "<b>late</b> & broken" in words
    assert "label-fraction" in words
    assert browser.run("return document.querySelectorAll('.wrongs img').length") > 0
    assert browser.run(
        "return [...document.images].every((i) => i.alt && i.naturalWidth > 0)"
    )


def test_values_are_there_as_a_table(browser, report, real_run):
    browser.open(report.as_uri())
    browser.wait(POINTS, "accuracy")
    rows = browser.run(
        """
        const details = document.querySelector('[data-chart="accuracy"] details');
        details.open = true;
        details.dispatchEvent(new Event("toggle"));
        return [...details.querySelectorAll("tbody tr")].map((row) => row.innerText);
        """
    )
    lines = RunDirectory.open(real_run).read_metrics()
    assert len(rows) == ROUNDS
    assert f"{100 * lines[2].val_accuracy:.2f} %" in rows[2]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_no_element_is_wider_than_the_screen_and_text_has_contrast(
    browser, report, width, dark
):
    browser.open(report.as_uri(), width=width, dark=dark)
    browser.wait(POINTS, "lambda")
    wide = browser.run("return document.documentElement.scrollWidth")
    assert wide <= width
    # WCAG AA: 4.5 for the words of the page, 3 for lines, on their own background.
    ratios = browser.run(CONTRAST)
    assert min(ratios["words"]) >= 4.5
    assert min(ratios["lines"]) >= 3.0


CONTRAST = """
const canvas = document.createElement("canvas");
const pen = canvas.getContext("2d", {willReadFrequently: true});
const parse = (color) => {
  pen.fillStyle = color;
  pen.fillRect(0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ratio = (a, b) => {
  const [high, low] = [light(parse(a)), light(parse(b))].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const ground = (node) => {
  for (let n = node; n; n = n.parentElement) {
    const color = getComputedStyle(n).backgroundColor;
    if (color !== "rgba(0, 0, 0, 0)") return color;
  }
  return "white";
};
const ink = (node) => getComputedStyle(node)[node.closest("svg") ? "fill" : "color"];
const kinds = "p, h1, h2, h3, .label, .value, .detail, a, td, th, li, summary, text";
const words = [...document.querySelectorAll(kinds)]
  .filter((node) => node.textContent.trim() && node.checkVisibility())
  .map((node) => ratio(ink(node), ground(node)));
const lines = [...document.querySelectorAll("polyline")]
  .map((node) => ratio(getComputedStyle(node).stroke, ground(node)));
return {words, lines};
"""


def test_the_theme_can_be_switched(browser, report):
    browser.open(report.as_uri())
    before = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.run("document.getElementById('theme').click()")
    after = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert before != after


def test_a_baseline_that_ran_longer_is_drawn_in_full(browser, tmp_path):
    paths = [
        write_run(tmp_path / "ours", rounds=5),
        write_run(tmp_path / "base", rounds=8, method="fedavg"),
    ]
    browser.open(write_report(paths, tmp_path / "r.html").as_uri())
    assert browser.wait(POINTS, "accuracy") == [5, 5, 5, 8]
    assert browser.complaints() == []


def test_both_directions_are_shown_as_travelled_and_as_papers_count(browser, tmp_path):
    """FedMUD's downlink: W0 travels, although papers count the factors only."""
    path = write_run(tmp_path / "fedmud", rounds=3, method="fedmud")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").open()]
    for line in lines:
        line |= {"bytes_up": 50_000, "bytes_up_nominal": 48_000}
        line |= {"bytes_down": 1_570_000, "bytes_down_nominal": 48_040}
        line |= {"bits_up": 1.02, "bits_down": 32.1}
    (path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    page = write_report(
        [path, write_run(tmp_path / "b", rounds=3)], tmp_path / "r.html"
    )
    browser.open(page.as_uri())
    # Up is close to nominal, so it has no line of its own.
    assert browser.wait(POINTS, "bytes") == [3, 3, 3]
    words = browser.run("return document.body.innerText")
    assert "server to clients, as papers count" in words
    assert "clients to server, as papers count" not in words
    tiles = browser.run(
        "return [...document.querySelectorAll('.tile')].map((one) => one.innerText)"
    )
    sent = [tile.split("\n")[-2:] for tile in tiles if "the clients" in tile.lower()]
    assert sent == [
        ["150 kB", "144 kB nominal · 1.02 bits per weight"],
        ["4.71 MB", "144 kB nominal · 32.10 bits per weight"],
    ]
    row = browser.run("return document.querySelector('#result tbody tr').innerText")
    assert "150 kB, 144 kB nominal, 1.02 bits per weight\t4.71 MB" in row


def test_an_unknown_binary_method_is_not_called_float(browser, tmp_path):
    path = write_run(tmp_path / "fifth", rounds=3, method="fedavg")
    description = json.loads((path / "config.json").read_text())
    description["config"]["method"] = "fifth"
    description |= {"method_title": "Fifth", "binary": True}
    (path / "config.json").write_text(json.dumps(description))
    browser.open(write_report([path]).as_uri())
    words = browser.wait("return document.body.innerText").lower()
    assert "test accuracy, 1-bit model" in words
    assert "float model" not in words
    # It trains with a surrogate gradient but mixes no weights.
    assert browser.wait(POINTS, "clock") == [3, 3]
    assert "sign(w̃)" not in words


def test_a_run_that_has_not_finished_a_round_opens(browser, tmp_path):
    path = write_run(tmp_path / "new", rounds=0, planned=10, finished=False)
    browser.open(write_report([path]).as_uri())
    assert "0 of 10 rounds" in browser.wait("return document.body.innerText")
    assert browser.complaints() == []


def test_nothing_in_the_data_can_end_the_script(browser, tmp_path):
    path = write_run(tmp_path / "evil", rounds=2)
    description = json.loads((path / "config.json").read_text())
    description["config"]["run-name"] = "</script><script>x=1"
    description["class_names"][0] = "</script><img src=x onerror=alert(1)>"
    (path / "config.json").write_text(json.dumps(description))
    browser.open(write_report([path]).as_uri())
    assert browser.wait(POINTS, "accuracy") == [2, 2, 2]
    assert browser.complaints() == []


EVIL = "</script><img src=x onerror=alert(1)>\u2028"


def test_names_from_outside_stay_text_in_the_page(tmp_path):
    path = write_run(tmp_path / "evil", rounds=2)
    description = json.loads((path / "config.json").read_text())
    description["class_names"][0] = EVIL
    for key in ("run-name", "dataset"):
        description["config"][key] = EVIL
    (path / "config.json").write_text(json.dumps(description))
    page = write_report([path]).read_text(encoding="utf-8")
    # Markup only as text of the title; in the data as \\u003c.
    assert "<img" not in page
    assert page.count("</script>") == page.count("<script")
    content = page.partition('id="data"')[2].partition(">")[2].partition("<")[0]
    assert json.loads(content)["runs"][0]["config"]["run-name"] == EVIL


def test_a_long_deep_run_stays_small_and_draws_all_points(browser, tmp_path):
    path = write_run(tmp_path / "big", rounds=1500, layers=24, clients=100)
    page = write_report([path])
    assert page.stat().st_size < 3_000_000
    browser.open(page.as_uri())
    assert browser.wait(POINTS, "lambda") == [1500] * 24
    # 24 values fit into the tooltip, under names without what all have in common.
    last = hover(browser, "lambda", 0.985)
    assert "Round 1,500" in last
    assert "3.blocks.5" in last
    assert browser.run(
        """
        const tip = document.querySelector('[data-chart="lambda"] .tooltip');
        const box = tip.getBoundingClientRect();
        return [...tip.querySelectorAll("span")].every((span) => {
          const inner = span.getBoundingClientRect();
          return inner.left >= box.left && inner.right <= box.right;
        }) && box.left >= 0 && box.right <= innerWidth;
        """
    )
