"""Commands for microcontrollers: export --target, fit-check, run --target-ram."""

from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.errors import ConfigError, FedBNNError
from fedbnn_core.packed.encode import encode
from fedbnn_core.packed.mcu.project import NETWORK_FILES, TARGETS
from fedbnn_core.packed.mcu.sizes import chip_sizes
from tests.cli.test_packed import invoke
from tests.packed.graphs import everything

GRAPH = everything(16, np.random.default_rng(0), layer_norm=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.fbnn"
    path.write_bytes(encode(GRAPH))
    return path


@pytest.mark.parametrize("target", TARGETS)
def test_export_writes_a_project_and_says_what_it_needs(
    target: str, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    text = invoke("export", model, "--c", folder, "--target", target)
    names = {path.name for path in folder.iterdir()}
    assert names >= {*NETWORK_FILES, "main.c", "board.c", "Makefile"}
    sizes = chip_sizes(GRAPH)
    for size in (sizes.flash_bytes, sizes.ram_bytes, sizes.arena_bytes):
        assert f"{size:,}" in text
    assert f"{sizes.binary_macs:,} binary" in text
    (folder / "main.c").write_text("mine")
    assert "Kept your main.c" in invoke(
        "export", model, "--c", folder, "--target", target
    )


def test_bad_exports_write_nothing(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--c FOLDER"):
        invoke("export", model, "--target", "bare")
    with pytest.raises(FedBNNError, match="cortex-m, riscv, bare"):
        invoke("export", model, "--c", tmp_path / "x", "--target", "esp")
    assert not (tmp_path / "x").exists()


def test_fit_check_says_what_fits() -> None:
    text = invoke("fit-check", "--target-ram", "16k", "--target-flash", "128k")
    assert "cnn4 for 28 x 28 x 1 pixels" in text
    assert "It fits 16k of RAM and 128k of flash." in text
    with pytest.raises(ConfigError, match="What would fit: --int8-head at export"):
        invoke("fit-check", "--target-flash", "69k")
    assert "It fits 69k of flash" in invoke(
        "fit-check", "--target-flash", "69k", "--int8-head"
    )


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("method=fedavg", "float network"),
        ("model=convnext-tiny", "LAYERNORM"),
        ("colour=red", "unknown config key"),
    ],
)
def test_fit_check_refuses_what_has_no_chip(config: str, problem: str) -> None:
    with pytest.raises(FedBNNError, match=problem):
        invoke("fit-check", "-c", config)


def test_run_refuses_before_training() -> None:
    with pytest.raises(ConfigError, match=r"does not fit: it needs .* bytes of RAM"):
        invoke("run", "--target-ram", "2k")
