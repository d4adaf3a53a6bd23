"""Whom a key belongs to: the server's own registry, not what a device says."""

import os
from collections.abc import Mapping
from pathlib import Path

from fedbnn_core.fleet.credentials import public_pem
from fedbnn_core.fleet.registry import Device, Fleet

__all__ = ["SERVED_FLEET", "claim_problem", "served_devices"]

SERVED_FLEET = "FEDBNN_SERVED_FLEET"
"""Variable by which `fedbnn fleet serve` tells its runs the fleet's folder."""


def served_devices(
    environment: Mapping[str, str] = os.environ,
) -> dict[bytes, Device] | None:
    """Return the devices of the fleet that is served, by their public key (PEM).

    None means that no fleet is served: in a simulation, or without TLS, a node is
    whoever it says it is.
    """
    folder = environment.get(SERVED_FLEET)
    if not folder:
        return None
    devices = Fleet.open(Path(folder)).devices()
    return {public_pem(device.public_key.encode()): device for device in devices}


def claim_problem(device: Device | None, partition_id: int) -> str:
    """Return why a node may not have a number, or nothing.

    Parameters
    ----------
    device : whom its key belongs to; None if the fleet does not know the key.
    partition_id : the number that it claims.
    """
    if device is None:
        return "its key does not belong to the fleet."
    if partition_id != device.partition_id:
        return (
            f"it says that it has number {partition_id}, its key belongs to number "
            f"{device.partition_id}. Start it with its own bundle."
        )
    return ""
