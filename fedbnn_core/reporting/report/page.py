"""Put data, style and scripts into one HTML page that asks the network for nothing."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fedbnn_core.errors import RunError
from fedbnn_core.reporting.report.payload import report_payload

__all__ = [
    "DEFAULT_NAME",
    "assemble_page",
    "render_page",
    "report_asset",
    "write_report",
]

DEFAULT_NAME = "report.html"

_SCRIPTS = ("dom.js", "frame.js", "charts.js", "grids.js", "layers.js", "sections.js")


def write_report(paths: Sequence[Path], output: Path | None = None) -> Path:
    """Write the report of one or more runs and return its path.

    Parameters
    ----------
    paths : run directories; the first is shown in full, the others for comparison.
    output : the file; ``report.html`` in the first run directory by default.
    """
    payload = report_payload(paths)
    target = output or Path(paths[0]) / DEFAULT_NAME
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(render_page(payload), encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write the report to {target}: {error}") from error
    return target


def render_page(payload: Mapping[str, Any], *, live: bool = False) -> str:
    """Return the page; ``live`` lets it ask its own server for new rounds."""
    run = payload["runs"][0]
    config = run["config"]
    body = Template(report_asset("page.html")).substitute(
        noscript=html.escape(_headline(run))
    )
    scripts = [report_asset(name) for name in _SCRIPTS]
    if live:
        scripts.append(_text("fedbnn_core.reporting.dashboard", "live.js"))
    scripts.append(report_asset("main.js"))
    return assemble_page(
        title=f"{run['method_name']}: {config['model']} on {config['dataset']}",
        body=body,
        styles=[report_asset("style.css")],
        scripts=scripts,
        data={**payload, "live": live},
        connect=live,
    )


def assemble_page(
    *,
    title: str,
    body: str,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, Any],
    connect: bool,
) -> str:
    """Return an HTML document whose policy allows these scripts and styles alone.

    Parameters
    ----------
    data : what the scripts find in the element ``data``.
    connect : whether the page may send requests to where it came from.
    """
    style, script = "\n".join(styles), "\n".join(scripts)
    policy = [
        "default-src 'none'",
        f"style-src '{_digest(style)}'",
        f"script-src '{_digest(script)}'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if connect:
        policy.append("connect-src 'self'")
    # "<" would let a class name end the script element.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Template(report_asset("document.html")).substitute(
        title=html.escape(title),
        policy="; ".join(policy),
        style=style,
        script=script,
        body=body,
        data=content.replace("<", "\\u003c"),
    )


def _headline(run: Mapping[str, Any]) -> str:
    """Return the result in words, for readers without scripts."""
    summary = run["summary"]
    if summary is None or "test_accuracy" not in summary:
        done = len(run["rounds"]["round"])
        return f"{done} of {run['num_rounds']} rounds are done."
    return (
        f"Test accuracy {100 * summary['test_accuracy']:.2f} % after "
        f"{summary['rounds']} rounds (best round {summary['best_round']})."
    )


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def report_asset(name: str) -> str:
    """Return a file of the report's page: its style, a script or a piece of HTML."""
    return _text("fedbnn_core.reporting.report", name)


def _text(package: str, name: str) -> str:
    path = resources.files(package).joinpath("assets", name)
    return path.read_text(encoding="utf-8")
