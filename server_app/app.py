"""The Flower ServerApp: read the config, open the run, start the strategy."""

import contextlib
import logging
from logging import ERROR, INFO

from flwr.app import Context
from flwr.common.logger import FLOWER_LOGGER, log
from flwr.serverapp import Grid, ServerApp

import fedbnn_core
from fedbnn_core.config import RunConfig
from fedbnn_core.errors import FedBNNError, RunError
from fedbnn_core.fleet.own_data import DataTask
from fedbnn_core.runs.dataset import load_run_dataset
from fedbnn_core.runs.log import stopped_line
from fedbnn_core.server.opening import open_run, stored_config
from server_app.delivery import deliver_model
from server_app.roster import Roster
from server_app.strategy import FedBNNStrategy, to_record

__all__ = ["app"]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the configured model in federation and leave a run directory."""
    _join_logs()
    try:
        _run(grid, context)
    except FedBNNError as error:
        # Flower adds a trace to the log and marks the run as failed.
        log(ERROR, "%s", stopped_line(error))
        raise


def _join_logs() -> None:
    """Let what the core logs appear in Flower's log."""
    core = logging.getLogger(fedbnn_core.__name__)
    core.setLevel(INFO)
    core.propagate = False
    core.handlers = list(FLOWER_LOGGER.handlers)


def _run(grid: Grid, context: Context) -> None:
    config = stored_config(RunConfig.from_mapping(context.run_config))
    dataset = load_run_dataset(config)
    task = DataTask.of(
        dataset,
        min_examples=config.min_partition_size,
        private=config.privacy != "none",
    )
    roster = Roster(config, task.to_json())
    roster.update(grid)
    clients = len(roster.node_of_partition)
    if clients < config.clients_per_round and not config.num_partitions:
        log(
            INFO,
            "%d clients are connected, %d per round are configured: training with %d. "
            "For a simulation of 100 clients: flwr run . --stream "
            "--federation-config 'num-supernodes=100 client-resources-num-cpus=1'",
            clients,
            config.clients_per_round,
            clients,
        )
    run = open_run(config, roster.num_partitions, dataset=dataset)
    strategy = FedBNNStrategy(run, roster)
    try:
        strategy.start(grid, to_record(run.messages.order()), config.num_server_rounds)
    except RunError as error:
        # A full disk may refuse this, too; the checkpoints are there all the same.
        with contextlib.suppress(RunError):
            run.finish(stopped=str(error))
            deliver_model(grid, roster, run)
        raise
    summary = run.finish()
    deliver_model(grid, roster, run)
    log(
        INFO,
        "Finished: test accuracy %.2f %% (best round %d). Files: %s",
        100 * (summary.test_accuracy or 0.0),
        summary.best_round,
        summary.directory,
    )
