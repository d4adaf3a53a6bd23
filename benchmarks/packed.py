"""Packed networks and layers against float32 and int8 runtimes.

Writes benchmarks/results/packed.json and packed.png. Every figure is measured here,
in short interleaved windows, best of many; with one thread it is CPU time.
"""

import json
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn_core.packed import PackedModel, available_kernels
from fedbnn_core.packed.builder import GraphBuilder
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.graph import Graph, Kind
from fedbnn_core.speed.comparison import Comparison, compare
from fedbnn_core.speed.memory import peak_memory
from fedbnn_core.speed.timing import best_times, clock_hz

RESULTS = Path(__file__).parent / "results"
MODELS = ("cnn4", "resnet10", "resnet18", "convnext-tiny")
LAYERS = ((32, 64), (16, 128), (8, 256), (4, 512))
REPEATED = 8


def cpu_name() -> str:
    """Return the CPU's name as the system knows it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def layer_bytes(size: int, channels: int) -> bytes:
    """Return a network of equal binary 3x3 layers, so that the rest hardly counts."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    value = builder.add(Kind.INPUT, channels)
    for _ in range(REPEATED):
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
    return encode(Graph("layers", shape, ones, -ones, ["a", "b"], operations))


def measure_layer(size: int, channels: int, rounds: int) -> list[dict[str, Any]]:
    """Return one line per kernel: a binary 3x3 layer with its gathering and compare."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    data = layer_bytes(size, channels)
    image = np.zeros((1, size, size, channels), np.float32)
    runners: dict[str, Any] = {}
    for kernel in available_kernels():
        if kernel != "numpy":
            model = PackedModel(data, kernel=kernel)
            runners[kernel] = lambda model=model: model.logits(
                image, layout="NHWC", normalized=True
            )
    x = torch.zeros(1, channels, size, size)
    weight = torch.zeros(channels, channels, 3, 3)
    with torch.inference_mode():
        runners["torch_fp32"] = lambda: functional.conv2d(x, weight, padding=1)
        clocks: list[float] = []
        runners["clock"] = lambda: clocks.append(clock_hz() or 0.0)
        times = best_times(runners, rounds=rounds, clock=time.thread_time)
    macs = size * size * channels * channels * 9
    clock = max(clocks)
    lines = []
    for name, timing in times.items():
        if name == "clock":
            continue
        ms = timing.ms if name == "torch_fp32" else timing.ms / REPEATED
        rate = macs / ms * 1e3
        lines.append(
            {
                "layer": f"3x3, {channels} channels, {size}x{size}",
                "kernel": name,
                "ms": ms,
                "gmacs_per_second": rate / 1e9,
                "macs_per_cycle": rate / clock if clock else None,
            }
        )
    return lines


def _row(line: Comparison) -> str:
    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    def times(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}x"

    return (
        f"| {line.model} | {line.threads} | {line.batch} | {ms(line.packed_ms)} "
        f"| {ms(line.torch_fp32_ms)} | {ms(line.onnxruntime_fp32_ms)} "
        f"| {ms(line.onnxruntime_int8_ms)} | {times(line.speedup_vs_best_float32)} "
        f"| {times(line.speedup_vs_int8)} | {line.gmacs_per_second:.0f} "
        f"| {line.file_bytes:,} |"
    )


def draw(lines: list[Comparison], path: Path) -> None:
    """Draw milliseconds of one thread and batch 1 as bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [line for line in lines if line.threads == 1 and line.batch == 1]
    columns = {
        "packed 1-bit": [line.packed_ms for line in shown],
        "ONNX Runtime int8": [line.onnxruntime_int8_ms or 0 for line in shown],
        "ONNX Runtime float32": [line.onnxruntime_fp32_ms or 0 for line in shown],
        "PyTorch float32": [line.torch_fp32_ms for line in shown],
    }
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    width = 0.8 / len(columns)
    for number, (name, values) in enumerate(columns.items()):
        places = np.arange(len(shown)) + (number - 1.5) * width
        bars = axes.bar(places, values, width, label=name)
        axes.bar_label(bars, fmt="%.2g", fontsize=7)
    axes.set_yscale("log")
    axes.set_xticks(range(len(shown)), [line.model for line in shown])
    axes.set_ylabel("ms per image (log scale)")
    axes.set_title(f"One image, one thread, {cpu_name()}")
    axes.legend()
    figure.savefig(path, dpi=130)


def main(rounds: int = 60) -> None:
    """Measure, print Markdown tables, write results."""
    RESULTS.mkdir(exist_ok=True)
    print(f"{cpu_name()}, {time.strftime('%Y-%m-%d')}, best of {rounds} windows\n")
    print("| layer | kernel | ms | GMAC/s | MAC/cycle |\n|---|---|---|---|---|")
    layers = []
    for size, channels in LAYERS:
        for line in measure_layer(size, channels, rounds):
            layers.append(line)
            cycle = line["macs_per_cycle"]
            print(
                f"| {line['layer']} | {line['kernel']} | {line['ms']:.4f} "
                f"| {line['gmacs_per_second']:.0f} "
                f"| {'-' if cycle is None else f'{cycle:.0f}'} |",
                flush=True,
            )
    print(
        "\n| model | threads | batch | packed ms | PyTorch ms | ORT float32 ms "
        "| ORT int8 ms | vs best float32 | vs int8 | GMAC/s | file bytes |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|"
    )
    lines = []
    for model in MODELS:
        for threads in (1, 2):
            for batch in (1, 32):
                heavy = batch > 1 and model != "cnn4"
                line = compare(
                    model,
                    threads=threads,
                    batch=batch,
                    rounds=max(3, rounds // 8) if heavy else rounds,
                )
                lines.append(line)
                print(_row(line), flush=True)
    memory = peak_memory("resnet18")
    shown = ", ".join(
        f"{name} {'-' if size is None else f'{size / 1e6:.1f} MB'}"
        for name, size in memory.items()
    )
    print(f"\nMemory of resnet18 at its peak, batch 1: {shown}")
    result = {
        "cpu": cpu_name(),
        "date": time.strftime("%Y-%m-%d"),
        "layers": layers,
        "models": [asdict(line) for line in lines],
        "peak_memory_bytes": memory,
    }
    (RESULTS / "packed.json").write_text(json.dumps(result, indent=2) + "\n")
    draw(lines, RESULTS / "packed.png")
