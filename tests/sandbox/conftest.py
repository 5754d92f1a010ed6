"""One sandbox service and one client for all tests of this folder."""

from collections.abc import Iterator

import pytest

from codea1_jax.sandbox.client import SandboxClient
from codea1_jax.sandbox.local import local_service


@pytest.fixture(scope="session")
def sandbox_client() -> Iterator[SandboxClient]:
    with local_service() as address, SandboxClient(address) as client:
        yield client
