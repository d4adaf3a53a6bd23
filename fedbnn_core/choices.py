"""The names that a config value may take; nothing of FedBNN is imported here."""

import pkgutil
from importlib.util import find_spec

__all__ = [
    "ACTIVATIONS",
    "AGGREGATIONS",
    "DOWNLINK_BITS",
    "GRADIENT_BITS",
    "LR_SCHEDULES",
    "MODELS",
    "PARTITION_SCHEMES",
    "PRIVACY_MODES",
    "ROBUST_RULES",
    "ROTATION_STARTS",
    "SERVED_STATISTICS",
    "TRACKERS",
    "UPLINK_BITS",
    "method_names",
]


_SHARED = ("base", "template")
"""Modules of `methods` that hold what all methods share."""


def method_names() -> tuple[str, ...]:
    """Return the names of all methods: the modules of `methods`, none imported."""
    package = find_spec("fedbnn_core.methods")
    folders = package.submodule_search_locations if package else None
    modules = (module.name for module in pkgutil.iter_modules(folders or []))
    return tuple(sorted(name for name in modules if name not in _SHARED))


MODELS = ("cnn4", "resnet10", "resnet18", "convnext-tiny")
AGGREGATIONS = ("server", "client")
ACTIVATIONS = ("static", "per-sample")
GRADIENT_BITS = (0, 32, 8, 6, 4)
LR_SCHEDULES = ("halve", "linear", "cosine")
UPLINK_BITS = (32, 16, 8, 1)
DOWNLINK_BITS = (32, 16, 8, 4)
ROTATION_STARTS = ("identity", "haar", "warm")
SERVED_STATISTICS = ("clients", "server")
PARTITION_SCHEMES = ("iid", "dirichlet", "label-fraction", "natural")
ROBUST_RULES = ("none", "clip", "median", "trimmed-mean")
PRIVACY_MODES = ("none", "local")
TRACKERS = ("none", "wandb", "mlflow")
"""Beside the TensorBoard files, which are always written."""
