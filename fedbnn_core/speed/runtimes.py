"""The runtimes that are compared, one network each."""

import contextlib
import logging
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbnn_core.packed import PackedModel
from fedbnn_core.speed.openvino import openvino_runner
from fedbnn_core.speed.timing import Runner

__all__ = ["INPUT_SHAPES", "contenders", "packed_bytes"]

INPUT_SHAPES = {
    "cnn4": (1, 28, 28),
    "resnet10": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "convnext-tiny": (3, 32, 32),
}
CLASSES = 10

Images = npt.NDArray[np.float32]


def packed_bytes(model: str, input_shape: tuple[int, int, int]) -> bytes:
    """Return an untrained packed network; its speed is that of a trained one."""
    from fedbnn_core.binary.model import deployed
    from fedbnn_core.export.pack import pack
    from fedbnn_core.networks import ModelSpec, build_model
    from fedbnn_core.packed.encode import encode

    network = deployed(build_model(ModelSpec(model, input_shape, CLASSES), seed=0))
    names = [f"class {label}" for label in range(CLASSES)]
    about = {"class_names": names, "mean": [0.5], "std": [0.25]}
    return encode(pack(network, input_shape=input_shape, **about))  # type: ignore[arg-type]


def contenders(
    model: str,
    *,
    threads: int,
    batch: int,
    input_shape: tuple[int, int, int] | None = None,
    kernel: str = "auto",
) -> tuple[dict[str, Runner], PackedModel]:
    """Return what is compared: the packed net and its float twin elsewhere.

    The twin has the same layers with float convolutions. ONNX Runtime's int8 version
    is quantized statically, per channel. Without onnx and onnxruntime both are absent.
    OpenVINO runs the packed net itself, in its binary convolutions, if it is installed.
    """
    shape = input_shape or INPUT_SHAPES[model]
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, *shape)).astype(np.float32)
    packed = PackedModel(packed_bytes(model, shape), kernel=kernel, threads=threads)
    channels_last = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    runners: dict[str, Runner] = {
        "packed": lambda: packed.logits(channels_last, layout="NHWC", normalized=True)
    }
    runners |= _torch_runners(model, shape, images, threads)
    runners |= _onnx_runners(model, shape, images, threads)
    with contextlib.suppress(ImportError):
        runners["openvino_binary"] = openvino_runner(packed.graph, images, threads)
    return runners, packed


def _twin(model: str, shape: tuple[int, int, int]) -> Any:
    from fedbnn_core.networks import ModelSpec, build_model

    return build_model(ModelSpec(model, shape, CLASSES, binary=False), seed=0).eval()


def _torch_runners(
    model: str, shape: tuple[int, int, int], images: Images, threads: int
) -> dict[str, Runner]:
    """Return torch in both memory formats; neither is always the faster one."""
    import torch

    torch.set_num_threads(threads)
    tensor = torch.from_numpy(images)

    def runner(memory_format: torch.memory_format) -> Runner:
        network = _twin(model, shape).to(memory_format=memory_format)
        x = tensor.contiguous(memory_format=memory_format)

        def run() -> object:
            with torch.inference_mode():
                return network(x)

        return run

    return {
        "torch_fp32": runner(torch.contiguous_format),
        "torch_fp32_channels_last": runner(torch.channels_last),
    }


def _onnx_runners(
    model: str, shape: tuple[int, int, int], images: Images, threads: int
) -> dict[str, Runner]:
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError:
        return {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    runners: dict[str, Runner] = {}
    # Its tools leave scratch files in the working directory if they are interrupted.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        float_path, int8_path = _write_onnx(model, shape, images, Path(folder))
        for name, path in (
            ("onnxruntime_fp32", float_path),
            ("onnxruntime_int8", int8_path),
        ):
            session = onnxruntime.InferenceSession(
                path.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
            runners[name] = partial(session.run, None, {"x": images})
    return runners


def _write_onnx(
    model: str, shape: tuple[int, int, int], images: Images, folder: Path
) -> tuple[Path, Path]:
    """Write the float twin as ONNX, and its int8 version beside it."""
    import torch
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(1)
            self._batches = iter(
                {"x": rng.standard_normal(images.shape).astype(np.float32)}
                for _ in range(4)
            )

        def get_next(self) -> dict[str, Images] | None:
            return next(self._batches, None)

    float_path, ready, int8_path = (
        folder / name for name in ("float.onnx", "ready.onnx", "int8.onnx")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            torch.onnx.export(
                _twin(model, shape),
                (torch.zeros(images.shape),),
                str(float_path),
                input_names=["x"],
                opset_version=17,
                dynamo=False,
            )
            _make_axes_positive(float_path)
            quant_pre_process(str(float_path), str(ready), skip_symbolic_shape=True)
            quantize_static(
                str(ready),
                str(int8_path),
                Reader(),
                per_channel=True,
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        finally:
            logging.disable(logging.NOTSET)
    return float_path, int8_path


def _make_axes_positive(path: Path) -> None:
    """Count axes of transpositions from the front; the exporter writes some as -1."""
    import onnx

    graph = onnx.load(str(path))
    for node in graph.graph.node:
        if node.op_type == "Transpose":
            for attribute in node.attribute:
                axes = [axis % len(attribute.ints) for axis in attribute.ints]
                attribute.ints[:] = axes
    onnx.save(graph, str(path))
