"""A number belongs to the key that the fleet gave it to."""

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedbnn_core.fleet import Fleet
from fedbnn_core.fleet.membership import SERVED_FLEET, claim_problem, served_devices


@pytest.fixture
def fleet(tmp_path):
    made = Fleet.create(tmp_path / "fleet", ["127.0.0.1"])
    for name in ("owner", "other"):
        made.add(name)
    return made


@pytest.mark.parametrize("environment", [{}, {SERVED_FLEET: ""}])
def test_without_a_fleet_nobody_owns_a_number(environment):
    assert served_devices(environment) is None


def test_devices_are_found_by_the_key_that_they_sign_with(fleet):
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    found = served_devices({SERVED_FLEET: str(fleet.folder)})
    for device in fleet.devices():
        key = load_ssh_public_key(device.public_key.encode())
        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        assert found[pem] == device
    assert len(found) == 2


@pytest.mark.parametrize(
    ("index", "claimed", "words"),
    [
        (0, 0, ""),
        (1, 1, ""),
        (1, 0, "says that it has number 0, its key belongs to number 1"),
        (0, 7, "number 7"),
        (0, -1, "number -1"),
        (None, 0, "does not belong to the fleet"),
    ],
)
def test_claims(fleet, index, claimed, words):
    device = None if index is None else fleet.devices()[index]
    problem = claim_problem(device, claimed)
    assert bool(problem) == bool(words)
    assert words in problem
