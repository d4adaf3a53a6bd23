"""Find out in words why a device cannot reach its server.

Flower's SuperNode reports every failed handshake alike and retries for ever, so the
device looks for itself first.
"""

import os
import socket
import ssl
from dataclasses import dataclass

from fedbnn_core.errors import FleetError
from fedbnn_core.flower.child import loopback_exemption

__all__ = [
    "Obstacle",
    "find_obstacle",
    "proxy_note",
    "refusal_of",
    "split_address",
]

_TIMEOUT_SECONDS = 10.0
# What gRPC looks at, in this order.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXEMPT = "no_grpc_proxy"
# OpenSSL's verification results (X509_V_ERR_...).
_NOT_YET_VALID, _EXPIRED, _WRONG_HOST, _WRONG_ADDRESS = 9, 10, 62, 64


@dataclass(frozen=True)
class Obstacle:
    """Why the server cannot be used, and whether waiting may help."""

    reason: str
    may_pass: bool


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 address is written as [ADDRESS]:PORT."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or not 0 < int(port) < 65536 or not host:
        raise FleetError(
            f"expected the server as HOST:PORT, such as fleet.example.org:9092; got "
            f"{address!r}"
        )
    return host.strip("[]"), int(port)


def find_obstacle(address: str, ca_certificate: str | None) -> Obstacle | None:
    """Connect to the Fleet API once and say what stands in the way.

    Parameters
    ----------
    address : str
        HOST:PORT.
    ca_certificate : str, optional
        Whom to trust, PEM; None: the server should speak plain text.
    """
    host, port = split_address(address)
    if ca_certificate is None:
        return _find_tls(address, host, port)
    context = ssl.create_default_context(cadata=ca_certificate)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), _TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            protocol = connection.selected_alpn_protocol()
    except ssl.SSLCertVerificationError as error:
        return _explain_certificate(address, host, error)
    except ssl.SSLError as error:
        return Obstacle(
            f"{address} does not speak TLS ({error.reason}). Either it is another "
            "service, or the server was started with --insecure; this device will "
            "not send its updates in the clear",
            may_pass=False,
        )
    except OSError as error:
        return _explain_network(address, host, error)
    if protocol != "h2":
        return Obstacle(
            f"{address} is not the Fleet API (gRPC): give the port for devices, "
            "usually 9092",
            may_pass=False,
        )
    return None


def refusal_of(address: str, ca_certificate: str, private_key: str) -> str:
    """Return in the server's words why it refuses this device's key.

    Sends one signed request, which is refused in any case: it names no node. The
    SuperNode ends without a word on such refusals.
    """
    import grpc
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.client.grpc_rere_client.node_auth_client_interceptor import (
        NodeAuthClientInterceptor,
    )
    from flwr.proto.fleet_pb2 import PullMessagesRequest
    from flwr.proto.fleet_pb2_grpc import FleetStub

    key = load_ssh_private_key(private_key.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return "the bundle's key is of the wrong kind"
    signer = NodeAuthClientInterceptor(key, key.public_key())
    credentials = grpc.ssl_channel_credentials(ca_certificate.encode())
    with grpc.secure_channel(address, credentials) as channel:
        stub = FleetStub(grpc.intercept_channel(channel, signer))
        try:
            stub.PullMessages(PullMessagesRequest(), timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            return str(error.details())
    return ""


def proxy_note(host: str) -> str:
    """Return a warning if a proxy setting would send gRPC elsewhere, or nothing."""
    proxy = next((os.environ[n] for n in _PROXIES if os.environ.get(n)), "")
    # What the SuperNode will see; gRPC prefers its own variable.
    exempt = os.environ.get(_EXEMPT) or loopback_exemption()["no_proxy"]
    if not proxy or host in exempt.split(","):
        return ""
    return (
        f"gRPC goes through the proxy {proxy}; if the connection fails, set "
        f"no_proxy={host}"
    )


def _find_tls(address: str, host: str, port: int) -> Obstacle | None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # Only to see whether there is TLS at all.
    try:
        with (
            socket.create_connection((host, port), _TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain),
        ):
            return Obstacle(
                f"{address} speaks TLS only; leave --insecure out and give the bundle",
                may_pass=False,
            )
    except (ssl.SSLError, TimeoutError, ConnectionResetError):
        return None
    except OSError as error:
        return _explain_network(address, host, error)


def _explain_network(address: str, host: str, error: OSError) -> Obstacle:
    if isinstance(error, socket.gaierror):
        return Obstacle(
            f"the name {host} cannot be resolved; check the spelling and the network.",
            may_pass=True,
        )
    reason = error.strerror or str(error) or type(error).__name__
    return Obstacle(
        f"{address} cannot be reached: {reason}. Is the server running, and is "
        "its port open in the firewall?",
        may_pass=True,
    )


def _explain_certificate(
    address: str, host: str, error: ssl.SSLCertVerificationError
) -> Obstacle:
    if error.verify_code == _EXPIRED:
        reason = (
            f"the certificate of {address} has expired (or this device's clock is far "
            "ahead). On the server: fedbnn fleet renew, then restart it"
        )
    elif error.verify_code == _NOT_YET_VALID:
        reason = (
            f"the certificate of {address} is not valid yet: this device's clock is "
            "behind. Set the clock, for example with: timedatectl set-ntp true"
        )
    elif error.verify_code in (_WRONG_HOST, _WRONG_ADDRESS):
        reason = (
            f"the certificate of {address} is not made for the name {host}. On the "
            f"server: fedbnn fleet renew --host {host}, then restart it"
        )
    else:
        reason = (
            f"{address} is not the server of this bundle's fleet "
            f"({error.verify_message}). Copy the bundle again from the right server"
        )
    return Obstacle(reason, may_pass=False)
