"""A dashboard that really listens, for a browser and for plain requests."""

import contextlib
import socket
import threading
import time

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="the dashboard needs uvicorn")

from fedbnn_core.reporting.dashboard import create_app  # noqa: E402

__all__ = ["serving"]


@contextlib.contextmanager
def serving(paths, **options):
    """Serve run directories on a free port; yield the address."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = create_app(paths, **options)
    config = uvicorn.Config(app, log_level="warning", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()
