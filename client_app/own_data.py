"""What a device says about its own images when the server asks who it is."""

from logging import WARNING

from flwr.common.logger import log

from fedbnn_core.errors import FedBNNError
from fedbnn_core.fleet.own_data import DataTask, load_own_data

__all__ = ["describe_own_data"]


def describe_own_data(path: str, task: str) -> dict[str, str | int]:
    """Return the number of training images, or the problem that keeps it out.

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
            return {"own-examples": 0, "problem": str(error)}
        log(WARNING, "The images cannot be used: %s", error)
        problem = "its images cannot be used; the device's own log says why."
        return {"own-examples": 0, "problem": problem}
    return {"own-examples": 1 if expected.private else len(data.y_train)}
