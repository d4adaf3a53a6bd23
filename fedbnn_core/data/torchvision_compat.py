"""Import torchvision next to a torch that its compiled operators do not fit.

torchvision registers meta kernels for two operators of its extension when imported;
beside a CPU-only torch the extension does not load and the import fails. Datasets and
transforms need no operator, so declaring the two schemas is enough.
"""

import importlib
from types import ModuleType
from typing import Any

__all__ = ["import_torchvision"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# Declarations live as long as the library object that made them.
_libraries: list[Any] = []


def import_torchvision(name: str = "torchvision") -> ModuleType:
    """Import a module of torchvision, such as ``"torchvision.datasets"``."""
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or _libraries:
            raise
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    return importlib.import_module(name)
