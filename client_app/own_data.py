"""What a device says about its images when the server asks who it is."""

from collections.abc import Mapping
from logging import WARNING
from typing import Any

from flwr.common.logger import log

from fedbnn_core.config import RunConfig
from fedbnn_core.errors import FedBNNError
from fedbnn_core.fleet.own_data import DataTask, load_own_data
from fedbnn_core.runs.dataset import load_run_dataset

__all__ = ["describe_own_data", "describe_run_data"]


def describe_own_data(path: str, task: str) -> tuple[int, str]:
    """Return the number of training images and the problem that keeps it out, if any.

    In a private run the server learns only whether they can be used.

    Parameters
    ----------
    path : the device's images.
    task : what the run expects of them, as the server wrote it.
    """
    expected = DataTask.from_json(task)
    try:
        data = load_own_data(path, expected)
    except FedBNNError as error:
        if not expected.private:
            return 0, str(error)
        log(WARNING, "The images cannot be used: %s", error)
        return 0, "its images cannot be used; the device's own log says why."
    return (1 if expected.private else len(data.y_train)), ""


def describe_run_data(
    run_config: Mapping[str, Any], node_config: Mapping[str, Any]
) -> str:
    """Return why a device cannot train on its share of the run's dataset, or "".

    Parameters
    ----------
    run_config : the run's config; it names the dataset.
    node_config : the device's; its ``data-dir`` counts where it has one.
    """
    local = {key: node_config[key] for key in ("data-dir",) if key in node_config}
    try:
        load_run_dataset(RunConfig.from_mapping({**run_config, **local}))
    except FedBNNError as error:
        return str(error)
    return ""
