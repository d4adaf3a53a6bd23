"""What coding a reply costs, and how far off one bit is.

CPU seconds of one core to encode and to decode a client's reply and the server's order.
Goal: a ResNet18 reply of one bit, both together, in less than 0.5 s. Then two operators
of one bit on the same updates, the mean of ten clients: the squared error as a share
of the update's. FedBAT's is S(d, a) with a = mean |d|, where its training starts, and
with the a of the smallest error.
"""

import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from fedbnn_core.arrays import Array, Arrays
from fedbnn_core.config import RunConfig
from fedbnn_core.methods import create_method
from fedbnn_core.wire.draws import uniform
from fedbnn_core.wire.one_bit import OneBit

REPEATS = 5
CLIENTS = 10
CASES = (("cnn4", (1, 28, 28)), ("resnet18", (3, 32, 32)))


def _changed(state: Arrays) -> Arrays:
    generator = np.random.default_rng(0)
    return {
        name: (array + 0.01 * generator.standard_normal(array.shape)).astype("f4")
        if array.dtype == np.float32
        else array
        for name, array in state.items()
    }


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Return the least CPU time of the whole process."""
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def _add_times(table: Table, model: str, shape: tuple[int, int, int]) -> None:
    for up, down in ((1, 8), (8, 4), (16, 16)):
        config = RunConfig.from_mapping(
            {"model": model, "uplink-bits": up, "downlink-bits": down}, complete=False
        )
        method = create_method(config, shape, 10)
        wire, state = method.wire, method.template.broadcast
        trained = _changed(state)
        order = wire.order(state, 0)
        received = wire.read_order(order, 0)
        reply = wire.reply(trained, received, round_index=0, client=0)
        sizes, weights = method.message_bytes, method.template.parameters
        rows: list[tuple[str, int, int, Callable[[], object], Callable[[], object]]] = [
            (
                *("reply", up, sizes.up),
                lambda w=wire, t=trained, r=received: w.reply(
                    t, r, round_index=0, client=0
                ),
                lambda w=wire, s=state, r=received, x=reply: w.read_reply(
                    x, state=s, received=r, round_index=0, client=0
                ),
            ),
            (
                *("order", down, sizes.down),
                lambda w=wire, s=state: w.order(s, 0),
                lambda w=wire, o=order: w.read_order(o, 0),
            ),
        ]
        for what, bits, size, encode, decode in rows:
            seconds = [_cpu_seconds(work) for work in (encode, decode)]
            table.add_row(
                *(model, what, str(bits), f"{8 * size / weights:.3f}"),
                *(f"{s:.3f}" for s in (*seconds, sum(seconds))),
            )


def _errors(updates: Array) -> list[float]:
    """Return the error of the mean by EDEN and by FedBAT's operator with two a."""
    mean = updates.mean(axis=0)
    coding = OneBit()
    eden = np.mean(
        [coding.decode(coding.encode(d, k), d.shape, k) for k, d in enumerate(updates)],
        axis=0,
    )

    def stochastic_sign(share: float) -> Array:
        decoded = []
        for k, d in enumerate(updates):
            alpha = share * np.abs(d).mean()
            positive = (1 + d / alpha) / 2 > uniform(1000 + k, d.size)
            decoded.append(np.where(positive, alpha, -alpha))
        result: Array = np.mean(decoded, axis=0)
        return result

    fedbat = [stochastic_sign(share) for share in (1, *np.arange(0.5, 4, 0.1))]
    errors = [float(np.square(found - mean).sum()) for found in (eden, *fedbat)]
    size = float(np.square(mean).sum())
    return [errors[0] / size, errors[1] / size, min(errors[1:]) / size]


def main() -> None:
    """Print both tables."""
    table = Table(title="CPU seconds of one message")
    for column in (
        "model",
        "message",
        "bits",
        "per weight",
        "encode",
        "decode",
        "both",
    ):
        table.add_column(column)
    for model, shape in CASES:
        _add_times(table, model, shape)
    errors = Table(title=f"Squared error of the mean of {CLIENTS} clients, shares")
    for column in ("updates", "EDEN", "FedBAT, a = mean |d|", "FedBAT, best a"):
        errors.add_column(column)
    generator = np.random.default_rng(1)
    common = generator.standard_normal(1 << 16)
    for name, own in (("alike (cosine 0.8)", 0.5), ("unlike (cosine 0.2)", 2.0)):
        noise = generator.standard_normal((CLIENTS, common.size))
        figures = _errors((common + own * noise).astype(np.float32))
        errors.add_row(name, *(f"{figure:.3f}" for figure in figures))
    console = Console()
    console.print(table)
    console.print(errors)


if __name__ == "__main__":
    main()
