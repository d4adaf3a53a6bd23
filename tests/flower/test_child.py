"""The environment that Flower's processes get."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fedbnn_core.flower.child import flower_environment, loopback_exemption

pytest.importorskip("httpx")


@pytest.fixture
def say():
    """Return a function that starts a server which answers with a word."""
    servers = []

    def start(word):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Length", str(len(word)))
                self.end_headers()
                self.wfile.write(word.encode())

            def log_message(self, *arguments):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("spelling", ["no_proxy", "NO_PROXY"])
def test_loopback_never_goes_through_a_proxy(say, tmp_path, monkeypatch, spelling):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # What a device's owner is told to set, and what ends up in front of loopback.
    monkeypatch.setenv(spelling, "fleet.example.org")
    proxy, target = say("proxy"), say("target")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, proxy)
    ask = "import httpx, sys; print(httpx.get(sys.argv[1]).text, end='')"
    command = [sys.executable, "-c", ask]
    done = [
        subprocess.run(
            [*command, url],
            env=flower_environment(tmp_path),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for url in (target, "http://other.example.org")
    ]
    assert done == ["target", "proxy"]


def test_both_spellings_hold_what_either_says_and_never_grow(monkeypatch):
    monkeypatch.setenv("no_proxy", "a.example, b.example")
    monkeypatch.setenv("NO_PROXY", "c.example,a.example")
    expected = "a.example,b.example,c.example,localhost,127.0.0.1,::1"
    assert loopback_exemption() == {"no_proxy": expected, "NO_PROXY": expected}
    for name, value in loopback_exemption().items():
        monkeypatch.setenv(name, value)
    assert loopback_exemption()["no_proxy"] == expected
