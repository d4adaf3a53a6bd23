"""The federated methods: each module here is one of them.

A method says how a client trains and what it sends back, and how the server aggregates
the replies. A further method is one more module with a class named ``METHOD``.
"""

import importlib
from typing import TYPE_CHECKING

from fedbnn_core.choices import method_names
from fedbnn_core.errors import ConfigError

if TYPE_CHECKING:
    from fedbnn_core.config import RunConfig
    from fedbnn_core.methods.base import Method

__all__ = ["create_method", "method_class", "method_names"]


def method_class(name: str) -> "type[Method]":
    """Return the class of the method of that name."""
    if name not in method_names():
        raise ConfigError(f"unknown method {name!r}; choose one of {method_names()}")
    found: type[Method] = importlib.import_module(f"{__name__}.{name}").METHOD
    return found


def create_method(
    config: "RunConfig", input_shape: tuple[int, int, int], num_classes: int
) -> "Method":
    """Return the configured method for images of a shape and a number of classes."""
    return method_class(config.method)(config, input_shape, num_classes)
