"""A pod is several processes: what differs between them hangs it or lets its models drift apart."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent


def start(
    script: str, arguments: tuple[str, ...], num_devices: int, **variables: str
) -> subprocess.Popen:
    env = os.environ | variables
    env["JAX_PLATFORMS"] = "cpu"
    env["PYTHONPATH"] = str(FOLDER.parent)  # tiny_models.py
    env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_devices}"
    command = [sys.executable, str(FOLDER / script), *arguments]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def start_pair(script: str, arguments: tuple[str, ...], num_devices: int) -> list[subprocess.Popen]:
    """Two processes of one run, with `num_devices` each."""
    address = f"127.0.0.1:{free_port()}"
    return [
        start(
            script,
            arguments,
            num_devices,
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(number),
        )
        for number in range(2)
    ]


def result(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_processes_learn_what_one_learns(tmp_path):
    """2 x 4 devices: rows over both processes, parameters split inside and across them."""
    mesh = ("2", "2", "2")
    alone = result(start("process_learner.py", (*mesh, str(tmp_path / "alone")), 8))
    pair = start_pair("process_learner.py", (*mesh, str(tmp_path / "both")), 4)
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
        assert found["offloaded"] == {
            "memory": ["pinned_host"],
            "equal": True,
            "restored": True,
        }
    assert alone["stops"] == [False, False]


def test_two_processes_sample_what_one_samples():
    """Rows over both processes: with a list of layers, and stacked with heads split inside each."""
    (alone,) = result(start("process_sampler.py", ("1,1,1",), 1))["samples"]
    lengths = [len(tokens) for tokens, _ in alone.values()]
    assert len(lengths) == 15
    assert min(lengths) < max(lengths) == 10  # stop tokens and the limit
    meshes = ("2,2,1", "2,1,2")
    both = [result(process) for process in start_pair("process_sampler.py", meshes, 2)]
    assert [found["process"] for found in both] == [0, 1]
    assert both[0]["samples"] == both[1]["samples"]
    for samples in both[0]["samples"]:
        assert samples.keys() == alone.keys()
        for key, (tokens, logp) in samples.items():
            assert tokens == alone[key][0], key
            assert logp == pytest.approx(alone[key][1], abs=2e-5), key


def test_missing_address_is_named():
    process = start("process_learner.py", ("1", "1", "1", ""), 1, JAX_PROCESS_ID="0")
    _, err = process.communicate(timeout=120)
    assert "JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES not set" in err
