"""Options of binary layers: wrong values are named."""

import pytest

from fedbnn_core.binary.options import BinaryOptions
from fedbnn_core.errors import ConfigError


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"activation": "dynamic"}, "static.*per-sample.*'dynamic'"),
        ({"rotation_start": "zero"}, "identity.*haar.*'zero'"),
    ],
)
def test_wrong_options_are_named(option: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        BinaryOptions(**option)  # type: ignore[arg-type]
