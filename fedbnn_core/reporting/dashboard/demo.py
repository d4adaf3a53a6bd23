"""Try a packed 1-bit model: an image in, classes, latency and bits out."""

import base64
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.errors import FedBNNError, RunError
from fedbnn_core.packed import PackedModel
from fedbnn_core.packed.graph import Kind, Operation
from fedbnn_core.packed.reference import fma, normalize
from fedbnn_core.packed.scores import softmax
from fedbnn_core.reporting.report.held_data import held_out_images
from fedbnn_core.reporting.report.page import assemble_page, report_asset
from fedbnn_core.runs.directory import PACKED_MODEL, RunDirectory

__all__ = ["Demo", "demo_page", "layer_bits", "open_demo"]

_SAMPLES = 30
_TIMINGS = 9

Images = NDArray[np.uint8]


class Demo:
    """A packed model and images to try it on.

    Parameters
    ----------
    model : the model; the fastest kernel of this machine should run it.
    images : uint8 (n, h, w, c), may be empty.
    labels : the images' true classes.
    """

    def __init__(
        self, model: PackedModel, images: Images, labels: Sequence[int]
    ) -> None:
        self.model = model
        self._images = images
        self._labels = labels
        self._first = next(
            index
            for index, op in enumerate(model.graph.operations)
            if op.kind is Kind.BCONV
        )

    @property
    def input_bytes(self) -> int:
        """Return the bytes of one image: height * width * channels."""
        return int(np.prod(self.model.input_shape))

    def samples(self, seed: int) -> list[dict[str, Any]]:
        """Return some images: pixels in base64, rows first, and their class."""
        count = min(_SAMPLES, len(self._images))
        chosen = np.random.default_rng(seed).permutation(len(self._images))[:count]
        return [
            {
                "pixels": base64.b64encode(self._images[i].tobytes()).decode(),
                "label": self.model.class_names[self._labels[i]],
            }
            for i in chosen
        ]

    def classify(self, pixels: bytes) -> dict[str, Any]:
        """Classify one image of (h, w, c) bytes.

        Returns
        -------
        dict
            ``classes``: name and probability, likeliest first; ``latency_ms``: median
            of nine runs; ``bits`` of the first binary layer, ``input_bits`` if that
            layer reads the image itself.
        """
        channels, height, width = self.model.input_shape
        image = np.frombuffer(pixels, np.uint8).reshape(1, height, width, channels)
        seconds = []
        for _ in range(_TIMINGS):
            started = time.perf_counter()
            logits = self.model.logits(image, layout="NHWC")[0]
            seconds.append(time.perf_counter() - started)
        shares = softmax(logits)
        order = np.argsort(-shares, kind="stable")
        operations = self.model.graph.operations
        first = operations[self._first]
        sums = self.model.preactivations(image, layout="NHWC")[self._first]
        answer: dict[str, Any] = {
            "classes": [
                {"name": self.model.class_names[i], "probability": float(shares[i])}
                for i in order
            ],
            "latency_ms": 1e3 * float(np.median(seconds)),
            "kernel": self.model.kernel,
            "bits": _packed(layer_bits(first, sums)),
        }
        if operations[0].kind is Kind.INPUT and first.input == operations[0].out_bits:
            normalized = normalize(self.model.graph, image)[0]
            answer["input_bits"] = _packed(normalized >= 0)
        return answer


def layer_bits(op: Operation, sums: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return the bits that a binary convolution's sums (h, w, c) become.

    With thresholds: (sum >= threshold) ^ flip. Without, the sign of bias and batch
    normalization, fma(sum + bias, gain, offset) >= 0.
    """
    if op.thresholds is not None and op.flips is not None:
        return np.asarray((sums >= op.thresholds) ^ op.flips)
    values = sums.astype(np.float32)
    if op.bias is not None:
        values = values + op.bias
    if op.gain is not None and op.offset is not None:
        values = fma(values, op.gain, op.offset)
    return np.asarray(values >= 0)


def _packed(bits: NDArray[np.bool_]) -> dict[str, Any]:
    """Return bits (h, w, c) channel by channel, eight to a byte, lowest first."""
    height, width, channels = bits.shape
    packed = np.packbits(np.moveaxis(bits, 2, 0), bitorder="little")
    return {
        "height": height,
        "width": width,
        "channels": channels,
        "data": base64.b64encode(packed.tobytes()).decode(),
    }


def open_demo(directory: Path) -> Demo:
    """Load a run's packed model, exporting it first if need be, and its test images.

    Raises
    ------
    RunError
        The run has no 1-bit model that can be packed.
    """
    run = RunDirectory.open(directory)
    path = run.path / PACKED_MODEL
    if not path.is_file():
        from fedbnn_core.runs.model import export_run

        try:
            export_run(run.path, path)
        except FedBNNError as error:
            raise RunError(f"this run has no model to try yet: {error}") from error
    model = PackedModel.load(path)
    try:
        images, labels = held_out_images(run.read_json("config.json"))
    except (FedBNNError, ImportError):
        # Without the dataset a person can still draw or open a file.
        channels, height, width = model.input_shape
        images = np.empty((0, channels, height, width), np.uint8)
        labels = np.empty(0, np.int64)
    arranged = np.ascontiguousarray(np.moveaxis(np.asarray(images), 1, 3))
    return Demo(model, arranged, [int(label) for label in labels])


def demo_page(demo: Demo) -> str:
    """Return the page; it holds scripts and style and asks its server for the rest."""
    model = demo.model
    channels, height, width = model.input_shape
    assets = resources.files("fedbnn_core.reporting.dashboard").joinpath("assets")
    return assemble_page(
        title="Try the 1-bit model",
        body=assets.joinpath("demo.html").read_text(encoding="utf-8"),
        styles=[
            report_asset("style.css"),
            assets.joinpath("demo.css").read_text(encoding="utf-8"),
        ],
        scripts=[
            report_asset("dom.js"),
            assets.joinpath("demo.js").read_text(encoding="utf-8"),
        ],
        data={
            "architecture": model.graph.architecture,
            "channels": channels,
            "height": height,
            "width": width,
            "class_names": model.class_names,
            "size_bytes": model.size_bytes,
            "kernel": model.kernel,
        },
        connect=True,
    )
