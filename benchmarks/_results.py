"""One csv per machine: what was measured, on what, and when.

A file starts with ``# key: value`` lines about the machine; its rows are measurements:

==========  ==========================================================
kind        ``layer``, ``network`` or ``memory``
name        the layer or network
threads     of the runtime
batch       images per run
runtime     who ran it; ``packed`` or a kernel's name is ours
value       milliseconds per run, or bytes at the peak
macs        multiply-adds of one image
file_bytes  of the packed network
==========  ==========================================================
"""

import csv
import io
import os
import platform
import re
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = Path(__file__).parent / "results"
FLAGS = [
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512_vpopcntdq",
    "avx_vnni",
    "avx512_vnni",
    "amx_int8",
    "asimd",
]


@dataclass(frozen=True)
class Measurement:
    """One row."""

    kind: str
    name: str
    threads: int
    batch: int
    runtime: str
    value: float
    macs: int | None = None
    file_bytes: int | None = None


@dataclass(frozen=True)
class Machine:
    """One file."""

    about: dict[str, str]
    rows: list[Measurement]

    def find(self, kind: str) -> list[Measurement]:
        """Return the rows of one kind, in order."""
        return [row for row in self.rows if row.kind == kind]


def cpu_name() -> str:
    """Return the CPU's name as the system knows it."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(*keys: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    found = (line.split(":", 1) for line in lines if ":" in line)
    return next((value.strip() for key, value in found if key.strip() in keys), "")


def _compiler() -> str:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return "none"
    output = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=False
    ).stdout
    return output.splitlines()[0] if output else "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def about_this_machine(kernel: str, clock_ghz: float | None) -> dict[str, str]:
    """Return what a reader must know to judge the figures; nothing about its owner."""
    flags = _cpuinfo("flags", "Features").split()
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "cpu": cpu_name(),
        "kernel": kernel,
        "flags": " ".join(flag for flag in FLAGS if flag in flags) or "unknown",
        **_hidden(),
        "clock_ghz": "unknown" if clock_ghz is None else f"{clock_ghz:.2f}",
        "cores": str(os.cpu_count()),
        "compiler": _compiler(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "onnxruntime", "openvino")},
        "date": time.strftime("%Y-%m-%d"),
        "load": load,
    }


def _hidden() -> dict[str, str]:
    """Say so where `make bench-avx2` keeps instructions from the libraries."""
    is_hidden = "avx2_only" in os.environ.get("LD_PRELOAD", "")
    return {"hidden": "AVX-512, VNNI and AMX"} if is_hidden else {}


def path_of(about: dict[str, str]) -> Path:
    """Return where a machine's figures belong: a name made of CPU and kernel."""
    name = f"{about['cpu']} {about['kernel']}".lower()
    return FOLDER / (re.sub(r"[^a-z0-9]+", "-", name).strip("-") + ".csv")


def write(machine: Machine, path: Path) -> None:
    """Write one machine's file."""
    text = io.StringIO()
    for key, value in machine.about.items():
        text.write(f"# {key}: {value}\n")
    names = [field.name for field in fields(Measurement)]
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    for row in machine.rows:
        table.writerow(asdict(row) | {"value": f"{row.value:.6g}"})
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.getvalue())


def read(path: Path) -> Machine:
    """Read one machine's file."""
    lines = path.read_text().splitlines()
    header = [line for line in lines if line.startswith("# ")]
    pairs = (line[2:].split(": ", 1) for line in header)
    rows = [
        Measurement(
            kind=row["kind"],
            name=row["name"],
            threads=int(row["threads"]),
            batch=int(row["batch"]),
            runtime=row["runtime"],
            value=float(row["value"]),
            macs=int(row["macs"]) if row["macs"] else None,
            file_bytes=int(row["file_bytes"]) if row["file_bytes"] else None,
        )
        for row in csv.DictReader(lines[len(header) :])
    ]
    return Machine(dict(pairs), rows)


def read_all() -> list[Machine]:
    """Read the files of all machines, in the order of their names."""
    return [read(path) for path in sorted(FOLDER.glob("*.csv"))]
