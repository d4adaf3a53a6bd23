"""What a device costs that waits: CPU and memory of all its processes.

Two real devices in a fleet without a run, by the commands that an operator types. The
pauses between two looks for work grow while there is none, so the figures are taken
once they have stopped growing.
"""

import os
import time

import psutil

from benchmarks._site import running_fleet

DEVICES = ("camera", "robot")
SETTLE_SECONDS = 110.0
SECONDS = 120.0


def used(process: psutil.Process) -> tuple[float, float]:
    """Return CPU seconds and unshared megabytes of a process and those below it."""
    seconds = memory = 0.0
    for one in [process, *process.children(recursive=True)]:
        times = one.cpu_times()
        seconds += times.user + times.system
        memory += one.memory_full_info().uss / 2**20
    return seconds, memory


def main() -> None:
    """Print the figures of each device."""
    print(f"load {os.getloadavg()[0]:.1f} at the start, {os.cpu_count()} cores")
    with running_fleet(DEVICES) as site:
        time.sleep(SETTLE_SECONDS)
        processes = [psutil.Process(device.process.pid) for device in site.devices]
        before = [used(process) for process in processes]
        time.sleep(SECONDS)
        after = [used(process) for process in processes]
    for name, first, last in zip(DEVICES, before, after, strict=True):
        share = 100 * (last[0] - first[0]) / SECONDS
        print(f"{name}: {share:.2f} % of a core while it waits, {last[1]:.0f} MB")


if __name__ == "__main__":
    main()
