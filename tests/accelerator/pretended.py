"""A pretended accelerator: torch's PrivateUse1 device with its memory on the host.

Its tensors compute on the CPU, with real values, and behave as on a GPU: an operation
refuses operands on two devices, every read by the host is a wait, and there is no
float64. All of it is counted.

Registered once per process, so that only tests in processes of their own import it.
"""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "pretended"

_VIEWS = {
    *("_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal"),
    *("expand", "lift_fresh", "permute", "select", "slice", "split", "squeeze", "t"),
    *("transpose", "unbind", "unsqueeze", "view"),
}
_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "resize_"}
_WAITS = {"_local_scalar_dense", "bincount", "nonzero", "masked_select", "equal"}

launches: Counter[str] = Counter()
"""Operations on the device by name; views and allocations launch nothing."""
waits: Counter[str] = Counter()
"""Reads of the device's memory by the host, copies either way among them."""


class PretendedTensor(torch.Tensor):
    """A tensor on the pretended device; `held` has its values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "PretendedTensor":
        if held.dtype == torch.float64:
            raise TypeError("the pretended device has no float64")
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(DEVICE, 0),
        )
        wrapper.held = held.detach()
        return wrapper

    def __repr__(self) -> str:
        return f"PretendedTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        # Wrappers are ordinary tensors in inference mode, too.
        with torch.inference_mode(False):
            return _compute(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


def _compute(func: Any, args: tuple, kwargs: dict) -> Any:
    name = func.overloadpacket.__name__
    target = kwargs.get("device")
    to_device = target is not None and torch.device(target).type == DEVICE
    to_host = target is not None and torch.device(target).type == "cpu"
    copies = name in ("_to_copy", "copy_")
    if name in _WAITS or (copies and (to_host or _crosses(name, args, to_device))):
        waits[name] += 1
    elif name not in _VIEWS | _ALLOCATIONS:
        launches[name] += 1
    if not copies:
        _refuse_two_devices(func, args, kwargs)
    plain = dict(kwargs)
    if to_device:
        plain["device"] = torch.device("cpu")
    out = func(*tree_map(_unwrap, args), **tree_map(_unwrap, plain))
    if to_host:
        return out
    if name == "copy_" and not isinstance(args[0], PretendedTensor):
        return args[0]
    wrapped = tree_map(_wrap, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _crosses(name: str, args: tuple, to_device: bool) -> bool:
    kinds = [
        isinstance(a, PretendedTensor) for a in args if isinstance(a, torch.Tensor)
    ]
    return not all(kinds) if name == "copy_" else to_device and not kinds[0]


def _refuse_two_devices(func: Any, args: tuple, kwargs: dict) -> None:
    operands: list[torch.Tensor] = []
    tree_map(
        lambda a: operands.append(a) if isinstance(a, torch.Tensor) else None,
        (args, kwargs),
    )
    strangers = [a for a in operands if not isinstance(a, PretendedTensor)]
    # As on a GPU, a number may come from the host.
    if any(a.dim() > 0 for a in strangers) and len(strangers) < len(operands):
        raise RuntimeError(f"{func} has operands on two devices")


def _unwrap(value: Any) -> Any:
    return value.held if isinstance(value, PretendedTensor) else value


def _wrap(value: Any) -> Any:
    is_plain = isinstance(value, torch.Tensor) and not isinstance(
        value, PretendedTensor
    )
    return PretendedTensor(value) if is_plain else value


def _factory(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Take operations without an operand on the device, such as torch.empty."""
    with torch.inference_mode(False):
        return _compute(func, args, kwargs)


class _Generator(torch.Generator):
    """Random numbers of the pretended device; torch itself makes none for it."""

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        made = super().__new__(cls)
        made.pretends = torch.device(device).type == DEVICE
        return made

    @property
    def device(self) -> torch.device:
        return torch.device(DEVICE, 0) if self.pretends else torch.device("cpu")


_tensor_on_the_host = torch.tensor


def _tensor(data: Any, *, device: Any = None, **kwargs: Any) -> torch.Tensor:
    """torch.tensor in two steps: its own way to a device has no Python hook."""
    made = _tensor_on_the_host(data, **kwargs)
    return made if device is None else made.to(device)


def _register() -> list[torch.library.Library]:
    _setup_privateuseone_for_python_backend(DEVICE)
    library = torch.library.Library("_", "IMPL")
    library.fallback(_factory, "PrivateUse1")
    torch.Generator = _Generator
    torch.tensor = _tensor
    return [library]


_KEPT = _register()
