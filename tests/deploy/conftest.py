"""Sites for the deployment tests."""

import pytest

from tests.deploy.site import Site


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    yield made
    made.close()
