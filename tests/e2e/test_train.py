"""The whole loop through the command line: what it writes, and that a killed run loses nothing."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import orbax.checkpoint as ocp
import pytest

from codea1_jax.obs.metrics import comparable, read_jsonl

DEADLINE_S = 400.0


@pytest.fixture(scope="module")
def compile_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("xla")


@pytest.fixture(scope="module")
def start(small_run, compile_cache):
    """Starts `codea1 train` on one device in its own process group."""

    def run(run_dir: pathlib.Path, *flags: str, devices: int = 1) -> subprocess.Popen:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(compile_cache / str(devices)),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        }
        command = [sys.executable, "-m", "codea1_jax.cli", "train", *small_run, *flags]
        return subprocess.Popen(
            [*command, f"--run_dir={run_dir}"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return run


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    return output


def wait_for(path: pathlib.Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def uninterrupted(start, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    output = finish(start(run_dir))
    return run_dir, output


def saved(run_dir: pathlib.Path, step: int):
    """Arrays and meta of a checkpoint, read without the project's own code."""
    items = ocp.CheckpointManager(run_dir / "checkpoints", item_names=("arrays", "meta")).restore(
        step,
        args=ocp.args.Composite(arrays=ocp.args.StandardRestore(), meta=ocp.args.JsonRestore()),
    )
    return items["arrays"], items["meta"]


def assert_same_end(first: pathlib.Path, second: pathlib.Path, other_config: bool = False) -> None:
    import jax

    (arrays, meta), (other_arrays, other_meta) = saved(first, 3), saved(second, 3)
    jax.tree.map(np.testing.assert_array_equal, arrays, other_arrays)
    if other_config:
        assert meta.pop("config") != other_meta.pop("config")
    assert meta == other_meta  # book, cursor and policy versions among it
    rows, other_rows = (read_jsonl(run / "metrics.jsonl") for run in (first, second))
    assert [comparable(row) for row in rows] == [comparable(row) for row in other_rows]


