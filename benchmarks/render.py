"""Write the tables of benchmarks/README.md from the files in benchmarks/results."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from benchmarks._results import Machine, Measurement, read_all

README = Path(__file__).parent / "README.md"
BEGIN = "<!-- begin of what `python -m benchmarks render` writes -->"
END = "<!-- end of what `python -m benchmarks render` writes -->"
RUNTIMES = {
    "packed": "packed",
    "torch_fp32": "PyTorch float32",
    "onnxruntime_fp32": "ORT float32",
    "onnxruntime_int8": "ORT int8",
    "openvino_binary": "OpenVINO binary",
}


def main() -> None:
    """Replace what stands between the markers."""
    text = README.read_text()
    README.write_text(replace_tables(text, tables(read_all())))
    print(f"wrote the tables of {README.name}")


def replace_tables(text: str, generated: str) -> str:
    """Return a README's text with other tables between the markers."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{generated}\n{END}{after}"


def tables(machines: Iterable[Machine]) -> str:
    """Return the sections of all machines."""
    return "\n".join(line for machine in machines for line in _section(machine))


def _section(machine: Machine) -> Iterator[str]:
    about = machine.about
    yield f"### {about['cpu']}, {about['kernel']}\n"
    yield (
        "".join(f"{key} {value}; " for key, value in about.items() if key != "cpu")[:-2]
        + ".\n"
    )
    for lines in (_layers(machine), _networks(machine), _memory(machine)):
        if lines:
            yield "\n".join(lines) + "\n"


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _layers(machine: Machine) -> list[str]:
    clock = machine.about.get("clock_ghz", "unknown")
    rows = []
    for row in machine.find("layer"):
        rate = (row.macs or 0) * row.batch / row.value / 1e6
        cycle = "-" if clock == "unknown" else f"{rate / float(clock):.0f}"
        name = RUNTIMES.get(row.runtime, row.runtime)
        rows.append([row.name, name, f"{row.value:.4f}", f"{rate:.0f}", cycle])
    headings = ["layer", "runtime", "ms", "GMAC/s", "MAC/cycle"]
    return _table(headings, rows) if rows else []


def _networks(machine: Machine) -> list[str]:
    rows = []
    for (name, threads, batch), group in groupby(
        machine.find("network"), key=lambda row: (row.name, row.threads, row.batch)
    ):
        rows.append([name, str(threads), str(batch), *_cells(list(group))])
    headings = ["network", "threads", "batch", *(f"{n} ms" for n in RUNTIMES.values())]
    headings += ["vs best float32", "vs int8", "vs OpenVINO", "GMAC/s", "file bytes"]
    return _table(headings, rows) if rows else []


def _cells(group: list[Measurement]) -> list[str]:
    ms = {row.runtime: row.value for row in group}
    packed = next(row for row in group if row.runtime == "packed")
    floats = [ms[name] for name in ("torch_fp32", "onnxruntime_fp32") if name in ms]

    def ratio(value: float | None) -> str:
        return "-" if value is None else f"{value / packed.value:.1f}x"

    cells = [f"{ms[name]:.3f}" if name in ms else "-" for name in RUNTIMES]
    cells += [
        ratio(min(floats) if len(floats) == 2 else None),
        ratio(ms.get("onnxruntime_int8")),
        ratio(ms.get("openvino_binary")),
    ]
    rate = (packed.macs or 0) * packed.batch / packed.value / 1e6
    cells.append(f"{rate:.0f}" if packed.macs else "-")
    cells.append(f"{packed.file_bytes:,}" if packed.file_bytes else "-")
    return cells


def _memory(machine: Machine) -> list[str]:
    rows = [
        [row.name, RUNTIMES.get(row.runtime, row.runtime), f"{row.value / 1e6:.1f}"]
        for row in machine.find("memory")
    ]
    return (
        _table(["network, batch 1", "runtime", "MB at the peak"], rows) if rows else []
    )
