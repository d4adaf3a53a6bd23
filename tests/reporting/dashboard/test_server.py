import http.client
import json
from urllib.parse import urlsplit

import pytest

from tests.reporting.dashboard.conftest import serving
from tests.reporting.report.runs import invented_lines, invented_summary, write_run


def request(address, path, *, method="GET", body=None, host=None):
    """Send a request exactly as written; return status and body."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    own = urlsplit(address).netloc
    connection.putheader("Host", own if host is None else host)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    parent = tmp_path_factory.mktemp("served")
    (parent / "secret.txt").write_text("secret")
    path = write_run(parent / "run", rounds=3)
    (path / "notes.txt").write_text("secret")
    (path / "report.html").symlink_to(parent / "secret.txt")
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / "summary.json").write_text("secret")
    with serving([path]) as address:
        yield path, address


@pytest.mark.parametrize(
    "target",
    [
        "../secret.txt",
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "%2e%2e%2fsecret.txt",
        "..%5csecret.txt",
        "....//secret.txt",
        "%252e%252e%252fsecret.txt",
        "checkpoints/summary.json",
        "checkpoints%2fsummary.json",
        "./../../secret.txt",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "config.json%00",
        "config.json/",
        "notes.txt",
        "report.html",
        "tensorboard",
        ".",
        "",
    ],
)
def test_nothing_but_the_runs_own_files_can_be_read(served, target):
    _, address = served
    status, content = request(address, f"/files/{target}")
    assert status == 404
    assert b"secret" not in content


@pytest.mark.parametrize(
    "path",
    ["/../secret.txt", "/..%2f..%2fetc/passwd", "/docs", "/openapi.json", "/demo"],
)
def test_unknown_addresses_are_404(served, path):
    assert request(served[1], path)[0] == 404


def test_known_files_come_as_they_are(served):
    path, address = served
    for name in ("config.json", "metrics.jsonl", "summary.json", "partition.npz"):
        assert request(address, f"/files/{name}") == (200, (path / name).read_bytes())


def test_a_foreign_host_name_is_refused(served):
    # What a page elsewhere sends whose name was made to resolve to this machine.
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", ""):
        assert request(served[1], "/api/run", host=host)[0] == 400
    for host in ("localhost:80", "LOCALHOST", "127.0.0.1", "[::1]:8050"):
        assert request(served[1], "/api/run", host=host)[0] == 200


def test_only_reading_is_possible(served):
    for method in ("POST", "PUT", "DELETE"):
        assert request(served[1], "/files/config.json", method=method)[0] == 405


def test_news_are_the_rounds_that_are_missing(tmp_path):
    path = write_run(tmp_path / "run", rounds=3, planned=6, finished=False)
    with serving([path]) as address:
        whole = json.loads(request(address, "/api/run")[1])
        generation = whole["generation"]
        assert whole["runs"][0]["rounds"]["round"] == [1, 2, 3]

        def news(after, generation=generation):
            query = f"/api/rounds?after={after}&generation={generation}"
            return json.loads(request(address, query)[1])

        assert news(3)["rounds"]["round"] == []
        line = invented_lines(4, 4, 20, 6)[-1]
        with (path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        now = {"round": 5, "clients": 10, "done": 2, "rejected": 0}
        (path / "progress.json").write_text(json.dumps(now))
        answer = news(3)
        assert answer["rounds"]["round"] == [4]
        assert answer["now"] == now
        assert answer["finished"] is False
        assert answer["stale"] is False
        assert news(3, generation=0)["stale"] is True
        (path / "summary.json").write_text(json.dumps(invented_summary([line])))
        assert news(4)["finished"] is True
        whole = json.loads(request(address, "/api/run")[1])
        assert whole["runs"][0]["summary"]["test_accuracy"] == 0.8125
        assert whole["runs"][0]["rounds"]["round"] == [1, 2, 3, 4]


@pytest.mark.parametrize("query", ["after=x", "after=-1", "generation=x"])
def test_bad_questions_are_refused(served, query):
    assert request(served[1], f"/api/rounds?{query}")[0] == 422
