"""The ClientApp of the installed FedBNN."""

from client_app.app import app

__all__ = ["app"]
