"""`fedbnn bench`: a packed network against other runtimes."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["bench"]


def bench(
    model: Annotated[
        str, typer.Option(help="cnn4, resnet10, resnet18 or convnext-tiny.")
    ] = "resnet18",
    threads: Annotated[int, typer.Option(min=1, help="Threads of each runtime.")] = 1,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Images per run; repeatable. [1]")
    ] = None,
    kernel: Annotated[str, typer.Option(help="Kernel of the packed network.")] = "auto",
    rounds: Annotated[
        int, typer.Option(min=1, help="Windows per runtime; the best one counts.")
    ] = 100,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also measure memory (Linux, slow).")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON: an object, or a list of several."),
    ] = False,
) -> None:
    """Time a packed network beside PyTorch, ONNX Runtime and OpenVINO."""
    from fedbnn_core.speed.comparison import compare
    from fedbnn_core.speed.memory import peak_memory

    console = Console(highlight=False)
    sizes = batch or [1]
    lines = [
        compare(model, threads=threads, batch=size, kernel=kernel, rounds=rounds)
        for size in sizes
    ]
    held = [
        peak_memory(model, threads=threads, batch=size, kernel=kernel) if memory else {}
        for size in sizes
    ]
    if as_json:
        found = [
            asdict(line) | ({"peak_memory_bytes": peaks} if peaks else {})
            for line, peaks in zip(lines, held, strict=True)
        ]
        console.print_json(data=found if len(found) > 1 else found[0])
        return
    for line, peaks in zip(lines, held, strict=True):
        table = Table("", "ms", "times as long", title=f"{model}, batch {line.batch}")
        if peaks:
            table.add_column("peak MB")
        for name, key, value in (
            (f"packed, {line.kernel}", "packed", line.packed_ms),
            ("PyTorch float32", "torch_fp32", line.torch_fp32_ms),
            ("ONNX Runtime float32", "onnxruntime_fp32", line.onnxruntime_fp32_ms),
            ("ONNX Runtime int8", "onnxruntime_int8", line.onnxruntime_int8_ms),
            ("OpenVINO binary", "openvino_binary", line.openvino_binary_ms),
        ):
            if value is None:
                table.add_row(name, "not installed", "")
                continue
            peak = peaks.get(key)
            cells = [f"{value:.3f}", f"{value / line.packed_ms:.2f}"]
            cells += (
                ["unknown" if peak is None else f"{peak / 1e6:.1f}"] if peaks else []
            )
            table.add_row(name, *cells)
        console.print(table)
        clock = f" at {line.clock_ghz:.2f} GHz" if line.clock_ghz else ""
        cycle = f", {line.macs_per_cycle:.0f} MAC/cycle" if line.macs_per_cycle else ""
        console.print(
            f"{threads} thread(s), {line.gmacs_per_second:.0f} GMAC/s{cycle}{clock}, "
            f"file {line.file_bytes:,} bytes; best of {rounds} windows each."
        )
        if line.onnxruntime_fp32_ms is None or line.openvino_binary_ms is None:
            console.print(
                "To compare with ONNX Runtime, OpenVINO: pip install 'fedbnn[bench]'",
                markup=False,
            )
