"""The operator's folder and the bundles."""

import json
import stat
import threading

import pytest
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedbnn_core.errors import FleetError
from fedbnn_core.fleet import Fleet, read_bundle


@pytest.fixture
def fleet(tmp_path):
    return Fleet.create(tmp_path / "fleet", ["fleet.example.org"], port=19092)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_every_secret_is_readable_by_its_owner_only(fleet):
    _, bundle = fleet.add("camera")
    assert mode(fleet.folder) == 0o700
    for name in ("ca.key", "server.key", "ca.crt", "server.crt", "fleet.json"):
        assert mode(fleet.folder / name) == 0o600, name
    assert mode(bundle) == 0o600


def test_a_bundle_holds_the_devices_key_and_what_it_needs_to_call(fleet):
    device, path = fleet.add("camera")
    bundle = read_bundle(path)
    private = load_ssh_private_key(bundle.private_key.encode(), None)
    public = load_ssh_public_key(device.public_key.encode())
    assert private.public_key().public_numbers() == public.public_numbers()
    assert bundle.server == "fleet.example.org:19092"
    assert bundle.ca_certificate == fleet.ca_certificate.read_text()
    assert (bundle.device, bundle.partition_id) == ("camera", 0)


def test_numbers_are_the_smallest_free_ones(fleet):
    for name in ("a", "b", "c"):
        fleet.add(name)
    fleet.remove("b")
    assert fleet.num_partitions() == 3
    assert fleet.add("d")[0].partition_id == 1
    assert [d.name for d in fleet.devices()] == ["a", "d", "c"]


def test_removing_forgets_the_key_and_the_bundle(fleet):
    _, bundle = fleet.add("camera")
    fleet.remove("camera")
    assert fleet.devices() == []
    assert not bundle.exists()
    with pytest.raises(FleetError, match="no device 'camera'"):
        fleet.remove("camera")


def test_two_devices_of_one_name_are_refused(fleet):
    fleet.add("camera")
    with pytest.raises(FleetError, match="belongs to the fleet already"):
        fleet.add("camera")


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "x" * 64, "é"])
def test_names_that_could_be_paths_or_options_are_refused(fleet, name):
    with pytest.raises(FleetError, match="no device name"):
        fleet.add(name)


def test_devices_added_at_once_all_stay(fleet):
    threads = [
        threading.Thread(target=Fleet(fleet.folder).add, args=(f"d{i}",))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(d.partition_id for d in fleet.devices()) == list(range(8))


def test_a_second_fleet_in_the_same_folder_is_refused(fleet):
    with pytest.raises(FleetError, match="holds a fleet already"):
        Fleet.create(fleet.folder, ["x"])


def test_renewing_changes_the_server_but_not_the_authority(fleet):
    before = fleet.ca_certificate.read_bytes(), fleet.server_certificate.read_bytes()
    fleet.renew(["10.0.0.1"])
    fleet.renew()
    assert fleet.ca_certificate.read_bytes() == before[0]
    assert fleet.server_certificate.read_bytes() != before[1]
    # Bundles that are out there call the first name.
    assert {"10.0.0.1", "fleet.example.org"} <= set(fleet.server_names())
    assert fleet.address == "fleet.example.org:19092"


def test_ipv6_addresses_are_written_with_brackets(tmp_path):
    assert Fleet.create(tmp_path / "f", ["fd00::1"]).address == "[fd00::1]:9092"


@pytest.mark.parametrize("damage", ["nothing", "text", "list", "key", "type"])
def test_a_damaged_bundle_is_refused_with_advice(fleet, damage):
    _, path = fleet.add("camera")
    content = json.loads(path.read_text())
    if damage == "nothing":
        path.unlink()
    elif damage == "text":
        path.write_text(path.read_text()[:-20])
    elif damage == "list":
        path.write_text("[1]")
    elif damage == "key":
        del content["private_key"]
        path.write_text(json.dumps(content))
    else:
        path.write_text(json.dumps(content | {"partition_id": "0"}))
    with pytest.raises(FleetError, match="fedbnn fleet add"):
        read_bundle(path)
