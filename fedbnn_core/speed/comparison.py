"""Measure a packed network against float32 and int8 runtimes, side by side."""

import contextlib
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbnn_core.errors import RunError
from fedbnn_core.packed import PackedModel
from fedbnn_core.packed.summary import macs

__all__ = [
    "INPUT_SHAPES",
    "Comparison",
    "Timing",
    "best_times",
    "clock_hz",
    "compare",
    "contenders",
]

INPUT_SHAPES = {
    "cnn4": (1, 28, 28),
    "resnet10": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "convnext-tiny": (3, 32, 32),
}
CLASSES = 10
WINDOW_SECONDS = 0.004

Images = npt.NDArray[np.float32]
Runner = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Best time of one contender."""

    ms: float
    windows: int


@dataclass(frozen=True)
class Comparison:
    """One line of the benchmark; times in milliseconds per batch."""

    model: str
    threads: int
    batch: int
    kernel: str
    packed_ms: float
    torch_fp32_ms: float
    onnxruntime_fp32_ms: float | None
    onnxruntime_int8_ms: float | None
    speedup_vs_best_float32: float | None
    """None without ONNX Runtime: PyTorch alone may not be the best one."""
    speedup_vs_int8: float | None
    file_bytes: int
    gmacs_per_second: float
    macs_per_cycle: float | None
    clock_ghz: float | None


def clock_hz() -> float | None:
    """Return the present clock of this core, from a chain of dependent additions."""
    from fedbnn_core.packed.model import _native

    seconds = None if _native is None else _native.cycle_chain()
    return None if not seconds else 2**20 / seconds


def best_times(
    runners: Mapping[str, Runner],
    *,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time all runners in turn, in short windows, and keep the best of each.

    Other work on the machine slows whole stretches of time; short windows in turn let
    every runner have its share of the quiet ones.

    Parameters
    ----------
    runners : what to time, by name.
    rounds : windows of each runner.
    clock : seconds. ``time.thread_time`` leaves out the time in which the calling
        thread had to wait for a CPU: right for runners that use no other thread.
    """
    repeats = {}
    for name, runner in runners.items():
        runner()
        started = time.perf_counter()
        runner()
        once = time.perf_counter() - started
        repeats[name] = max(1, round(WINDOW_SECONDS / max(once, 1e-7)))
    best = dict.fromkeys(runners, float("inf"))
    for _ in range(rounds):
        for name, runner in runners.items():
            started = clock()
            for _ in range(repeats[name]):
                runner()
            spent = (clock() - started) / repeats[name]
            best[name] = min(best[name], spent)
    return {name: Timing(1e3 * spent, rounds) for name, spent in best.items()}


def packed_bytes(model: str, input_shape: tuple[int, int, int]) -> bytes:
    """Return an untrained packed network; its speed is that of a trained one."""
    from fedbnn_core.binary.model import deployed
    from fedbnn_core.export.pack import pack
    from fedbnn_core.networks import ModelSpec, build_model
    from fedbnn_core.packed.format import encode

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
    is quantised statically, per channel. Without onnx and onnxruntime both are absent.
    """
    shape = input_shape or INPUT_SHAPES[model]
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, *shape)).astype(np.float32)
    packed = PackedModel(packed_bytes(model, shape), kernel=kernel, threads=threads)
    channels_last = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    runners: dict[str, Runner] = {
        "packed": lambda: packed.logits(channels_last, layout="NHWC")
    }
    runners |= _torch_runners(model, shape, images, threads)
    runners |= _onnx_runners(model, shape, images, threads)
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


def compare(
    model: str,
    *,
    threads: int = 1,
    batch: int = 1,
    kernel: str = "auto",
    rounds: int = 100,
) -> Comparison:
    """Return one line of the benchmark, best of ``rounds`` interleaved windows."""
    if model not in INPUT_SHAPES:
        raise RunError(
            f"unknown model {model!r}; choose one of {', '.join(INPUT_SHAPES)}"
        )
    runners, packed = contenders(model, threads=threads, batch=batch, kernel=kernel)
    clocks: list[float] = []

    def read_clock() -> None:
        if (hz := clock_hz()) is not None:
            clocks.append(hz)

    times = best_times(
        {**runners, "clock": read_clock},
        rounds=rounds,
        clock=time.thread_time if threads == 1 else time.perf_counter,
    )
    packed_ms = times["packed"].ms
    torch_ms = min(times["torch_fp32"].ms, times["torch_fp32_channels_last"].ms)
    float_ms, int8_ms = (
        times[name].ms if name in times else None
        for name in ("onnxruntime_fp32", "onnxruntime_int8")
    )
    speedup = None if float_ms is None else min(torch_ms, float_ms) / packed_ms
    per_second = sum(macs(packed.graph)) * batch / packed_ms * 1e3
    clock = max(clocks, default=None)
    return Comparison(
        model=model,
        threads=threads,
        batch=batch,
        kernel=packed.kernel,
        packed_ms=packed_ms,
        torch_fp32_ms=torch_ms,
        onnxruntime_fp32_ms=float_ms,
        onnxruntime_int8_ms=int8_ms,
        speedup_vs_best_float32=speedup,
        speedup_vs_int8=None if int8_ms is None else int8_ms / packed_ms,
        file_bytes=packed.size_bytes,
        gmacs_per_second=per_second / 1e9,
        macs_per_cycle=None if clock is None else per_second / clock / threads,
        clock_ghz=None if clock is None else clock / 1e9,
    )
