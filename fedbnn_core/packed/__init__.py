"""Packed 1-bit networks: the `.fbnn` file and its runtime (numpy only)."""

from fedbnn_core.packed.model import PackedModel, available_kernels

__all__ = ["PackedModel", "available_kernels"]
