"""Packed networks and layers against other runtimes.

Writes a csv to benchmarks/results and draws benchmarks/packed.png. Every figure is
measured here, in short interleaved windows, best of many; with one thread it is CPU
time.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._results import (
    Machine,
    Measurement,
    about_this_machine,
    cpu_name,
    path_of,
    write,
)
from fedbnn_core.packed import PackedModel, available_kernels
from fedbnn_core.packed.builder import GraphBuilder
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.graph import Graph, Kind
from fedbnn_core.packed.summary import macs
from fedbnn_core.speed.comparison import Comparison, compare
from fedbnn_core.speed.memory import peak_memory
from fedbnn_core.speed.openvino import openvino_runner
from fedbnn_core.speed.runtimes import INPUT_SHAPES, packed_bytes
from fedbnn_core.speed.timing import best_times, clock_hz

PLOT = Path(__file__).parent / "packed.png"
MODELS = ("cnn4", "resnet10", "resnet18", "convnext-tiny")
LAYERS = ((32, 64), (16, 128), (8, 256), (4, 512))
RUNTIMES = (
    "packed",
    "torch_fp32",
    "onnxruntime_fp32",
    "onnxruntime_int8",
    "openvino_binary",
)


def repeats(channels: int) -> int:
    """Return how many equal layers run in a row, so that the rest hardly counts.

    Their weights are at most those of a ResNet18, and as likely to be in a cache.
    """
    return min(32, 1_200_000 // (9 * channels * channels // 8))


def layer_graph(size: int, channels: int) -> Graph:
    """Return a network of equal binary 3x3 layers."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    value = builder.add(Kind.INPUT, channels)
    for _ in range(repeats(channels)):
        value = builder.add(
            Kind.BCONV,
            channels,
            value,
            kernel=(3, 3),
            stride=1,
            padding=(1, 1, 1, 1),
            bits=rng.integers(0, 256, channels * 9 * channels // 8, dtype=np.uint8),
            thresholds=np.zeros(channels, np.int16),
            flips=np.zeros(channels, np.bool_),
        )
    last = builder.add(
        Kind.BCONV,
        2,
        value,
        kernel=(1, 1),
        stride=1,
        bits=rng.integers(0, 256, (2 * channels + 7) // 8, dtype=np.uint8),
    )
    logits = builder.add(Kind.MEAN, 2, last)
    ones = np.ones(channels, np.float32)
    operations = builder.finish(logits)
    shape = (size, size, channels)
    return Graph("layers", shape, ones, -ones, ["a", "b"], operations)


def measure_layer(
    size: int, channels: int, rounds: int, clocks: list[float]
) -> Iterator[Measurement]:
    """Yield one row per runtime: a binary 3x3 layer with its gathering and compare."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    graph = layer_graph(size, channels)
    rng = np.random.default_rng(1)
    images = rng.standard_normal((1, channels, size, size)).astype(np.float32)
    channels_last = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    runners: dict[str, Any] = {}
    for kernel in available_kernels():
        if kernel != "numpy":
            model = PackedModel(encode(graph), kernel=kernel)
            runners[kernel] = lambda model=model: model.logits(
                channels_last, layout="NHWC", normalized=True
            )
    try:
        runners["openvino_binary"] = openvino_runner(graph, images, 1)
    except ImportError:
        print("OpenVINO is not installed; pip install 'fedbnn[bench]'")
    x = torch.from_numpy(images)
    weight = torch.zeros(channels, channels, 3, 3)
    with torch.inference_mode():
        runners["torch_fp32"] = lambda: functional.conv2d(x, weight, padding=1)
        runners["clock"] = lambda: clocks.append(clock_hz() or 0.0)
        times = best_times(runners, rounds=rounds, clock=time.thread_time)
    work = size * size * channels * channels * 9
    name = f"3x3, {channels} channels, {size}x{size}"
    for runtime, timing in times.items():
        if runtime != "clock":
            ms = timing.ms if runtime == "torch_fp32" else timing.ms / repeats(channels)
            yield Measurement("layer", name, 1, 1, runtime, ms, macs=work)


def measure_network(
    model: str, threads: int, batch: int, rounds: int
) -> tuple[Comparison, list[Measurement]]:
    """Return one network's comparison, and the same as rows."""
    line = compare(model, threads=threads, batch=batch, rounds=rounds)
    packed = PackedModel(packed_bytes(model, INPUT_SHAPES[model]))
    work = sum(macs(packed.graph))
    rows = [
        Measurement(
            "network", model, threads, batch, runtime, ms, work, line.file_bytes
        )
        for runtime in RUNTIMES
        if (ms := getattr(line, f"{runtime}_ms")) is not None
    ]
    return line, rows


def draw(lines: list[Comparison], path: Path) -> None:
    """Draw milliseconds of one thread and batch 1 as bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [line for line in lines if line.threads == 1 and line.batch == 1]
    columns = {
        "packed 1-bit": [line.packed_ms for line in shown],
        "OpenVINO binary": [line.openvino_binary_ms or 0 for line in shown],
        "ONNX Runtime int8": [line.onnxruntime_int8_ms or 0 for line in shown],
        "ONNX Runtime float32": [line.onnxruntime_fp32_ms or 0 for line in shown],
        "PyTorch float32": [line.torch_fp32_ms for line in shown],
    }
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    width = 0.8 / len(columns)
    for number, (name, values) in enumerate(columns.items()):
        places = np.arange(len(shown)) + (number - 2) * width
        bars = axes.bar(places, values, width, label=name)
        axes.bar_label(bars, fmt="%.2g", fontsize=7)
    axes.set_yscale("log")
    axes.set_xticks(range(len(shown)), [line.model for line in shown])
    axes.set_ylabel("ms per image (log scale)")
    axes.set_title(f"One image, one thread, {cpu_name()}")
    axes.legend()
    figure.savefig(path, dpi=130)


def main(rounds: int = 60, threads: tuple[int, ...] = (1, 2)) -> None:
    """Measure, write this machine's csv, draw."""
    rows: list[Measurement] = []
    clocks: list[float] = []
    load = about_this_machine("", None)["load"]
    for size, channels in LAYERS:
        for row in measure_layer(size, channels, rounds, clocks):
            rows.append(row)
            print(f"{row.name}, {row.runtime}: {row.value:.4f} ms", flush=True)
    lines = []
    for model in MODELS:
        for count in threads:
            for batch in (1, 32):
                heavy = batch > 1 and model != "cnn4"
                few = max(3, rounds // 8) if heavy else rounds
                line, found = measure_network(model, count, batch, few)
                lines.append(line)
                rows += found
                shown = ", ".join(f"{row.runtime} {row.value:.3f}" for row in found)
                print(
                    f"{model}, {count} threads, batch {batch}: {shown} ms", flush=True
                )
    for runtime, size_bytes in peak_memory("resnet18").items():
        if size_bytes is not None and runtime in RUNTIMES:
            rows.append(Measurement("memory", "resnet18", 1, 1, runtime, size_bytes))
    clock = max(clocks) / 1e9 or None
    about = about_this_machine(available_kernels()[0], clock)
    about |= {"load": load, "windows": f"best of {rounds}, batch 32 of {rounds // 8}"}
    path = path_of(about)
    write(Machine(about, rows), path)
    draw(lines, PLOT)
    print(f"wrote {path.name} and {PLOT.name}; python -m benchmarks render shows them")
