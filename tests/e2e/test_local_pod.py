"""A pod's processes must stay one run: same figures as one process, also through a death.

Slow: two small runs on four devices. `launch/test.sh --slow -k local_pod`.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from codea1_jax.obs.metrics import comparable, read_jsonl

ROOT = pathlib.Path(__file__).parents[2]
RUN = [
    "--gin_file=gin/runs/smoke.gin",
    "--gin.STEPS=3",
    "--gin.PROBLEMS_PER_STEP=4",
    "--gin.EvalConfig.max_problems=8",
    "--gin.TrainConfig.save_every_steps=1",
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def rows(run_dir: pathlib.Path) -> list[dict]:
    return [comparable(row) for row in read_jsonl(run_dir / "metrics.jsonl")]


def pod(run_dir: pathlib.Path) -> subprocess.Popen:
    command = ["launch/local_pod.sh", "--processes", "2", "--devices", "2", *RUN]
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"RUN_DIR": str(run_dir)}, start_new_session=True
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """One process with the same four devices."""
    run_dir = tmp_path_factory.mktemp("alone") / "run"
    flags = "--xla_force_host_platform_device_count=4"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "codea1_jax.cli", "train", f"--run_dir={run_dir}", *RUN]
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    return rows(run_dir)


def assert_same(found: list[dict], expected: list[dict]) -> None:
    """Equal up to the order of additions between devices."""
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert value == pytest.approx(other[key], rel=1e-3, abs=1e-5), (one["step"], key)


def test_a_pod_ends_with_one_process_and_then_equals_one(alone: list[dict], tmp_path: pathlib.Path):
    """SIGKILL to one process ends the pod; the same command ends like one process does.

    Where else SIGKILL may come: test_killed_runs.py.
    """
    run_dir = tmp_path / "run"
    first = pod(run_dir)
    while not (run_dir / "checkpoints" / "1").exists():
        assert first.poll() is None
        time.sleep(0.2)
    workers = subprocess.run(
        ["pgrep", "-f", f"codea1 train.*run_dir={run_dir}"], capture_output=True, text=True
    ).stdout.split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    assert first.wait(300) != 0
    assert pod(run_dir).wait(600) == 0
    assert_same(rows(run_dir), alone)
    assert json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 3
