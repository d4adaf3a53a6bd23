"""The exceptions that FedBNN raises for what a user or a client did."""

__all__ = [
    "ConfigError",
    "DataError",
    "FedBNNError",
    "FleetError",
    "FormatError",
    "ReplyError",
    "RunError",
]


class FedBNNError(Exception):
    """Base of all FedBNN errors; the message says what to do."""


class ConfigError(FedBNNError):
    """A config key is unknown or its value has the wrong type or range."""


class DataError(FedBNNError):
    """A dataset is missing, damaged or unsuitable."""


class FleetError(FedBNNError):
    """A fleet, its credentials or a connection in it is not as it must be."""


class FormatError(FedBNNError):
    """A model file is damaged, truncated or of an unknown version."""


class ReplyError(FedBNNError):
    """A client's reply cannot be used."""


class RunError(FedBNNError):
    """A run cannot start or go on."""
