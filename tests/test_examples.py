"""The files in examples/ run and do what they say."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_own_network_packs_what_it_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = example("own_network", monkeypatch)
    module.main(epochs=1, width=8, output=str(tmp_path / "own.fbnn"))
    torch_score, packed_score = re.findall(r"(\d+\.\d+)% ?", capsys.readouterr().out)
    assert torch_score == packed_score
    assert (tmp_path / "own.fbnn").is_file()


def test_fifth_method_trains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example("fifth_method", monkeypatch).main(rounds=2, clients=3, images=300)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["round 1", "round 2"]


def test_fifth_method_pulls_clients_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """With lr * mu = 1 every step ends at the weights that were sent."""
    from fedbnn_core.config import RunConfig
    from fedbnn_core.data.batches import ClientData
    from fedbnn_core.training.local import LocalTask

    module = example("fifth_method", monkeypatch)
    monkeypatch.setattr(module, "MU", 10.0)
    config = RunConfig.from_mapping({"method": "fedavg"}, complete=False)
    method = module.FedProx(config, (1, 16, 16), 2)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 1, 16, 16), dtype=np.uint8)
    data = ClientData(images, np.arange(8) % 2, [0.5], [0.25])
    sent = method.template.broadcast
    task = LocalTask(0, 1, 0, seed=1, local_epochs=1, batch_size=4, lr=0.1)
    update = method.train(method.new_model(), sent, data, task)
    for name, _ in method.new_model().named_parameters():
        np.testing.assert_allclose(update.arrays[name], sent[name], atol=1e-6)
    moved = "norms.0.running_mean"
    assert not np.allclose(update.arrays[moved], sent[moved])
    assert torch.isfinite(torch.tensor(update.loss))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_examples_are_short_enough_to_copy(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 80
    assert path.name in (EXAMPLES / "README.md").read_text()
