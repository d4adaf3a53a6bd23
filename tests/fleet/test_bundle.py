"""Who may read a device's bundle."""

import pytest

from fedbnn_core.fleet.bundle import Bundle, others_can_read, write_bundle


@pytest.mark.parametrize(
    ("mode", "open_to_others"),
    [(0o600, False), (0o400, False), (0o644, True), (0o640, True), (0o604, True)],
)
def test_a_bundle_that_others_can_read_is_noticed(tmp_path, mode, open_to_others):
    path = tmp_path / "device.bundle"
    write_bundle(path, Bundle("camera", "h:1", 0, "ca", "key"))
    assert not others_can_read(path)
    path.chmod(mode)
    assert others_can_read(path) is open_to_others
