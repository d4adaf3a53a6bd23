"""Export the model of a finished run."""

from pathlib import Path

from torch import nn

from fedbnn_core.binary.model import begin_round
from fedbnn_core.config import RunConfig
from fedbnn_core.errors import ConfigError
from fedbnn_core.export.pack import pack, write_packed
from fedbnn_core.methods import create_method
from fedbnn_core.networks.state import load_arrays
from fedbnn_core.packed.encode import encode
from fedbnn_core.runs.directory import RunDirectory

__all__ = ["WHICH", "export_run", "load_run_model", "pack_run"]

WHICH = ("best", "final")
"""The models that a run directory holds."""


def load_run_model(directory: Path, *, which: str = "best") -> nn.Module:
    """Return the network of a run.

    Parameters
    ----------
    directory : Path
        The run's folder.
    which : str
        "best": sign(w~) of the best round, the model that the run reports. "final":
        the signs of the weights that were broadcast last.
    """
    if which not in WHICH:
        raise ConfigError(f"which model must be one of {WHICH}, got {which!r}")
    run = RunDirectory.open(directory)
    about = run.read_json("config.json")
    config = RunConfig.from_mapping(about["config"], complete=False)
    method = create_method(
        config, tuple(about["input_shape"]), len(about["class_names"])
    )
    if not method.binary:
        raise ConfigError(
            f"{directory} is a run of {config.method}, which trains a float network; "
            "only the 1-bit networks of the fedbnn method can be packed"
        )
    model = method.evaluation_model() if which == "best" else method.new_model()
    load_arrays(model, run.read_state(f"{which}.safetensors"))
    if which == "final":
        begin_round(model)  # w_server = w and R = its start: w~ is std(w)
    return model.eval()


def pack_run(directory: Path, *, which: str = "best", int8_head: bool = False) -> bytes:
    """Return the network of a run as an `.fbnn` file."""
    model = load_run_model(directory, which=which)
    about = RunDirectory.open(directory).read_json("config.json")
    # As the run evaluated it; older runs did not note these.
    mean, std = (about.get(f"test_{key}", about[key]) for key in ("mean", "std"))
    graph = pack(
        model,
        class_names=about["class_names"],
        mean=mean,
        std=std,
        input_shape=tuple(about["input_shape"]),
        int8_head=int8_head,
    )
    return encode(graph)


def export_run(directory: Path, path: Path) -> None:
    """Write the best network of a run as an `.fbnn` file."""
    write_packed(pack_run(directory), path)
