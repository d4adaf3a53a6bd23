"""Combine ten ConvNeXt-Tiny replies: time beside a plain sum, and peak memory.

The plain sum adds up the same arrays, weighted, in float32 with numpy. The server
averages in float64. In a round that is evaluated it also standardizes and rotates
every binary weight of every reply, which takes the number of operations printed.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedbnn_core.aggregation.mean import mean_array, normalized_weights
from fedbnn_core.arrays import Arrays
from fedbnn_core.config import RunConfig
from fedbnn_core.methods import create_method
from fedbnn_core.server.reply import Reply

REPLIES = 10
REPEATS = 5


def make_replies(arrays: Arrays, rotations: Arrays) -> list[Reply]:
    """Return replies of random weights and random orthogonal matrices."""
    generator = np.random.default_rng(0)
    replies = []
    for client in range(REPLIES):
        weights = {
            name: generator.standard_normal(array.shape, dtype=np.float32)
            if array.dtype == np.float32
            else array
            for name, array in arrays.items()
        }
        turned = {
            name: np.linalg.qr(generator.normal(size=r.shape))[0].astype(np.float32)
            for name, r in rotations.items()
        }
        replies.append(Reply(client, 100 + client, weights | turned))
    return replies


def plain_sum(replies: list[Reply]) -> Arrays:
    """Return the weighted sum of all arrays in float32, as simply as it goes."""
    weights = [np.float32(weight) for weight in normalized_weights(replies)]
    sums = {}
    for name, first in replies[0].arrays.items():
        total = np.zeros(first.shape, np.float32)
        for reply, weight in zip(replies, weights, strict=True):
            total += weight * reply.arrays[name]
        sums[name] = total
    return sums


def mean_only(replies: list[Reply], names: Arrays) -> Arrays:
    """Return the float64 mean on one processor."""
    weights = normalized_weights(replies)
    return {
        name: mean_array([reply.array(name) for reply in replies], weights)
        for name in names
    }


def rotation_operations(rotations: Arrays, arrays: Arrays) -> int:
    """Count the products and sums of R1^T X R2 over all filters of all replies."""
    names = [name.removesuffix(".r1") for name in rotations if name.endswith(".r1")]
    return REPLIES * sum(
        2
        * arrays[f"{name}.weight"].size
        * (len(rotations[f"{name}.r1"]) + len(rotations[f"{name}.r2"]))
        for name in names
    )


def anonymous_bytes() -> int:
    """Return the memory of this process that no file stands for."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell RssAnon")


def peak_extra_bytes(work: Callable[[], object]) -> int:
    """Return how far memory rises while ``work`` runs."""
    before = peak = anonymous_bytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return peak - before


def main() -> None:
    """Print times, ratios and memory."""
    config = RunConfig.from_mapping({"model": "convnext-tiny"}, complete=False)
    method = create_method(config, (3, 64, 64), 200)
    arrays = method.template.broadcast
    rotations = method.template.rotations
    replies = make_replies(arrays, rotations)
    model_bytes = sum(array.nbytes for array in arrays.values())

    def combine_and_score() -> None:
        result = method.aggregate(replies, arrays)
        for name in result.candidates:
            assert result.candidates[name]

    # First of all: later, memory that was freed would be used again unseen.
    extra = peak_extra_bytes(combine_and_score)
    jobs: dict[str, Callable[[], object]] = {
        "plain float32 sum": lambda: plain_sum(replies),
        "float64 mean, one processor": lambda: mean_only(replies, arrays),
        "round without evaluation": lambda: method.aggregate(replies, arrays),
        "round with evaluation: mean, w_R": lambda: method.aggregate(
            replies, arrays
        ).candidates["rotated"],
    }
    wall: dict[str, list[float]] = {name: [] for name in jobs}
    cpu: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(REPEATS):
        for name, job in jobs.items():
            started = time.perf_counter(), time.process_time()
            job()
            wall[name].append(time.perf_counter() - started[0])
            cpu[name].append(time.process_time() - started[1])
    size = sum(array.size for array in arrays.values()) / 1e6
    print(
        f"{REPLIES} ConvNeXt-Tiny replies, {size:.1f} M values each; best of {REPEATS}"
    )
    operations = rotation_operations(rotations, arrays)
    print(f"  the rotations take {operations:.1e} operations")
    base = next(iter(jobs))
    for name in jobs:
        print(
            f"  {name:32} {min(wall[name]):6.2f} s"
            f"  {min(wall[name]) / min(wall[base]):5.2f}x"
            f"   processor {min(cpu[name]):6.2f} s"
            f"  {min(cpu[name]) / min(cpu[base]):5.2f}x"
        )
    print(
        f"  peak extra memory, evaluated states included: {extra / 1e6:.0f} MB = "
        f"{extra / model_bytes:.2f} model sizes"
    )


if __name__ == "__main__":
    main()
