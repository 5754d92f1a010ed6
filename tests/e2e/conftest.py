"""The shipped smoke run, shrunk: a real sandbox service, both updates, a checkpoint every step."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Every joint of the run is real; only sizes differ from gin/runs/smoke.gin.
SMALL = (
    "--gin.STEPS=3",
    "--gin.WARMUP_STEPS=1",
    "--gin.PROBLEMS_PER_STEP=4",
    "--gin.NUM_SOLUTIONS=4",
    "--gin.NUM_SUITES=2",
    "--gin.GROUPS_KEPT=2",
    "--gin.coder/RolloutConfig.rows=16",
    "--gin.tester/RolloutConfig.rows=32",
    "--gin.coder/RolloutConfig.min_rows=16",
    "--gin.tester/RolloutConfig.min_rows=16",
    "--gin.TrainConfig.save_every_steps=1",
    "--gin.EvalConfig.num_samples=1",
    "--gin.EvalConfig.max_problems=8",
    "--gin.EvalConfig.every_steps=0",
)


@pytest.fixture(scope="session")
def small_run() -> list[str]:
    """Arguments of `codea1 train` without the run folder."""
    return [f"--gin_file={ROOT}/gin/runs/smoke.gin", *SMALL]
