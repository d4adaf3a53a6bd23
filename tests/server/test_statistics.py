"""Statistics of the served network against sums over all pixels."""

import numpy as np
import torch
import torch.nn.functional as F

from fedbnn_core.binary.model import deployed
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.server.statistics import estimate_statistics


def test_statistics_are_those_of_the_served_signs():
    model = deployed(build_model(ModelSpec("cnn4", (1, 28, 28), 10), seed=1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = torch.from_numpy(
        np.random.default_rng(0).normal(size=(3, 20, 1, 28, 28)).astype(np.float32)
    )
    estimate_statistics(model, batches)

    ones = F.pad(torch.where(batches >= 0, 1.0, -1.0).double(), (1,) * 4, value=1.0)
    signs = torch.where(model.convs[0].weight >= 0, 1.0, -1.0).double()
    sums = torch.stack([F.conv2d(batch, signs) for batch in ones])
    mean = sums.mean(dim=(1, 3, 4)).mean(dim=0)
    variance = sums.movedim(2, 1).flatten(2).var(dim=2).mean(dim=0)
    norm = model.norms[0]
    torch.testing.assert_close(norm.running_mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norm.running_var.double(), variance, rtol=1e-5, atol=0)

    assert not model.training
    assert all(norm.momentum == 0.1 for norm in model.norms)
    assert model.convs[0].options.gradient_bits == 32
    for name, value in model.state_dict().items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(value, before[name])
