"""The dashboard's web server: fixed addresses, loopback by default."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, HTMLResponse

from fedbnn_core.reporting.dashboard.demo import Demo, demo_page
from fedbnn_core.reporting.dashboard.live_run import LiveRun
from fedbnn_core.reporting.report import render_page

__all__ = ["FILES", "create_app"]

FILES = (
    "best.safetensors",
    "config.json",
    "final.safetensors",
    "metrics.jsonl",
    "model.fbnn",
    "partition.npz",
    "report.html",
    "summary.json",
)
"""Files of the run directory that can be downloaded; nothing else can."""

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


def create_app(
    paths: Sequence[Path],
    *,
    demo: Demo | None = None,
    hosts: Sequence[str] | None = ("localhost", "127.0.0.1", "::1"),
) -> FastAPI:
    """Return the application.

    Parameters
    ----------
    paths : run directories; the first is followed, the others compared with.
    demo : the model to try at ``/demo``.
    hosts : names under which it answers; None accepts any. A web page elsewhere that
        has its own name resolve to this machine is refused by them.
    """
    run = LiveRun(paths)
    # FastAPI's documentation pages would load scripts from the network.
    app = FastAPI(
        docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )

    @app.middleware("http")
    async def guard(
        request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        if hosts is not None and _host_name(request) not in hosts:
            response = Response("unknown host name", 400)
        else:
            response = await answer(request)
        response.headers.update(_HEADERS)
        return response

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        return render_page(run.payload() | {"demo": demo is not None}, live=True)

    @app.get("/api/run")
    def whole_run() -> dict[str, Any]:
        return run.payload()

    @app.get("/api/rounds")
    def new_rounds(
        after: Annotated[int, Query(ge=0)] = 0, generation: int = 0
    ) -> dict[str, Any]:
        return run.news(after, generation)

    @app.get("/files/{name}")
    def file(name: str) -> FileResponse:
        path = run.directory / name
        # A link in the run directory must not lead out of it either.
        if name not in FILES or path.is_symlink() or not path.is_file():
            raise HTTPException(404)
        return FileResponse(path, filename=name)

    if demo is not None:
        _add_demo(app, demo)
    return app


def _add_demo(app: FastAPI, demo: Demo) -> None:
    page = demo_page(demo)

    @app.get("/demo", response_class=HTMLResponse)
    def show() -> str:
        return page

    @app.get("/api/demo/samples")
    def samples(seed: Annotated[int, Query(ge=0, le=2**31)] = 0) -> dict[str, Any]:
        return {"samples": demo.samples(seed)}

    @app.post("/api/demo/classify")
    async def classify(request: Request) -> dict[str, Any]:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > demo.input_bytes:
                raise HTTPException(413, f"expected {demo.input_bytes} bytes")
        if len(body) != demo.input_bytes:
            raise HTTPException(
                400, f"expected {demo.input_bytes} bytes, got {len(body)}"
            )
        return await run_in_threadpool(demo.classify, bytes(body))


def _host_name(request: Request) -> str | None:
    """Return the name that the request was sent to, without port and brackets."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return None
