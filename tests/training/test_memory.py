"""The estimate of a client's memory against what a real step on the CPU holds."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks

from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.training.memory import training_bytes

SHAPE = (3, 32, 32)


def held_by_a_real_step(model: torch.nn.Module, batch: int) -> int:
    """Bytes of all memory blocks that are saved for backward, each once."""
    blocks: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        blocks.setdefault(storage.data_ptr(), storage)
        return tensor

    with warnings.catch_warnings(), saved_tensors_hooks(note, lambda t: t):
        warnings.simplefilter("ignore")
        loss = F.cross_entropy(
            model(torch.randn(batch, *SHAPE)), torch.zeros(batch, dtype=torch.int64)
        )
    own = {t.untyped_storage().data_ptr() for t in model.state_dict().values()}
    held = sum(b.nbytes() for number, b in blocks.items() if number not in own)
    del loss
    return held


@pytest.mark.parametrize("name", ["cnn4", "resnet10"])
@pytest.mark.parametrize("binary", [True, False])
def test_the_estimate_covers_a_real_step_and_not_much_more(name, binary) -> None:
    spec = ModelSpec(name, SHAPE, 10, binary=binary)
    estimate = training_bytes(lambda: build_model(spec), SHAPE, batch_size=16)
    model = build_model(spec).train()
    weights = 4 * sum(p.numel() for p in model.parameters())
    held = held_by_a_real_step(model, 16) + 2 * weights
    assert held < estimate < 2.5 * held


def test_the_estimate_grows_with_the_batch_and_with_momentum() -> None:
    spec = ModelSpec("cnn4", SHAPE, 10, binary=True)

    def estimate(**kwargs) -> int:
        return training_bytes(lambda: build_model(spec), SHAPE, **kwargs)

    small, large = (estimate(batch_size=n) for n in (32, 64))
    larger = estimate(batch_size=96)
    assert larger - large == pytest.approx(large - small, rel=0.01)
    assert estimate(batch_size=32, momentum=True) > small
