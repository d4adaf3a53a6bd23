"""What stands between a device and its server, found on real sockets."""

import socket
import ssl
import threading

import pytest

from fedbnn_core.errors import FleetError
from fedbnn_core.fleet.credentials import make_authority, make_server_certificate
from fedbnn_core.flower.reachability import find_obstacle, proxy_note, split_address


@pytest.fixture(scope="module")
def authority():
    return make_authority(days=30)


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def answer(listener, context=None):
    """Serve one connection in the background; return the listener's address."""

    def serve():
        try:
            connection, _ = listener.accept()
            with connection:
                if context is None:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.recv(4096)
                else:
                    context.wrap_socket(connection, server_side=True).recv(1)
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def serving(tmp_path, authority, *, hosts=("127.0.0.1",), days=9, protocols=("h2",)):
    pair = make_server_certificate(authority, list(hosts), days=days)
    (tmp_path / "key").write_bytes(pair.private)
    (tmp_path / "crt").write_bytes(pair.public)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def test_a_good_server_is_no_obstacle(tmp_path, authority, listener):
    address = answer(listener, serving(tmp_path, authority))
    assert find_obstacle(address, authority.public.decode()) is None


def test_an_expired_certificate_names_the_remedy(tmp_path, authority, listener):
    address = answer(listener, serving(tmp_path, authority, days=-0.5))
    found = find_obstacle(address, authority.public.decode())
    assert "has expired" in found.reason
    assert "fedbnn fleet renew" in found.reason
    assert not found.may_pass


def test_a_name_outside_the_certificate_names_the_remedy(tmp_path, authority):
    # 127.0.0.2 is this machine, too, but not in the certificate.
    with socket.create_server(("127.0.0.2", 0)) as other:
        address = answer(other, serving(tmp_path, authority))
        address = address.replace("127.0.0.1", "127.0.0.2")
        found = find_obstacle(address, authority.public.decode())
    assert "renew --host 127.0.0.2" in found.reason


def test_another_fleets_server_is_refused(tmp_path, authority, listener):
    address = answer(listener, serving(tmp_path, make_authority(days=9)))
    found = find_obstacle(address, authority.public.decode())
    assert "not the server of this bundle's fleet" in found.reason
    assert not found.may_pass


def test_a_plain_text_server_is_refused(authority, listener):
    found = find_obstacle(answer(listener), authority.public.decode())
    assert "does not speak TLS" in found.reason
    assert not found.may_pass


def test_tls_without_http2_is_not_the_fleet_api(tmp_path, authority, listener):
    address = answer(listener, serving(tmp_path, authority, protocols=()))
    found = find_obstacle(address, authority.public.decode())
    assert "not the Fleet API" in found.reason


def test_an_insecure_device_is_told_that_the_server_wants_tls(
    tmp_path, authority, listener
):
    address = answer(listener, serving(tmp_path, authority))
    assert "speaks TLS only" in find_obstacle(address, None).reason


def test_a_closed_port_and_an_unknown_name_may_pass(authority):
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    closed = find_obstacle(f"127.0.0.1:{port}", authority.public.decode())
    assert closed.may_pass
    assert "refused" in closed.reason
    unknown = find_obstacle("no-such-host.invalid:1", authority.public.decode())
    assert unknown.may_pass
    assert "cannot be resolved" in unknown.reason


@pytest.mark.parametrize("text", ["host", "host:", ":9092", "host:x", "host:70000", ""])
def test_addresses_need_host_and_port(text):
    with pytest.raises(FleetError, match="HOST:PORT"):
        split_address(text)


def test_ipv6_addresses_lose_their_brackets():
    assert split_address("[fd00::1]:9092") == ("fd00::1", 9092)


def test_a_proxy_is_mentioned_unless_the_host_is_exempt(monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost,a.example")
    assert proxy_note("a.example") == ""
    assert "no_proxy=b.example" in proxy_note("b.example")
