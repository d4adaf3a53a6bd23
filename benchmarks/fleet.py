"""A round of a real fleet over loopback: where its time goes, memory and bytes.

A server and two devices as processes, with TLS and device keys, by the commands that
an operator types. Times come from what the processes say and when; memory is the
kernel's high-water mark of each process; bytes are those of each device's connection
as the kernel counts them (``ss`` of iproute2, TLS included).
"""

import os
import re
import shutil
import statistics
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks._site import MARKER, PROCESSES, Service, running_fleet
from fedbnn_core.flower.processes import marked_processes
from fedbnn_core.runs.directory import RunDirectory

DEVICES = ("camera", "robot")
ROUNDS = 6
CASES = {
    "cnn4": {"local-epochs": 5, "train-limit": 1000},
    "resnet18": {"local-epochs": 1, "train-limit": 1000},
}
PHASES = (
    "device idle until it looks for work",
    "download",
    "start of a process",
    "import torch, load data and model",
    "train",
    "hand over to the SuperNode",
    "upload",
    "wait for the slower device",
    "server: aggregate",
    "server: evaluate",
    "server: receive, check, save",
)
# Lines of a device's log. A round begins with the first and ends with the last. A large
# message is still on its way when the process that will read it starts.
_STEPS = {
    "asked": re.compile(r"Receiving: train message"),
    "received": re.compile(r"Received successfully"),
    "started": re.compile(r"Start `flwr-clientapp` process"),
    "trained": re.compile(r"round \d+/\d+: trained on \d+ images in ([\d.]+) s"),
    "sending": re.compile(r"Sending: train message"),
    "sent": re.compile(r"Sent successfully"),
}


def watch_memory(folder: str, peaks: dict[str, float], done: threading.Event) -> None:
    """Keep the highest VmHWM of each kind of process, in megabytes."""
    while not done.wait(0.2):
        for process in marked_processes(MARKER, folder):
            try:
                words = Path(f"/proc/{process}/cmdline").read_text()
                status = Path(f"/proc/{process}/status").read_text()
            except OSError:
                continue
            kind = next((n for part, n in PROCESSES.items() if part in words), None)
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            if kind and found:
                peaks[kind] = max(peaks[kind], int(found[1]) / 1024)


def traffic(address: str) -> list[tuple[int, int]]:
    """Return (bytes up, bytes down) of each device's connection so far."""
    port = address.rpartition(":")[2]
    text = subprocess.run(
        ["ss", "-Htin", "state", "established", f"dport = :{port}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [
        (int(sent[1]), int(received[1]))
        for block in re.split(r"\n(?=\S)", text)
        if (sent := re.search(r"bytes_sent:(\d+)", block))
        and (received := re.search(r"bytes_received:(\d+)", block))
    ]


def device_rounds(device: Service) -> list[dict[str, float]]:
    """Return for each round the moments of its steps; "training" is a duration."""
    rounds = []
    moments: dict[str, float] = {}
    for moment, line in device.lines:
        for step, pattern in _STEPS.items():
            if not (found := pattern.search(line)) or not (moments or step == "asked"):
                continue
            moments.setdefault(step, moment)
            if found.groups():
                moments["training"] = float(found[1])
        if len(moments) > len(_STEPS):
            rounds.append(moments)
            moments = {}
    return rounds


def phases_of(
    before: float,
    end: float,
    devices: list[dict[str, float]],
    server: dict[str, float],
) -> list[float]:
    """Divide one round, from the end of the last one to its own, into `PHASES`."""
    last = max(moments["sent"] for moments in devices)
    parts = []
    for moments in devices:
        ready = max(moments["received"], moments["started"])
        edges = [
            *(before, moments["asked"], moments["received"], ready),
            *(moments["trained"] - moments["training"], moments["trained"]),
            *(moments["sending"], moments["sent"], last),
        ]
        parts.append([later - earlier for earlier, later in pairwise(edges)])
    means = [statistics.mean(column) for column in zip(*parts, strict=True)]
    known = server["aggregate"] + server["evaluate"]
    return [*means, server["aggregate"], server["evaluate"], end - last - known]


def measure(model: str, say: Callable[[str], None]) -> None:
    """Train one model on a fleet and print its figures."""
    peaks: dict[str, float] = defaultdict(float)
    done = threading.Event()
    with running_fleet(DEVICES) as site:
        watcher = threading.Thread(target=watch_memory, args=(site.folder, peaks, done))
        watcher.start()
        run = site.start_run(model=model, num_server_rounds=ROUNDS, **CASES[model])
        ends: list[float] = []
        counts = []
        while run.process.poll() is None:
            file = site.metrics_file()
            if file and file.read_bytes().count(b"\n") > len(ends):
                ends.append(time.monotonic())
                counts.append(traffic(site.address))
            time.sleep(0.02)
        done.set()
        watcher.join()
        file = site.metrics_file()
        if file is None or len(ends) < ROUNDS:
            raise SystemExit("".join(line for _, line in run.lines))
        metrics = RunDirectory(file.parent).read_metrics()
    of_devices = [device_rounds(device) for device in site.devices]
    # Round 1 waits for the devices' answers first; it is left out. A device that had
    # to send again logs its steps otherwise, and such a run cannot be divided.
    rounds = [
        phases_of(
            ends[k - 1],
            ends[k],
            [rounds[k] for rounds in of_devices],
            metrics[k].seconds,
        )
        for k in range(1, min(map(len, of_devices)))
    ]
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    whole = [after - before for before, after in pairwise(ends)]
    case = ", ".join(f"{key} {value}" for key, value in CASES[model].items())
    say(
        f"{model} ({case} in all): a round takes {statistics.median(whole):.1f} s "
        f"(median of {len(whole)}, {min(whole):.1f} to {max(whole):.1f})"
    )
    if not rounds:
        say("  a device's log does not tell its steps; the server's seconds:")
        for name in metrics[1].seconds:
            seconds = statistics.median(one.seconds[name] for one in metrics[1:])
            say(f"  {name:<38} {seconds:6.2f} s")
    for name, seconds in zip(PHASES, medians, strict=bool(rounds)):
        say(f"  {name:<38} {seconds:6.2f} s")
    ups, downs = (
        [
            (after[i][way] - before[i][way]) / 1e6
            for before, after in pairwise(counts)
            for i in range(len(DEVICES))
        ]
        for way in (0, 1)
    )
    share = len(metrics[1].clients) * 1e6
    say(
        f"  bytes per round and device: {statistics.median(ups):.2f} MB up "
        f"({metrics[1].bytes_up / share:.2f} arrays), "
        f"{statistics.median(downs):.2f} MB down "
        f"({metrics[1].bytes_down / share:.2f} arrays)"
    )
    table = Table(title=f"{model}: peak memory of a process, MB")
    table.add_column("process")
    table.add_column("MB", justify="right")
    for name in sorted(peaks):
        table.add_row(name, f"{peaks[name]:.0f}")
    Console().print(table)


def main(models: Iterable[str] = CASES) -> None:
    """Print the figures of models, by default all."""
    if shutil.which("ss") is None:
        raise SystemExit("needs ss of iproute2; run make system-deps")
    console = Console(highlight=False, soft_wrap=True)
    load = os.getloadavg()
    console.print(
        f"A fleet of {len(DEVICES)} devices over loopback, TLS and device keys, one "
        f"thread each, {os.cpu_count()} cores, load {load[0]:.1f} at the start"
    )
    for model in models:
        measure(model, console.print)


if __name__ == "__main__":
    main()
