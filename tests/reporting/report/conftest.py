"""A real run and a real browser for the tests of the report and the dashboard."""

import shutil
import tempfile
from pathlib import Path

import pytest

from client_app.local_round import run_local_round
from fedbnn_core.config import RunConfig
from fedbnn_core.messages import TrainOrder
from fedbnn_core.server.record import RoundTraffic
from fedbnn_core.server.reply_store import ReplyStore, StoredReply
from fedbnn_core.server.run import ServerRun
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
            "output-dir": str(parent),
            "partition": "label-fraction",
            "train-limit": 400,
            "test-limit": 240,
        },
        complete=False,
    )
    run = ServerRun(config, num_partitions=12)
    for number in range(ROUNDS):
        traffic = RoundTraffic(bytes_up=2000, bytes_down=1000, train_seconds=0.5)
        if number == 1:
            traffic.rejected.append({"client": 3, "reason": "<b>late</b> & broken"})
        with ReplyStore() as store:
            for partition in run.sample(range(12)):
                update, count = run_local_round(
                    config.to_mapping(),
                    {"partition-id": partition, "num-partitions": 12},
                    TrainOrder(number, ROUNDS, str(run.partition_file)),
                    run.broadcast,
                )
                traffic.losses[partition] = update.loss
                traffic.layer_metrics[partition] = update.layer_metrics
                arrays = update.arrays | update.rotations
                store.add(StoredReply(partition, count, arrays))
            run.finish_round(store.in_partition_order(), traffic)
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
