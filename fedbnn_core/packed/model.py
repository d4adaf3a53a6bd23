"""`PackedModel`: load a packed 1-bit network and classify images."""

import threading
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbnn_core.errors import FedBNNError, FormatError
from fedbnn_core.packed import reference
from fedbnn_core.packed.decode import decode, read_file
from fedbnn_core.packed.graph import (
    MAX_ACTIVATION_BYTES,
    Graph,
    Kind,
    infer_shapes,
    require,
)

__all__ = ["PackedModel", "available_kernels"]

LAYOUTS = ("auto", "NHWC", "NCHW")

_native: ModuleType | None
_native_problem = ""
try:
    _native = import_module("fedbnn_core.packed._native")
except ImportError as error:
    _native = None
    _native_problem = str(error)


def available_kernels() -> tuple[str, ...]:
    """Return the kernels that run here, fastest first; "numpy" is always there."""
    native = () if _native is None else tuple(_native.kernels())
    return (*native, "numpy")


class PackedModel:
    """A packed 1-bit network, ready to run.

    Attributes
    ----------
    graph : Graph
        The operations, as read from the file.
    class_names : list of str
    input_shape : tuple of int
        Channels, height, width.
    kernel : str
        The kernel in use: one of `available_kernels`.
    size_bytes : int
        Size of the file.
    """

    def __init__(self, data: bytes, *, kernel: str = "auto", threads: int = 1) -> None:
        self.graph: Graph = decode(data)
        self.class_names = self.graph.class_names
        height, width, channels = self.graph.input_shape
        self.input_shape = (channels, height, width)
        self.size_bytes = len(data)
        self.threads = threads
        self.kernel = _choose_kernel(kernel)
        self._handle: Any = None
        # A model has one set of activation buffers.
        self._lock = threading.Lock()
        if _native is None or self.kernel == "numpy":
            size = reference.activation_bytes(self.graph)
            require(size <= MAX_ACTIVATION_BYTES, f"an image takes {size:,} bytes")
        else:
            try:
                self._handle = _native.open(data, self.kernel, max(threads, 1))
            except ValueError as error:
                raise FormatError(
                    f"cannot run the model: {error}; export it again"
                ) from error

    @classmethod
    def load(
        cls, path: str | Path, *, kernel: str = "auto", threads: int = 1
    ) -> "PackedModel":
        """Read an `.fbnn` file.

        Parameters
        ----------
        path : str or Path
        kernel : str
            "auto" takes the fastest of `available_kernels`; any of them, or
            "numpy", can be asked for.
        threads : int
            Threads of the C kernels; a batch is split by images, a single image by
            rows. The results do not depend on it.
        """
        return cls(read_file(path), kernel=kernel, threads=threads)

    def predict(
        self, images: npt.ArrayLike, *, layout: str = "auto", normalized: bool = False
    ) -> npt.NDArray[np.int64]:
        """Return the class number of every image; see `logits` for the input."""
        logits = self.logits(images, layout=layout, normalized=normalized)
        return np.asarray(logits.argmax(axis=1), np.int64)

    def logits(
        self, images: npt.ArrayLike, *, layout: str = "auto", normalized: bool = False
    ) -> npt.NDArray[np.float32]:
        """Return logits (n, classes).

        Parameters
        ----------
        images : array
            uint8 pixels, 0 to 255, which the model normalizes itself. One image or a
            batch, (n, h, w, c) or (n, c, h, w); the channel axis may be missing if the
            model has one channel.
        layout : str
            "NHWC", "NCHW", or "auto": whichever fits the model's input shape.
        normalized : bool
            Say that ``images`` are floats, (pixel / 255 - mean) / std already with
            ``graph.mean`` and ``graph.std``. Floats are an error otherwise: pixels
            between 0 and 1 would be taken for something else without a word.
        """
        batch = self._arrange(np.asarray(images), layout, normalized)
        if _native is None or self._handle is None:
            return reference.run(self.graph, self._normalized(batch))
        out = np.empty((len(batch), len(self.class_names)), np.float32)
        with self._lock:
            _native.logits(
                self._handle, batch, batch.dtype == np.float32, len(batch), out
            )
        return out

    def preactivations(
        self, image: npt.ArrayLike, *, layout: str = "auto", normalized: bool = False
    ) -> dict[int, npt.NDArray[np.int32]]:
        """Return the integers (h, w, c) of every binary convolution for one image.

        The keys are positions in ``graph.operations``; see `logits` for the input.
        """
        batch = self._normalized(self._arrange(np.asarray(image), layout, normalized))
        if len(batch) != 1:
            raise FedBNNError(f"expected one image, got {len(batch)}; pass them singly")
        if _native is None or self._handle is None:
            found = reference.preactivations(self.graph, batch)
            return {index: sums[0] for index, sums in found.items()}
        sums = {}
        for index, shape in enumerate(infer_shapes(self.graph)):
            if self.graph.operations[index].kind is Kind.BCONV:
                with self._lock:
                    raw = _native.preactivations(self._handle, batch, index)
                sums[index] = np.frombuffer(raw, np.int32).reshape(shape.output)
        return sums

    def memory_bytes(self) -> dict[str, int]:
        """Return the C runtime's memory: prepared weights and activations."""
        if _native is None or self._handle is None:
            return {}
        about = _native.describe(self._handle)
        return {key: about[key] for key in ("weight_bytes", "activation_bytes")}

    def _normalized(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        if batch.dtype == np.float32:
            return batch
        return reference.normalize(self.graph, batch)

    def _arrange(
        self, images: npt.NDArray[Any], layout: str, normalized: bool
    ) -> npt.NDArray[Any]:
        """Return a contiguous (n, h, w, c) batch of uint8 or float32."""
        if layout not in LAYOUTS:
            raise FedBNNError(f"layout must be one of {LAYOUTS}, got {layout!r}")
        images = _typed(images, normalized)
        channels, height, width = self.input_shape
        if channels == 1 and images.shape[-2:] == (height, width) and images.ndim < 4:
            images = images.reshape(-1, height, width, 1)
            return np.ascontiguousarray(images)
        if images.ndim == 3:
            images = images[None]
        last, first = (height, width, channels), (channels, height, width)
        fits_last = images.ndim == 4 and images.shape[1:] == last and layout != "NCHW"
        fits_first = images.ndim == 4 and images.shape[1:] == first and layout != "NHWC"
        if fits_last and fits_first and channels > 1:
            raise FedBNNError(
                f"images of shape {images.shape} fit NHWC and NCHW; say layout="
            )
        if not fits_last and not fits_first:
            raise FedBNNError(
                f"expected images of shape (n, {height}, {width}, {channels}) or "
                f"(n, {channels}, {height}, {width}), got {images.shape}; resize or "
                "convert them first"
            )
        if fits_first:
            images = images.transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images)


