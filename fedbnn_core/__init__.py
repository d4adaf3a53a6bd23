"""Train 1-bit neural networks, alone or in federation, and run them bit-packed.

The names below are the library. Each is loaded when it is first used, so that
``import fedbnn_core`` needs numpy only and `PackedModel` never loads torch.

Examples
--------
>>> import fedbnn_core as fb
>>> data = fb.load_dataset("fmnist-mini")
>>> net = fb.build_model("cnn4", data)
>>> fb.fit(net, data, epochs=5, lr=0.1)  # doctest: +SKIP
>>> fb.export_packed(net, data, "model.fbnn")  # doctest: +SKIP
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbnn_core.binary.layer import RotatedBinaryConv2d
    from fedbnn_core.binary.layer import RotatedBinaryConv2d as BinaryConv2d
    from fedbnn_core.binary.options import BinaryOptions
    from fedbnn_core.binary.stem import StemConv2d
    from fedbnn_core.data.dataset import Dataset
    from fedbnn_core.data.loading import dataset_names, load_dataset
    from fedbnn_core.errors import ExportError, FedBNNError
    from fedbnn_core.export.pack import check_exportable, export_packed
    from fedbnn_core.networks.blocks import ChannelLayerNorm
    from fedbnn_core.packed.model import PackedModel, available_kernels
    from fedbnn_core.server.local import FederationResult, LocalFederation
    from fedbnn_core.training.central import (
        EpochResult,
        History,
        Score,
        build_model,
        deploy,
        evaluate,
        fit,
    )

__version__ = "0.1.0"

__all__ = [
    "BinaryConv2d",
    "BinaryOptions",
    "ChannelLayerNorm",
    "Dataset",
    "EpochResult",
    "ExportError",
    "FedBNNError",
    "FederationResult",
    "History",
    "LocalFederation",
    "PackedModel",
    "RotatedBinaryConv2d",
    "Score",
    "StemConv2d",
    "__version__",
    "available_kernels",
    "build_model",
    "check_exportable",
    "dataset_names",
    "deploy",
    "evaluate",
    "export_packed",
    "fit",
    "load_dataset",
]

_ROOMS = {
    "binary.layer": ("RotatedBinaryConv2d",),
    "binary.options": ("BinaryOptions",),
    "binary.stem": ("StemConv2d",),
    "data.dataset": ("Dataset",),
    "data.loading": ("dataset_names", "load_dataset"),
    "errors": ("ExportError", "FedBNNError"),
    "export.pack": ("check_exportable", "export_packed"),
    "networks.blocks": ("ChannelLayerNorm",),
    "packed.model": ("PackedModel", "available_kernels"),
    "server.local": ("FederationResult", "LocalFederation"),
    "training.central": (
        "EpochResult",
        "History",
        "Score",
        "build_model",
        "deploy",
        "evaluate",
        "fit",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
_ALIASES = {"BinaryConv2d": "RotatedBinaryConv2d"}


def __getattr__(name: str) -> Any:
    own = _ALIASES.get(name, name)
    if own not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        room = importlib.import_module(f"{__name__}.{_ROOM_OF[own]}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(__name__):
            raise
        raise ImportError(
            f"fedbnn_core.{name} needs {error.name}, which is not installed; "
            "install fedbnn[device], or fedbnn[simulation] for simulated federations"
        ) from error
    return globals().setdefault(name, getattr(room, own))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
