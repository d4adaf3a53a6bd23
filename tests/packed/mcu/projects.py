"""Exported projects that the tests build and run, and networks for them."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedbnn_core.binary.model import deployed
from fedbnn_core.data.loading import load_dataset
from fedbnn_core.export.pack import pack
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.packed.graph import Graph


def need(*tools: str) -> None:
    """Skip the test unless all tools are installed."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (make system-deps installs it)")


def random_network(spec: ModelSpec, *, int8_head: bool = False) -> Graph:
    """Return a packed network with random weights and batch norms of either sign."""
    model = deployed(build_model(spec, seed=1))
    generator = torch.Generator().manual_seed(2)

    def normal(size: int, deviation: float) -> torch.Tensor:
        return deviation * torch.randn(size, generator=generator)

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                size = module.num_features
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.copy_(normal(size, 3))
                module.running_var.copy_(5 + 20 * torch.rand(size, generator=generator))
                module.weight.copy_(normal(size, 1))
                module.bias.copy_(normal(size, 0.3))
    return pack(
        model,
        class_names=[f"class {i}" for i in range(spec.num_classes)],
        mean=[0.2860],
        std=[0.3530],
        input_shape=spec.input_shape,
        int8_head=int8_head,
    )


def test_images(graph: Graph, count: int) -> np.ndarray:
    """Return images of the embedded test set, or random ones of another shape."""
    if graph.input_shape == (28, 28, 1):
        images = load_dataset("fmnist-mini").x_test
        return np.ascontiguousarray(np.asarray(images).reshape(-1, 28, 28, 1)[:count])
    rng = np.random.default_rng(4)
    return rng.integers(0, 256, (count, *graph.input_shape), dtype=np.uint8)


test_images.__test__ = False  # type: ignore[attr-defined]


def run_project(
    folder: Path, images: np.ndarray, classes: int, *command: str
) -> tuple[np.ndarray, dict[str, str]]:
    """Build and run a project on images; return its logits and what it printed."""
    (folder / "images.raw").write_bytes(images.tobytes())
    environment = os.environ | {"UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    done = subprocess.run(
        ["make", "-s", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    raw = (folder / "logits.raw").read_bytes()
    lines = done.stdout.splitlines() + done.stderr.splitlines()
    printed = dict(line.split(": ", 1) for line in lines if ": " in line)
    return np.frombuffer(raw, np.float32).reshape(-1, classes), printed
