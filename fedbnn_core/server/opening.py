"""What a run demands before it starts or goes on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbnn_core.config import RunConfig
from fedbnn_core.errors import ConfigError, RunError
from fedbnn_core.methods import method_class, method_names
from fedbnn_core.methods.base import Method

__all__ = ["changes_since", "refuse_unclippable"]


def refuse_unclippable(config: RunConfig, method: Method) -> None:
    """Refuse what shortens updates if the method's replies are not weights."""
    if method.replies_with_state:
        return
    others = ", ".join(n for n in method_names() if method_class(n).replies_with_state)
    if config.privacy != "none":
        raise ConfigError(
            f"method {config.method!r} has no private mode; set privacy to 'none' or "
            f"method to one of {others}"
        )
    if config.robust == "clip":
        raise ConfigError(
            f"method {config.method!r} sends no weights that robust = 'clip' could "
            "shorten; set robust to 'median' or 'trimmed-mean', or method to one of "
            f"{others}"
        )


def changes_since(
    stored: Mapping[str, Any], own: Mapping[str, Any], directory: Path
) -> list[str]:
    """Return notes on other versions; refuse another number of clients.

    Parameters
    ----------
    stored : the run's description when it was started.
    own : the same of the run that would go on.
    directory : where the run is, for the message.
    """
    clients = own["num_partitions"]
    if stored.get("num_partitions", clients) != clients:
        before = stored["num_partitions"]
        raise RunError(
            f"{directory} was started with {before} clients, now there are {clients}; "
            "use `fedbnn resume`, or `flwr run` with "
            f"--federation-config 'num-supernodes={before}'"
        )
    return [
        f"The run was started with {name} {stored[name]} and goes on with {own[name]}: "
        "its result may differ from that of a whole run"
        for name in ("fedbnn_version", "torch_version")
        if stored.get(name, own[name]) != own[name]
    ]