def _typed(images: npt.NDArray[Any], normalized: bool) -> npt.NDArray[Any]:
    """Return uint8 pixels as they are and normalized ones as float32."""
    if normalized and np.issubdtype(images.dtype, np.floating):
        return images.astype(np.float32, copy=False)
    if normalized:
        raise FedBNNError(
            f"expected floats with normalized=True, got {images.dtype}; pass uint8 "
            "pixels without normalized=True, the model normalizes them itself"
        )
    if images.dtype != np.uint8:
        raise FedBNNError(
            f"expected uint8 pixels (0 to 255), got {images.dtype}; convert the array "
            "first, or pass normalized=True for floats that are normalized already, "
            "(pixel / 255 - mean) / std with graph.mean and graph.std"
        )
    return images


_warned = False


def _choose_kernel(kernel: str) -> str:
    global _warned
    available = available_kernels()
    if kernel == "auto":
        if _native is None and not _warned:
            _warned = True
            warnings.warn(
                f"the C runtime cannot be used ({_native_problem}); packed models run "
                "on numpy, slowly. Reinstall fedbnn with a C compiler.",
                RuntimeWarning,
                stacklevel=4,
            )
        return available[0]
    if kernel not in available:
        raise FedBNNError(
            f"kernel {kernel!r} does not run here; choose one of {available} or 'auto'"
        )
    return kernel
