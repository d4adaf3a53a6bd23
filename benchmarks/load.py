"""One server and 100 light devices: seconds, memory, CPU and lost messages per round.

The server is real, with TLS and device keys, and each device has its own key and
connection and looks for work as often as a real one. They do not train: one reply is
trained beforehand, and each device sends it with other numbers, so that no reply equals
another one. They run in one process beside the server, on the same cores.
"""

import io
import os
import statistics
import threading
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import psutil
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from benchmarks._light_device import LightDevice, LightThread
from benchmarks._site import MARKER, PROCESSES, Site, served_fleet
from fedbnn_core.config import RunConfig
from fedbnn_core.flower.processes import marked_processes
from fedbnn_core.messages import ARRAYS, METRICS, ROTATIONS, ReplyMetrics
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.wire.container import CONTAINER, pack, unpack

DEVICES = int(os.environ.get("FEDBNN_LOAD_DEVICES", "100"))
ROUNDS = 5
IDLE_SECONDS = float(os.environ.get("FEDBNN_LOAD_IDLE", "60"))
SETTLE_SECONDS = 70.0
"""Until a device without work has its longest pause."""
RUN = {"model": "cnn4", "train-limit": 2000, "test-limit": 1000}


class PreparedReply:
    """What all devices send: one trains, the others change its numbers a little."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrays: dict[str, dict[str, np.ndarray]] = {}
        self._metrics: dict[str, Any] = {}

    def __call__(self, device: LightDevice, message: Message) -> RecordDict:
        """Return a device's reply to an order."""
        with self._lock:
            if not self._arrays:
                self._train(device, message)
        number = int(message.content["config"]["round"])
        scale = np.float32(1 + 1e-6 * (1 + device.number + DEVICES * number))
        changed = {
            key: array * scale if array.dtype == np.float32 else array
            for key, array in self._arrays[ARRAYS].items()
        }
        metrics = self._metrics | {
            ReplyMetrics.PARTITION_ID: device.number,
            ReplyMetrics.ROUND: number,
        }
        return RecordDict(
            {
                ARRAYS: ArrayRecord({CONTAINER: Array(pack(changed))}),
                ROTATIONS: ArrayRecord(
                    {CONTAINER: Array(pack(self._arrays[ROTATIONS]))}
                ),
                METRICS: MetricRecord(metrics),
            }
        )

    def _train(self, device: LightDevice, message: Message) -> None:
        from client_app.app import app

        context = Context(
            run_id=message.metadata.run_id,
            node_id=device.node.node_id,
            node_config={"partition-id": device.number},
            state=RecordDict(),
            run_config=run_config(),
        )
        content = app(message, context).content
        for name, record in content.array_records.items():
            self._arrays[name] = {
                key: np.load(io.BytesIO(file), allow_pickle=False)
                for key, file in unpack(record[CONTAINER].data).items()
            }
        self._metrics.update(content[METRICS])


def run_config() -> dict[str, object]:
    """Return the run's settings as Flower hands them to a client app."""
    return dict(RunConfig.from_mapping(settings(), complete=False).to_mapping())


def settings() -> dict[str, object]:
    """Return what is set for the run."""
    return {
        **RUN,
        "num-server-rounds": ROUNDS,
        "clients-per-round": DEVICES,
        "num-partitions": DEVICES,
        "min-partition-size": 1,
        "quorum": 1.0,
        "local-epochs": 1,
        "client-threads": 1,
    }


def server_processes(folder: str) -> dict[str, psutil.Process]:
    """Return the server's processes by their kind."""
    found = {}
    for pid in marked_processes(MARKER, folder):
        try:
            process = psutil.Process(pid)
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        kind = next((n for part, n in PROCESSES.items() if part in words), None)
        if kind:
            found[kind] = process
    return found


def used(folder: str) -> dict[str, tuple[float, float]]:
    """Return CPU seconds and resident megabytes of each of the server's processes."""
    found = {}
    for kind, process in server_processes(folder).items():
        try:
            times = process.cpu_times()
            memory = process.memory_info().rss / 2**20
        except psutil.Error:
            continue
        found[kind] = times.user + times.system, memory
    return found


def idle(site: Site) -> None:
    """Print what the server needs while all devices wait."""
    time.sleep(SETTLE_SECONDS)
    before = used(site.folder)
    time.sleep(IDLE_SECONDS)
    after = used(site.folder)
    print(f"{DEVICES} waiting devices, % of a core over {IDLE_SECONDS:.0f} s:")
    for kind, (seconds, memory) in sorted(after.items()):
        share = 100 * (seconds - before.get(kind, (0.0, 0.0))[0]) / IDLE_SECONDS
        print(f"  {kind:<44} {share:5.1f} %  {memory:6.0f} MB")


def main() -> None:
    """Print the figures of 100 devices."""
    names = [f"light{i:03d}" for i in range(DEVICES)]
    print(f"load {os.getloadavg()[0]:.1f} at the start, {os.cpu_count()} cores")
    with served_fleet(names) as site:
        reply = PreparedReply()
        threads = [LightThread(LightDevice(site.bundle(n)), reply) for n in names]
        for thread in threads:
            thread.start()
        if IDLE_SECONDS:
            idle(site)
        run = site.start_run(**settings())
        ends: list[float] = [time.monotonic()]
        kept: dict[str, list[tuple[float, float]]] = defaultdict(list)
        while run.process.poll() is None:
            file = site.metrics_file()
            if file and file.read_bytes().count(b"\n") >= len(ends):
                ends.append(time.monotonic())
                for kind, figures in used(site.folder).items():
                    kept[kind].append(figures)
            time.sleep(0.05)
        for thread in threads:
            thread.ended.set()
        problems = [problem for thread in threads for problem in thread.problems]
        file = site.metrics_file()
        if file is None or run.process.returncode:
            print(*dict.fromkeys(problems), sep="\n")
            raise SystemExit("".join(line for _, line in run.lines))
        metrics = RunDirectory(file.parent).read_metrics()
    report(metrics, ends, kept)
    sent = sum(thread.answered for thread in threads)
    taken = sum(len(line.clients) for line in metrics)
    print(
        f"replies sent {sent}, aggregated {taken}, lost {sent - taken}; "
        f"calls of devices that failed {len(problems)}"
    )
    for problem in list(dict.fromkeys(problems))[:5]:
        print(f"  {problem[:300]}")


def report(
    metrics: list, ends: list[float], kept: dict[str, list[tuple[float, float]]]
) -> None:
    """Print the rounds and what each process of the server used in them."""
    whole = [after - before for before, after in pairwise(ends[1:])]
    one = metrics[-1]
    share = len(one.clients) * 1e6
    print(
        f"{len(metrics)} rounds of {len(one.clients)} devices: "
        f"{statistics.median(whole):.1f} s a round (median of {len(whole)}, "
        f"{min(whole):.1f} to {max(whole):.1f}; the first one, with the questions who "
        f"is there and the start of the run, {ends[1] - ends[0]:.1f} s); "
        f"{one.bytes_up / share:.2f} MB up, {one.bytes_down / share:.2f} MB down each"
    )
    for kind, figures in sorted(kept.items()):
        if len(figures) < 2:
            continue
        spent = [b[0] - a[0] for a, b in pairwise(figures)]
        memory = ", ".join(f"{mb:.0f}" for _, mb in figures)
        print(
            f"  {kind:<44} {statistics.median(spent):6.2f} CPU s a round, MB after "
            f"each round: {memory}"
        )


if __name__ == "__main__":
    main()
