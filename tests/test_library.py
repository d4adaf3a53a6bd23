"""The public names of `fedbnn_core`, and the README's example."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedbnn_core as fb

ROOT = Path(__file__).parents[1]


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_every_name_is_there() -> None:
    assert sorted(fb.__all__) == fb.__all__
    assert set(fb.__all__) <= set(dir(fb))
    for name in fb.__all__:
        assert getattr(fb, name) is not None, name
    assert fb.BinaryConv2d is fb.RotatedBinaryConv2d
    with pytest.raises(AttributeError, match="no attribute 'fits'"):
        fb.fits  # noqa: B018


@pytest.mark.parametrize(
    "use", ["fb.__all__", "dir(fb)", "fb.PackedModel", "fb.load_dataset('fmnist-mini')"]
)
def test_what_needs_no_torch_does_not_load_it(use: str) -> None:
    heavy = "{'torch', 'flwr', 'ray', 'scipy', 'matplotlib'}"
    code = f"import sys, fedbnn_core as fb\n{use}\nprint({heavy} & set(sys.modules))"
    assert run(code) == "set()"


def test_import_alone_loads_no_room() -> None:
    code = (
        "import sys, fedbnn_core\n"
        "print([m for m in sys.modules if m.startswith('fedbnn_core.')])"
    )
    assert run(code) == "[]"


def test_a_missing_package_is_named_with_the_extra() -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nimport fedbnn_core as fb\n"
        "try: fb.fit\nexcept ImportError as error: print(error)"
    )
    assert "fit needs torch, which is not installed; install fedbnn[device]" in (
        run(code)
    )


def readme_example() -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (example,) = [block for block in blocks if "import fedbnn_core as fb" in block]
    return str(example)


def test_the_example_in_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = readme_example()
    settings = "rounds=1, train_limit=400, test_limit=200, local_epochs=1"
    for large, small in (("epochs=5", "epochs=1"), ("rounds=5", settings)):
        assert large in code
        code = code.replace(large, small)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102
    data = fb.load_dataset("fmnist-mini")
    labels = fb.PackedModel.load("model.fbnn").predict(data.x_test)
    score = fb.evaluate(names["net"], data)  # type: ignore[arg-type]
    assert np.mean(labels == data.y_test) == pytest.approx(score.accuracy, abs=1e-9)
