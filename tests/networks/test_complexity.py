"""Counts against the paper's figures and against sums written out by hand."""

import json

import pytest
import torch
from typer.testing import CliRunner

from fedbnn_core.binary.layer import RotatedBinaryConv2d
from fedbnn_core.cli import app
from fedbnn_core.cli.complexity import JSON_FIGURES
from fedbnn_core.errors import ConfigError
from fedbnn_core.networks import ModelSpec, build_model
from fedbnn_core.networks.complexity import (
    INPUTS,
    ROWS,
    Complexity,
    complexity_of,
    matched_width,
    model_sizes,
    spec_for,
)

# FLOPs real and FedBNN, MB real, FedBNN and honest, counted outside this code.
FIGURES = {
    ("cnn4", "fmnist"): (2.02107e7, 3.48460e5, 1.563520, 0.048860, 0.0625),
    ("cnn4", "svhn"): (3.00810e7, 5.18638e5, 1.596544, 0.049892, 0.0933),
    ("resnet10", "cifar10"): (5.06855e8, 1.22168e7, 19.617064, 0.61303, 0.6659),
    ("resnet18", "tiny-imagenet"): (4.44334e9, 9.05210e7, 45.089824, 1.40906, 1.8545),
    ("resnet18", "femnist"): (9.13398e8, 1.84110e7, 44.806648, 1.40021, 1.5713),
    ("convnext-tiny", "cifar10"): (2.90923e9, 5.94337e7, 111.639976, 3.48875, 4.1033),
}
OVERHEAD = {
    ("cnn4", "fmnist"): 1.05,
    ("cnn4", "svhn"): 1.07,
    ("resnet10", "cifar10"): 0.56,
    ("resnet18", "tiny-imagenet"): 0.56,
    ("resnet18", "femnist"): 0.56,
    ("convnext-tiny", "cifar10"): 0.28,
}


@pytest.fixture(scope="module")
def counted() -> dict[tuple[str, str], Complexity]:
    return {row: complexity_of(spec_for(*row)) for row in ROWS}


def test_all_six_rows_are_there() -> None:
    assert set(ROWS) == set(FIGURES)


@pytest.mark.parametrize("row", ROWS)
def test_figures_reproduce_the_verification_table(
    row: tuple[str, str], counted: dict[tuple[str, str], Complexity]
) -> None:
    found, wanted = counted[row], FIGURES[row]
    assert found.flops_real == pytest.approx(wanted[0], rel=3e-6)
    assert found.flops_fedbnn_paper == pytest.approx(wanted[1], rel=3e-6)
    assert found.memory_real_mb == pytest.approx(wanted[2], abs=5e-7)
    assert found.memory_fedbnn_paper_mb == pytest.approx(wanted[3], abs=6e-6)
    assert found.memory_fedbnn_honest_mb == pytest.approx(wanted[4], abs=5e-5)
    assert round(found.overhead_percent, 2) == OVERHEAD[row]


def test_cnn4_by_hand() -> None:
    """Fashion-MNIST: maps of 28, 14, 7 and 3 pixels, 256 features, 10 classes."""
    multiply_adds = (
        9 * 1 * 32 * 28 * 28
        + 9 * 32 * 64 * 14 * 14
        + 9 * 64 * 128 * 7 * 7
        + 9 * 128 * 256 * 3 * 3
    )
    found = complexity_of(spec_for("cnn4", "fmnist"))
    assert found.flops_real == found.binary_ops == 2 * multiply_adds
    assert found.flops_float_convs == 0
    assert found.flops_left == found.flops_head == 2 * 2560
    assert found.total_params == 387_360 + 2 * (32 + 64 + 128 + 256) + 2560


def test_the_papers_resnet10_flops_need_a_miscounted_convolution(
    counted: dict[tuple[str, str], Complexity],
) -> None:
    """Note a: 8/9 of one 64->64 3x3 convolution at 32x32 is missing in the paper."""
    lost = 2 * 8 * 64 * 64 * 32 * 32
    found = counted["resnet10", "cifar10"]
    assert f"{found.flops_real - lost:.2e}" == "4.40e+08"
    assert f"{found.flops_fedbnn_paper - lost / 58:.2e}" == "1.11e+07"


def test_the_papers_convnext_flops_need_a_convolution_counted_twice(
    counted: dict[tuple[str, str], Complexity],
) -> None:
    """Note b: one 96->384 pointwise convolution at 32x32 is there twice."""
    twice = 2 * 96 * 384 * 32 * 32
    found = counted["convnext-tiny", "cifar10"]
    assert f"{found.flops_real + twice:.2e}" == "2.98e+09"
    assert f"{found.flops_fedbnn_paper + twice / 58:.2e}" == "6.07e+07"


def test_the_twin_asked_for_does_not_matter() -> None:
    spec = spec_for("cnn4", "svhn")
    assert complexity_of(ModelSpec(**vars(spec) | {"binary": False})) == complexity_of(
        spec
    )


