"""A pod is several processes: what differs between them hangs it or lets its models drift apart."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("process_learner.py")


def start(mesh: tuple[int, int, int], num_devices: int, **variables: str) -> subprocess.Popen:
    env = os.environ | variables
    env["JAX_PLATFORMS"] = "cpu"
    env["PYTHONPATH"] = str(SCRIPT.parents[1])  # tiny_models.py
    env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_devices}"
    command = [sys.executable, str(SCRIPT), *map(str, mesh)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def result(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_processes_learn_what_one_learns():
    """2 x 4 devices: rows over both processes, parameters split inside and across them."""
    mesh = (2, 2, 2)
    (alone,) = [result(start(mesh, 8))]
    address = f"127.0.0.1:{free_port()}"
    pair = [
        start(
            mesh,
            4,
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(number),
        )
        for number in range(2)
    ]
    both = [result(process) for process in pair]
    assert [found["process"] for found in both] == [0, 1]
    for found in both:
        assert found["devices"] == alone["devices"] == 8
        for key in ("logp", "losses", "grad_norms", "params"):
            assert found[key] == both[0][key], key
            assert found[key] == pytest.approx(alone[key], rel=2e-5), key
        # Each process worked out every second value; all got the whole list and every signal.
        assert found["shares"] == [0, 11, 2, 13, 4]
        assert found["stops"] == [True, False]
    assert alone["stops"] == [False, False]


def test_missing_address_is_named():
    process = start((1, 1, 1), 1, JAX_PROCESS_ID="0")
    _, err = process.communicate(timeout=120)
    assert "JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES not set" in err
