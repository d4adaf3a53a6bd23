"""A fleet of devices: credentials, who belongs to it, and what a device holds."""

from fedbnn_core.fleet.bundle import Bundle, read_bundle, write_bundle
from fedbnn_core.fleet.registry import Device, Fleet, default_fleet_folder

__all__ = [
    "Bundle",
    "Device",
    "Fleet",
    "default_fleet_folder",
    "read_bundle",
    "write_bundle",
]