@pytest.mark.parametrize(
    ("model", "dataset", "width", "flops", "memory"),
    [
        ("resnet10", "cifar10", 10, 1.284e7, 0.4862),
        ("resnet10", "cifar10", 11, 1.548e7, 0.5873),
        ("resnet18", "tiny-imagenet", 9, 8.958e7, 0.9479),
        ("resnet18", "tiny-imagenet", 11, 1.3328e8, 1.3981),
    ],
)
def test_reduced_widths_cost_what_the_paper_compares(
    model: str, dataset: str, width: int, flops: float, memory: float
) -> None:
    spec = ModelSpec(model, *INPUTS[dataset], width=width)
    found = complexity_of(spec)
    assert found.flops_real == pytest.approx(flops, rel=4e-4)
    assert found.memory_real_mb == pytest.approx(memory, abs=6e-5)


@pytest.mark.parametrize(
    ("model", "dataset", "by", "width"),
    [
        ("resnet10", "cifar10", "flops", 10),
        ("resnet10", "cifar10", "memory", 11),
        ("resnet18", "tiny-imagenet", "flops", 9),
        ("resnet18", "tiny-imagenet", "memory", 11),
    ],
)
def test_matched_widths_are_those_of_the_paper(
    model: str, dataset: str, by: str, width: int
) -> None:
    assert matched_width(spec_for(model, dataset), by=by) == width


def test_wrong_questions_about_widths_are_errors() -> None:
    with pytest.raises(ConfigError, match="resnet10 or resnet18"):
        matched_width(spec_for("cnn4", "fmnist"), by="flops")
    with pytest.raises(ConfigError, match=r"'flops' or 'memory'.*'time'"):
        matched_width(spec_for("resnet10", "cifar10"), by="time")


def test_an_unknown_dataset_is_named_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"'mnist'.*fmnist.*femnist"):
        spec_for("cnn4", "mnist")


def test_sizes_of_cnn4() -> None:
    """387,360 bits, 2,560 head and 4 * 480 norm numbers, 4 batch counters."""
    spec = ModelSpec("cnn4", (1, 28, 28), 10)
    sizes = model_sizes(build_model(spec))
    others = 2560 + 4 * 480
    assert sizes.binary_weights == 387_360
    assert sizes.one_bit_bytes == 387_360 // 8 + 4 * others
    assert sizes.float32_bytes == 4 * (387_360 + others) + 4 * 8
    assert sizes.ratio == pytest.approx(sizes.float32_bytes / sizes.one_bit_bytes)


def test_float32_size_is_that_of_the_float_twins_state() -> None:
    spec = ModelSpec("resnet10", (3, 16, 16), 10, width=8)
    twin = build_model(ModelSpec(**vars(spec) | {"binary": False}))
    state = twin.state_dict().values()
    shipped = sum(value.numel() * value.element_size() for value in state)
    assert model_sizes(build_model(spec)).float32_bytes == shipped
    assert model_sizes(twin).float32_bytes == shipped
    assert model_sizes(twin).binary_weights == 0


def test_bits_fill_whole_bytes_and_a_scale_is_kept() -> None:
    layer = torch.nn.Sequential(RotatedBinaryConv2d(1, 3, 3, scale=True))
    sizes = model_sizes(layer)
    assert sizes.one_bit_bytes == 4 + 4 * 3  # 27 bits and three scales
    assert sizes.float32_bytes == 4 * 27


def test_json_lists_the_rows_by_the_agreed_keys() -> None:
    result = CliRunner().invoke(app, ["complexity", "--model", "cnn4", "--json"])
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [(row["model"], row["dataset"]) for row in rows] == list(ROWS[:2])
    for row in rows:
        assert list(row) == [
            "model",
            "dataset",
            "w_params",
            "r_params",
            "overhead_percent",
            "flops_real",
            "flops_fedbnn_paper",
            "memory_real_mb",
            "memory_fedbnn_paper_mb",
            "memory_fedbnn_honest_mb",
        ]
    assert rows[0]["w_params"] == 387_360
    assert rows[0]["r_params"] == 4_070
    assert len(JSON_FIGURES) == 8


def test_a_pair_that_the_paper_lacks_is_counted() -> None:
    command = ["complexity", "--model", "resnet18", "--dataset", "cifar100", "--json"]
    (row,) = json.loads(CliRunner().invoke(app, command).stdout)
    assert row["flops_real"] == pytest.approx(1.11084e9, rel=5e-6)
    assert row["memory_real_mb"] == pytest.approx(44.8846, abs=5e-5)


def test_the_tables_fit_and_explain_where_the_paper_differs() -> None:
    result = CliRunner().invoke(app, ["complexity"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert "…" not in result.stdout
    for text in ("27,751,392", "4.1033", "(a)", "4.40e8 and 1.11e7", "2.98e9"):
        assert text in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "vgg"], "unknown model 'vgg'; choose one of cnn4"),
        (["--dataset", "mnist"], "unknown dataset 'mnist'; choose one of fmnist"),
        (["--dataset", "cifar100"], "add --model"),
    ],
)
def test_unknown_names_are_errors(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["complexity", *options])
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_a_dataset_like_one_of_the_papers_is_known() -> None:
    def figures(dataset: str) -> dict[str, object]:
        result = CliRunner().invoke(app, ["complexity", "--dataset", dataset, "--json"])
        assert result.exit_code == 0, result.output
        (row,) = json.loads(result.stdout)
        assert row.pop("dataset") == dataset
        return row

    assert figures("fmnist-mini") == figures("fmnist")
