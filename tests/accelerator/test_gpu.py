"""On a real GPU: `pytest -m gpu -s tests/accelerator` runs this and prints figures."""

import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedbnn_core.binary import Sharpness, begin_epoch, begin_round
from fedbnn_core.choices import MODELS
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.server.local import LocalFederation
from fedbnn_core.training.local import prefer_channels_last
from fedbnn_core.training.memory import training_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
SHAPE, BATCH = (3, 32, 32), 64


def step_of(name: str, binary: bool, device: str):
    """Return a function that does one training step."""
    spec = ModelSpec(name, SHAPE, 10, binary=binary)
    model = prefer_channels_last(build_model(spec, seed=0)).to(device).train()
    begin_round(model)
    begin_epoch(model, Sharpness.at(0, 10, 0, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=device != "cpu")
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(BATCH, *SHAPE, generator=generator).to(device)
    labels = torch.randint(10, (BATCH,), generator=generator).to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_never_waits_and_keeps_to_its_memory(name, binary, capsys) -> None:
    step = step_of(name, binary, "cuda")
    step()  # libraries choose their kernels
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        started = time.perf_counter()
        for _ in range(10):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - started) * 100
    peak = torch.cuda.max_memory_allocated()
    spec = ModelSpec(name, SHAPE, 10, binary=binary)
    estimate = training_bytes(lambda: build_model(spec), SHAPE, batch_size=BATCH)
    with capsys.disabled():
        kind = "binary" if binary else "float"
        print(
            f"\n{torch.cuda.get_device_name()}, {name} {kind}: {milliseconds:.1f} ms a "
            f"step, peak {peak / 1e6:.0f} MB, estimated {estimate / 1e6:.0f} MB"
        )
    assert peak <= 1.2 * estimate


@pytest.mark.parametrize("name", MODELS)
def test_the_first_loss_is_that_of_the_cpu(name) -> None:
    losses = [float(step_of(name, True, device)()) for device in ("cpu", "cuda")]
    # A sign of a float sum near zero may differ, so not to the last bits.
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_a_federation_learns_as_on_the_cpu() -> None:
    accuracies = {
        device: [
            LocalFederation(clients=10, rounds=5, seed=seed, device=device)
            .run()
            .summary.test_accuracy
            for seed in (1, 2, 3)
        ]
        for device in ("cpu", "cuda")
    }
    print(accuracies)
    spread = np.std(accuracies["cpu"]) + np.std(accuracies["cuda"])
    gap = abs(np.mean(accuracies["cpu"]) - np.mean(accuracies["cuda"]))
    assert gap <= max(0.03, 3 * spread)
