"""Measure a packed network against other runtimes, side by side."""

import time
from dataclasses import dataclass

from fedbnn_core.errors import RunError
from fedbnn_core.packed.summary import macs
from fedbnn_core.speed.runtimes import INPUT_SHAPES, contenders
from fedbnn_core.speed.timing import best_times, clock_hz

__all__ = ["Comparison", "compare"]


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
    openvino_binary_ms: float | None
    """The packed network itself, in OpenVINO's binary convolutions."""
    speedup_vs_best_float32: float | None
    """None without ONNX Runtime: PyTorch alone may not be the best one."""
    speedup_vs_int8: float | None
    speedup_vs_openvino_binary: float | None
    file_bytes: int
    gmacs_per_second: float
    macs_per_cycle: float | None
    clock_ghz: float | None


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
    float_ms, int8_ms, binary_ms = (
        times[name].ms if name in times else None
        for name in ("onnxruntime_fp32", "onnxruntime_int8", "openvino_binary")
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
        openvino_binary_ms=binary_ms,
        speedup_vs_best_float32=speedup,
        speedup_vs_int8=None if int8_ms is None else int8_ms / packed_ms,
        speedup_vs_openvino_binary=None if binary_ms is None else binary_ms / packed_ms,
        file_bytes=packed.size_bytes,
        gmacs_per_second=per_second / 1e9,
        macs_per_cycle=None if clock is None else per_second / clock / threads,
        clock_ghz=None if clock is None else clock / 1e9,
    )
