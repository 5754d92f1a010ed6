"""Metrics on Weights & Biases: what is sent, what a restart does; trouble stops nothing."""

import sys
import types
from typing import Any

import pytest

from codea1_jax import config as config_module
from codea1_jax.config import TrainConfig, validate
from codea1_jax.gin_io import ConfigurationError, build
from codea1_jax.obs.metrics import MetricsWriter, read_jsonl
from codea1_jax.obs.wandb_log import WandbLog


class FakeRun:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.is_finished = False

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "step")

    def log(self, row: dict[str, Any]) -> None:
        if row["step"] == 99:
            raise ConnectionError("no route\nto host")
        self.rows.append(row)

    def finish(self) -> None:
        self.is_finished = True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], FakeRun]]:
    """Every `wandb.init`: its arguments and the run it gave."""
    started: list[tuple[dict[str, Any], FakeRun]] = []

    def init(**arguments: Any) -> FakeRun:
        if arguments["project"] == "nobody":
            raise RuntimeError("api_key not configured (no-tty)")
        started.append((arguments, FakeRun()))
        return started[-1][1]

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    return started


def test_logs_the_numbers_of_the_record(tmp_path, runs):
    run_dir = tmp_path / "alpha_0"
    run_dir.mkdir()
    writer = MetricsWriter(run_dir, 0, WandbLog("codea1", run_dir, "SEED = 1\n"))
    writer.write(1, {"coder/reward/mean": 0.5, "coder/loss": float("nan")})
    writer.close()
    ((arguments, run),) = runs
    assert run.rows == [{"step": 1, "coder/reward/mean": 0.5}]
    assert run.is_finished
    assert arguments["name"] == "alpha_0"
    assert arguments["config"] == {"gin": "SEED = 1\n"}


def test_a_continued_run_is_the_same_run(tmp_path, runs):
    for _ in range(2):
        WandbLog("codea1", tmp_path, "").close()
    first, second = (arguments for arguments, _ in runs)
    assert first["id"] == second["id"]
    assert first["resume"] == second["resume"] == "allow"


def test_trouble_while_logging_warns_once_and_keeps_the_record(tmp_path, runs):
    writer = MetricsWriter(tmp_path, 0, WandbLog("codea1", tmp_path, ""))
    with pytest.warns(UserWarning, match="W&B is off for the rest of this run: no route$"):
        writer.write(99, {"a": 1.0})
    writer.write(100, {"a": 2.0})
    writer.close()
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [99, 100]
    assert runs[0][1].rows == []


def test_trouble_at_the_start_warns_and_goes_on(tmp_path, runs):
    with pytest.warns(UserWarning, match="api_key not configured"):
        log = WandbLog("nobody", tmp_path, "")
    log.write(1, {"a": 1.0})
    log.close()
    assert runs == []


def test_a_missing_package_is_refused_before_anything_starts(monkeypatch):
    config = build(TrainConfig, ["gin/runs/smoke.gin"], ["TrainConfig.wandb_project='codea1'"])
    monkeypatch.setattr(config_module.wandb_log, "is_installed", lambda: False)
    with pytest.raises(
        ConfigurationError, match=r"wandb_project='codea1' needs wandb: pip install"
    ):
        validate(config, 1)
    monkeypatch.setattr(config_module.wandb_log, "is_installed", lambda: True)
    validate(config, 1)


@pytest.mark.filterwarnings("default")
def test_the_real_package_offline(tmp_path, monkeypatch, recwarn):
    """Needs the extra `wandb`, no network and no login."""
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for first in (0, 2):  # the second one continues, and does step 3 again
        writer = MetricsWriter(tmp_path, first, WandbLog("codea1", tmp_path, "SEED = 1\n"))
        for step in (first + 1, first + 2, first + 3):
            writer.write(step, {"coder/reward/mean": step / 10})
        writer.close()
    logs = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert {log.name for log in logs} == {f"run-{(tmp_path / 'wandb_id').read_text()}.wandb"}
    assert len(logs) == 2
    assert all(b"coder/reward/mean" in log.read_bytes() for log in logs)
    assert [one.message for one in recwarn if "W&B is off" in str(one.message)] == []
