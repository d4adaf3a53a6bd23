"""What a device says about its own images when the server asks who it is."""

from fedbnn_core.errors import FedBNNError
from fedbnn_core.fleet.own_data import DataTask, load_own_data

__all__ = ["describe_own_data"]


def describe_own_data(path: str, task: str) -> dict[str, str | int]:
    """Return the number of training images, or the problem that keeps it out.

    Parameters
    ----------
    path : the device's images.
    task : what the run expects of them, as the server wrote it.
    """
    try:
        data = load_own_data(path, DataTask.from_json(task))
    except FedBNNError as error:
        return {"own-examples": 0, "problem": str(error)}
    return {"own-examples": len(data.y_train)}
