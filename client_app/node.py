"""What a node's config says about its data."""

from collections.abc import Mapping
from typing import Any

__all__ = ["own_data_path"]


def own_data_path(node_config: Mapping[str, Any]) -> str:
    """Return where a device's own images are, or "" if it trains on a partition.

    `fedbnn device` says ``data``; ``data-path`` is the name that Flower's own examples
    use with ``flower-supernode --node-config``.
    """
    return str(node_config.get("data") or node_config.get("data-path") or "")
