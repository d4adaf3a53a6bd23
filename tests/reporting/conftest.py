"""A real run and a real browser for the tests of the report and the dashboard."""

import shutil
import tempfile
from functools import partial
from pathlib import Path

import pytest

from fedbnn_core.config import RunConfig
from fedbnn_core.runs.metrics import Rejection
from fedbnn_core.server.local import LocalClients
from fedbnn_core.server.opening import open_run
from tests.reporting.report.chromium import Browser, start_browser

ROUNDS = 4


@pytest.fixture(scope="session")
def real_run(tmp_path_factory):
    """Return the directory of a run that really trained, without Flower around it."""
    parent = tmp_path_factory.mktemp("runs")
    config = RunConfig.from_mapping(
        {
            "num-server-rounds": ROUNDS,
            "clients-per-round": 2,
            "local-epochs": 1,
            "client-threads": 1,
            "float-first": False,
            "output-dir": str(parent),
            "partition": "label-fraction",
            "train-limit": 400,
            "test-limit": 240,
        },
        complete=False,
    )
    run = open_run(config, 12)
    clients = LocalClients(run)

    def reply(client):
        return clients.validated(clients.train(client))

    for number in range(ROUNDS):
        with run.begin_attempt(clients.ids) as attempt:
            for client in attempt.asked:
                attempt.take(client, partial(reply, client))
            if number == 1:
                attempt.record.rejected.append(Rejection(3, "<b>late</b> & broken"))
            run.end_attempt(attempt, bytes_up=2000, bytes_down=1000)
    run.finish()
    return run.directory.path


@pytest.fixture(scope="session")
def browser():
    pytest.importorskip("selenium", reason="pip install selenium for browser tests")
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("no chromium here: run make system-deps")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = start_browser(Path(profile))
        yield Browser(driver)
        driver.quit()
