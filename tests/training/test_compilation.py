"""Compiled steps: what is compiled, where it is kept, and that it trains alike."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from fedbnn_core.binary import BinaryOptions
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.server.local import LocalFederation
from fedbnn_core.training.compilation import compile_cache, compile_steps

compiler = pytest.mark.skipif(
    not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))),
    reason="torch.compile needs a C++ compiler on a CPU",
)


def cnn4(bits: int = 32) -> torch.nn.Module:
    options = BinaryOptions(gradient_bits=bits)
    return build_model(ModelSpec("cnn4", (1, 16, 16), 3, options=options), seed=0)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "~/.cache/fedbnn/compiled"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/fedbnn/compiled"),
        ({"TORCHINDUCTOR_CACHE_DIR": "/own", "XDG_CACHE_HOME": "/c"}, "/own"),
    ],
)
def test_compiled_passes_are_kept_in_the_users_cache(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Path(compile_cache()) == Path(expected).expanduser()


def test_integer_steps_are_not_compiled_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = cnn4(bits=8)
    assert not compile_steps(model)
    assert model._compiled_call_impl is None
    assert "gradient-bits = 8" in caplog.text


@compiler
@pytest.mark.deploy
def test_a_compiled_federation_learns_what_an_eager_one_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    losses = {
        compiled: [
            metrics.train_loss
            for metrics in LocalFederation(
                clients=100,
                rounds=2,
                seed=1,
                clients_per_round=2,
                local_epochs=1,
                compile=compiled,
                gradient_bits=32,
            )
            .run()
            .history
        ]
        for compiled in (False, True)
    }
    assert any(tmp_path.rglob("*.so")), "nothing was compiled"
    # A sign of a sum near zero may differ.
    assert losses[True] == pytest.approx(losses[False], rel=0.05)
