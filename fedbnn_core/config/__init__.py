"""The one configuration of a run and where its defaults come from."""

from fedbnn_core.config.defaults import UNNAMED, Value, default_file, default_mapping
from fedbnn_core.config.run_config import CHANGEABLE, RunConfig

__all__ = [
    "CHANGEABLE",
    "UNNAMED",
    "RunConfig",
    "Value",
    "default_file",
    "default_mapping",
]
