"""A run as a live page, and a page to try its 1-bit model."""

from fedbnn_core.reporting.dashboard.server import create_app

__all__ = ["create_app"]
