"""One service for all tests of the sandbox, and the folder of shared cases."""

import os
import pathlib
from collections.abc import Iterator

import grpc
import pytest

from codea1_jax.sandbox.client import SandboxClient
from codea1_jax.sandbox.local import local_service
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc


@pytest.fixture(scope="session")
def service() -> Iterator[str]:
    """Address of a service with two slots, at the strongest tier that this machine gives."""
    with local_service(slots=2) as address:
        yield address


@pytest.fixture(scope="session")
def sandbox_client(service: str) -> Iterator[SandboxClient]:
    with SandboxClient(service) as connection:
        yield connection


@pytest.fixture
def client(sandbox_client: SandboxClient) -> SandboxClient:
    return sandbox_client


@pytest.fixture(scope="session")
def attack_cases() -> pathlib.Path:
    """The shared file of hostile programs; CODEA1_CASES_DIR or a folder beside the checkout."""
    root = pathlib.Path(__file__).resolve().parents[2]
    folder = pathlib.Path(os.environ.get("CODEA1_CASES_DIR", root.parent / "shared" / "cases"))
    path = folder / "attacks.json"
    if not path.is_file():
        pytest.skip(f"{path} is missing; set CODEA1_CASES_DIR to the folder with attacks.json")
    return path


@pytest.fixture(scope="session")
def stub(service: str) -> Iterator[pb_grpc.SandboxStub]:
    """The service without a client library between."""
    with grpc.insecure_channel(service) as channel:
        yield pb_grpc.SandboxStub(channel)