def test_a_run_writes_what_it_promises(uninterrupted):
    """A newcomer judges the project by this folder."""
    run_dir, output = uninterrupted
    for name in ("config.gin", "metrics.jsonl", "report.md", "report.png", "tensorboard"):
        assert (run_dir / name).exists(), name
    rows = read_jsonl(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert "eval/coder/pass_rate" in rows[0]
    assert "eval/coder/pass_rate" in rows[-1]
    for role in ("coder", "tester"):
        assert all(row[f"{role}/num_tokens"] > 0 for row in rows[1:])
        assert all(row[f"{role}/mismatch_max"] < 1e-4 for row in rows[1:])
    assert all(row["verdicts/unknown_share"] == 0 for row in rows[1:])
    assert "step 3/3" in output
    assert "left" in output
    rollouts = read_jsonl(run_dir / "rollouts" / "step_000001.jsonl")
    assert len(rollouts) == 4
    assert {"question", "code_responses", "suite_responses", "verdicts", "rewards"} <= set(
        rollouts[0]
    )


def test_both_roles_learn(uninterrupted):
    """A role whose parameters never move trains the other against a wall."""
    run_dir, _ = uninterrupted
    import jax

    first, last = saved(run_dir, 2)[0], saved(run_dir, 3)[0]
    for role in ("coder", "tester"):
        same = jax.tree.map(np.array_equal, first[role]["params"], last[role]["params"])
        assert not all(jax.tree.leaves(same)), role


def test_a_killed_run_ends_like_an_uninterrupted_one(uninterrupted, start, tmp_path):
    """Preemption is the normal case on spot machines; a run that drifts there can't be trusted."""
    run_dir = tmp_path / "run"
    seed = random.SystemRandom().randrange(1000)
    print(f"kill seed {seed}")
    process = start(run_dir)
    wait_for(run_dir / "checkpoints" / "1", process)
    time.sleep(random.Random(seed).uniform(0.0, 6.0))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert "continuing after step" in finish(start(run_dir)) or process.returncode == 0
    assert_same_end(uninterrupted[0], run_dir)


def test_memory_on_the_host_changes_nothing(uninterrupted, start, tmp_path):
    """Where arrays wait is no other run: the same bits, and a restart without it goes on."""
    run_dir = tmp_path / "run"
    flags = ("--gin.RoleConfig.offload_optimizer=True", "--gin.RoleConfig.offload_reference=True")
    finish(start(run_dir, *flags))
    assert_same_end(uninterrupted[0], run_dir, other_config=True)
    shutil.rmtree(run_dir / "checkpoints" / "3")
    assert "continuing after step 2" in finish(start(run_dir))
    assert_same_end(uninterrupted[0], run_dir)


def test_ctrl_c_saves_and_the_same_command_continues(uninterrupted, start, tmp_path):
    run_dir = tmp_path / "run"
    flags = ("--gin.TrainConfig.save_every_steps=100",)
    process = start(run_dir, *flags)
    wait_for(run_dir / "rollouts" / "step_000001.jsonl", process)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, output
    assert "saved after step" in output
    finish(start(run_dir, *flags))
    rows, whole = (read_jsonl(run / "metrics.jsonl") for run in (run_dir, uninterrupted[0]))
    assert [comparable(row) for row in rows] == [comparable(row) for row in whole]


def test_another_configuration_is_refused(uninterrupted, start):
    process = start(uninterrupted[0], "--gin.ALPHA=0.25")
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "ALPHA" in output
    assert "allow_changed_config" in output
    assert "Traceback" not in output


def test_export_gives_a_directory_that_loads(uninterrupted, tmp_path):
    from codea1_jax import cli
    from codea1_jax.mesh import make_mesh
    from codea1_jax.models import hf_io
    from codea1_jax.models.config import Qwen2Config
    from codea1_jax.models.qwen2 import LanguageModel
    from codea1_jax.models.tokenizer import ChatTokenizer

    run_dir, _ = uninterrupted
    target = tmp_path / "hf"
    arguments = ["export", f"--run_dir={run_dir}", "--role=tester", f"--output={target}"]
    # The only evaluated checkpoint is the last.
    assert cli.main([*arguments, "--dtype=float32", "--step=best"]) == 0
    model = LanguageModel(Qwen2Config.from_directory(target))
    params = hf_io.load_params(target, model, make_mesh())
    trained = saved(run_dir, 3)[0]["tester"]["params"]
    import jax

    jax.tree.map(np.testing.assert_array_equal, params, trained)
    assert ChatTokenizer(target).stop_token_ids
    assert json.loads((target / "generation_config.json").read_text())


def assert_near(first: dict, other: dict) -> None:
    """The same samples and rewards; losses up to the order of additions."""
    for key in ("coder/reward/mean", "tester/reward/mean", "coder/num_tokens", "tester/num_tokens"):
        assert first[key] == other[key], key
    for key in ("coder/loss", "coder/grad_norm", "tester/loss", "tester/grad_norm"):
        np.testing.assert_allclose(first[key], other[key], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_eight_devices_end_near_one(uninterrupted, start, tmp_path):
    """Sharding that changes the first step's numbers is a bug, not rounding."""
    run_dir = tmp_path / "run"
    finish(start(run_dir, "--gin.MeshConfig.data=2", "--gin.MeshConfig.tensor=2", devices=8))
    first, other = (read_jsonl(run / "metrics.jsonl")[1] for run in (uninterrupted[0], run_dir))
    assert_near(first, other)


@pytest.mark.slow
def test_a_run_goes_on_with_other_devices(uninterrupted, start, tmp_path):
    """The whole state of one device's run restores on eight, split two ways, without a key."""
    run_dir = tmp_path / "run"
    shutil.copytree(uninterrupted[0], run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "3")
    flags = ("--gin.MeshConfig.data=2", "--gin.MeshConfig.fsdp=4")
    output = finish(start(run_dir, *flags, devices=8))
    assert "continuing after step 2" in output
    assert "on 8 device(s)" in output
    want, found = (read_jsonl(run / "metrics.jsonl") for run in (uninterrupted[0], run_dir))
    assert [comparable(row) for row in found[:3]] == [comparable(row) for row in want[:3]]
    assert_near(want[3], found[3])
    assert saved(uninterrupted[0], 3)[1]["book"] == saved(run_dir, 3)[1]["book"]
