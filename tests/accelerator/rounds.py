"""Client rounds and evaluations of one network on the pretended accelerator.

Run as a program with the network's name: prints one JSON object with what every method
did there, and FedBNN with 8-bit gradients as "fedbnn-8". The host computes the
layers of a network together, as the device does. The device cannot be unregistered, so
no test imports this.
"""

import json
import sys

import numpy as np
import torch
from numpy.typing import NDArray

from fedbnn_core.binary import devices
from fedbnn_core.choices import method_names
from fedbnn_core.config import RunConfig
from fedbnn_core.data.batches import ClientData
from fedbnn_core.methods import create_method
from fedbnn_core.methods.base import Method
from fedbnn_core.networks.state import load_arrays
from fedbnn_core.server.scoring import HeldOut, evaluate
from fedbnn_core.training.local import LocalTask
from tests.accelerator import pretended

BATCH, CLASSES, WIDTH = 4, 3, 4
VARIANTS = {"fedbnn-8": {"method": "fedbnn", "gradient-bits": 8}}
SHAPES = {"cnn4": (1, 16, 16)}
OTHERS = (3, 32, 32)


class Reply:
    def __init__(self, num_examples: int, arrays: dict) -> None:
        self.num_examples, self.arrays = num_examples, arrays

    def array(self, name: str) -> NDArray[np.float32]:
        return self.arrays[name]


def images(count: int, shape: tuple[int, int, int]):
    rng = np.random.default_rng(7)
    pixels = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
    return pixels, rng.integers(0, CLASSES, count)


def one_round(method: Method, batches: int, device: str, epochs: int = 1):
    """Return the update of one client, the launches and the waits."""
    shape = method.spec.input_shape
    model = method.new_model().to(device)
    scale = (0.5,) * shape[0]
    data = ClientData(*images(BATCH * batches, shape), scale, scale, device=device)
    task = LocalTask(
        round_index=3,
        num_rounds=10,
        partition_id=0,
        seed=1,
        local_epochs=epochs,
        batch_size=BATCH,
        lr=0.05,
    )
    broadcast = method.template.broadcast
    pretended.launches.clear()
    pretended.waits.clear()
    update = method.train(model, broadcast, data, task)
    return update, sum(pretended.launches.values()), dict(pretended.waits)


def score(method: Method, state, device: str) -> list[float]:
    shape = method.spec.input_shape
    model = method.evaluation_model().to(device)
    load_arrays(model, state)
    scale = (0.5,) * shape[0]
    held_out = HeldOut(
        *images(10, shape), scale, scale, num_classes=CLASSES, device=device
    )
    result = evaluate(model, held_out)
    return [result.accuracy, result.loss]


def report(network: str, name: str) -> dict:
    shape = SHAPES.get(network, OTHERS)
    config = RunConfig.from_mapping(
        {
            "model": network,
            "model-width": WIDTH,
            "rotation-iterations": 1,
            "gradient-bits": 32,  # 0 would take other steps on the host than there
        }
        | VARIANTS.get(name, {"method": name}),
        complete=False,
    )
    method = create_method(config, shape, CLASSES)
    on_host, _, _ = one_round(method, 2, "cpu")
    there, few, few_waits = one_round(method, 2, pretended.DEVICE)
    _, many, many_waits = one_round(method, 4, pretended.DEVICE)
    arrays = there.arrays | there.rotations
    expected = on_host.arrays | on_host.rotations
    result = method.aggregate([Reply(8, arrays)], method.template.broadcast)
    product = next(iter(result.candidates.values()))
    difference = max(
        float(np.abs(np.asarray(arrays[n], float) - np.asarray(a, float)).max())
        for n, a in expected.items()
    )
    return {
        "difference": difference,
        "same_names": arrays.keys() == expected.keys(),
        "losses": [there.loss, on_host.loss],
        "launches_per_step": (many - few) / 2,
        "waits": [few_waits, many_waits],
        "scores": [score(method, product, d) for d in ("cpu", pretended.DEVICE)],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    devices.LAYER_BY_LAYER = ()
    names = (*method_names(), *VARIANTS)
    print(json.dumps({name: report(sys.argv[1], name) for name in names}))
