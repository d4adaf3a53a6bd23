"""A run as one HTML page: self-contained, for the browser or a mail attachment."""

from fedbnn_core.reporting.report.page import render_page, write_report
from fedbnn_core.reporting.report.payload import report_payload, rounds_payload

__all__ = ["render_page", "report_payload", "rounds_payload", "write_report"]
