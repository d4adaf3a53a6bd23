"""The operator's connection to a server that is busy, or gone."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fedbnn_core.errors import FleetError
from fedbnn_core.flower import control
from fedbnn_core.flower.control import Endpoint, connected

control_pb2 = pytest.importorskip("flwr.proto.control_pb2")


@pytest.fixture
def serve(monkeypatch):
    """Serve a control port that answers with the given status codes, then well."""
    monkeypatch.setattr(control, "_RETRY_SECONDS", 0.01)
    servers = []

    def start(codes):
        left = list(codes)
        content = control_pb2.ListRunsResponse()
        content.run_dict[7].run_id = 7

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                code = left.pop(0) if left else 200
                body = content.SerializeToString() if code == 200 else b"busy"
                self.send_response(code)
                self.send_header("Content-Type", "application/protobuf")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return Endpoint(f"127.0.0.1:{server.server_port}"), left

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_busy_server_is_asked_again(serve):
    endpoint, left = serve([500, 503])
    with connected(endpoint) as connection:
        assert connection.run(7).run_id == 7
    assert left == []


def test_a_refusal_is_not_repeated(serve):
    endpoint, left = serve([403, 500])
    with pytest.raises(FleetError, match="refused"), connected(endpoint) as connection:
        connection.runs()
    assert left == [500]


def test_patience_ends(serve, monkeypatch):
    monkeypatch.setattr(control, "_PATIENCE_SECONDS", 0.1)
    endpoint, _ = serve([500] * 1000)
    with pytest.raises(FleetError, match="busy"), connected(endpoint) as connection:
        connection.runs()


def test_a_proxy_does_not_stand_before_the_control_port(serve, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # Nobody answers there.
    monkeypatch.setenv("no_proxy", "fleet.example.org")
    monkeypatch.setenv("NO_PROXY", "")
    endpoint, _ = serve([])
    with connected(endpoint) as connection:
        assert connection.run(7).run_id == 7
