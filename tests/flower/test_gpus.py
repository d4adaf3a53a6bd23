"""Where simulated clients train: what torch and Ray find decides, not the PATH."""

import os

import pytest

from fedbnn_core.config import RunConfig
from fedbnn_core.errors import ConfigError
from fedbnn_core.flower.gpus import GPU, Machine, look_around, plan_clients

GB = 10**9
CPU_ONLY = Machine("cpu", "torch finds no accelerator")


def machine(*free: float, ray: float | None = None) -> Machine:
    gpus = [GPU(f"card {n}", int(size * GB)) for n, size in enumerate(free)]
    found = float(len(gpus)) if ray is None else ray
    return Machine("cuda", "card 0 is there and works", gpus, found)


def plan(device: str, found: Machine, *, need: float = 1.0, **more):
    config = RunConfig.from_mapping({"device": device}, complete=False)
    return plan_clients(
        config, found, client_bytes=int(need * GB), cpus_per_client=0, **more
    )


@pytest.mark.parametrize("device", ["auto", "cpu", "xpu"])
def test_without_a_usable_gpu_clients_get_none(device: str) -> None:
    made = plan(device, CPU_ONLY)
    assert made.gpus_per_client == 0.0
    assert made.environment == {}


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
def test_a_gpu_that_is_not_there_is_refused_with_the_reason(device: str) -> None:
    with pytest.raises(ConfigError, match=r"torch finds (no accelerator|0 GPUs)"):
        plan(device, CPU_ONLY)


def test_a_share_of_no_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="torch finds no accelerator"):
        plan("auto", CPU_ONLY, gpus_per_client=0.2)


@pytest.mark.parametrize(
    ("free", "need", "at_once"),
    [
        (80.0, 0.1, 5),  # memory for many, but more than five only wait
        (24.0, 4.0, 3),  # 0.9 * 24 = 21.6 GB for 4.6 GB each: three and the server
        (8.0, 2.0, 1),
        (4.0, 6.0, 1),  # too little in any case: one, and a warning
    ],
)
def test_memory_decides_how_many_train_at_once(free, need, at_once) -> None:
    made = plan("auto", machine(free), need=need)
    assert int(1.0 / made.gpus_per_client) == at_once
    assert f"{at_once} at once" in made.line
    assert ("too little" in made.line) == (need > free)


def test_several_gpus_are_all_used() -> None:
    made = plan("auto", machine(24.0, 24.0), need=4.0)
    assert "card 0 x 2, 6 at once" in made.line


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, "1"), ("4,7", "7"), ("GPU-a, GPU-b", "GPU-b")]
)
def test_a_numbered_gpu_is_the_only_visible_one(visible, expected) -> None:
    made = plan("cuda:1", machine(24.0, 8.0), need=2.0, visible=visible)
    assert made.environment["CUDA_VISIBLE_DEVICES"] == expected
    assert "card 1, 1 at once" in made.line


def test_a_number_beyond_the_gpus_is_refused() -> None:
    with pytest.raises(ConfigError, match="finds 2 GPUs here, numbered from 0"):
        plan("cuda:2", machine(8.0, 8.0))


def test_ray_without_gpus_means_the_cpu_and_says_so() -> None:
    made = plan("auto", machine(8.0, ray=0.0))
    assert made.gpus_per_client == 0.0
    assert made.environment == {"CUDA_VISIBLE_DEVICES": ""}
    assert "Ray finds no GPU" in made.line
    with pytest.raises(ConfigError, match="Ray finds no GPU"):
        plan("cuda", machine(8.0, ray=0.0))


def test_an_own_share_is_kept() -> None:
    made = plan("auto", machine(8.0), gpus_per_client=0.25)
    assert made.gpus_per_client == 0.25
    assert "4 at once" in made.line


@pytest.mark.parametrize("drivers", ["kept", "as if there were one"])
def test_nvidia_smi_on_the_path_is_no_gpu(tmp_path, monkeypatch, drivers) -> None:
    if drivers != "kept":
        # Every machine has /dev/null, so torch is asked.
        monkeypatch.setattr("fedbnn_core.flower.gpus._DRIVERS", ("null",))
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'GPU 0: a card that is not there'\n")
    fake.chmod(0o755)
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    found = look_around(dict(os.environ) | hidden | {"PATH": path})
    assert found.gpus == []
    assert plan("auto", found).gpus_per_client == 0.0
