"""Certificates are judged by OpenSSL in real handshakes, not by the code itself."""

import datetime
import ssl

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedbnn_core.errors import FleetError
from fedbnn_core.fleet.credentials import (
    expiry,
    make_authority,
    make_node_key,
    make_server_certificate,
    names_of,
    public_pem,
)


def handshake(tmp_path, server, authority, name):
    """Shake hands in memory; raises what OpenSSL raises."""
    (tmp_path / "s.key").write_bytes(server.private)
    (tmp_path / "s.crt").write_bytes(server.public)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "s.crt", tmp_path / "s.key")
    trusting = ssl.create_default_context(cadata=authority.public.decode())
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        trusting.wrap_bio(down, up, server_hostname=name),
        serving.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.fixture(scope="module")
def authority():
    return make_authority(days=10)


@pytest.mark.parametrize(
    "name",
    ["fleet.example.org", "10.1.2.3", "localhost", "127.0.0.1", "::1", "fd00::7"],
)
def test_openssl_accepts_the_server_under_each_of_its_names(tmp_path, authority, name):
    hosts = ["fleet.example.org", "10.1.2.3", "fd00::7"]
    server = make_server_certificate(authority, hosts, days=5)
    handshake(tmp_path, server, authority, name)
    assert name in names_of(server.public)


@pytest.mark.parametrize("name", ["other.example.org", "10.1.2.4"])
def test_openssl_refuses_another_name(tmp_path, authority, name):
    server = make_server_certificate(authority, ["fleet.example.org"], days=5)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(tmp_path, server, authority, name)


def test_openssl_refuses_another_fleets_server(tmp_path, authority):
    server = make_server_certificate(make_authority(days=5), ["a.example"], days=5)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, server, authority, "a.example")


def test_openssl_refuses_an_expired_certificate(tmp_path, authority):
    server = make_server_certificate(authority, ["a.example"], days=-0.5)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(tmp_path, server, authority, "a.example")


def test_expiry_is_the_asked_for_day_and_never_beyond_the_authoritys(authority):
    now = datetime.datetime.now(datetime.UTC)
    server = make_server_certificate(authority, ["a.example"], days=5)
    assert abs(expiry(server.public) - now - datetime.timedelta(days=5)) < (
        datetime.timedelta(minutes=1)
    )
    capped = make_server_certificate(authority, ["a.example"], days=500)
    assert expiry(capped.public) == expiry(authority.public)


def test_an_impossible_name_is_refused(authority):
    with pytest.raises(FleetError, match="neither a host name nor an IP"):
        make_server_certificate(authority, ["gerät.example"], days=5)


def test_node_keys_are_p384_pairs_in_the_formats_flower_reads():
    pair = make_node_key()
    private = load_ssh_private_key(pair.private, None)
    assert isinstance(private.curve, ec.SECP384R1)
    public = load_ssh_public_key(pair.public)
    assert public.public_numbers() == private.public_key().public_numbers()
    pem = load_pem_public_key(public_pem(pair.public))
    assert pem.public_numbers() == public.public_numbers()
    assert make_node_key().private != pair.private
