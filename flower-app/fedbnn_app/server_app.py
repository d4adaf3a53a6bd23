"""The ServerApp of the installed FedBNN."""

from server_app.app import app

__all__ = ["app"]
