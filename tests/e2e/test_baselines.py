"""Baselines of which the shipped run has no trace: golden tests, self-play, evaluation only."""

import json
import pathlib

import pytest

from codea1_jax import cli
from codea1_jax.obs.metrics import comparable, read_jsonl

ROOT = pathlib.Path(__file__).resolve().parents[2]
NO_HOLD_OUT = "--gin.EvalConfig.suite=''"


def run(arguments: list[str], run_dir: pathlib.Path, name: str, *flags: str) -> list[dict]:
    """Trains to the end in this process and returns the rows of metrics."""
    baseline = f"--gin_file={ROOT}/gin/baselines/{name}.gin"
    wide = f"--gin_file={ROOT}/gin/runs/smoke_wide.gin"
    files = [argument for argument in arguments if argument.startswith("--gin_file")]
    rest = [argument for argument in arguments if argument not in files]
    command = ["train", *files, wide, baseline, *rest, *flags, f"--run_dir={run_dir}"]
    assert cli.main(command) == 0
    return read_jsonl(run_dir / "metrics.jsonl")


def rollouts(run_dir: pathlib.Path, step: int) -> list[dict]:
    path = run_dir / "rollouts" / f"step_{step:06d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_golden_tests_pay_the_share_that_passes(small_run, tmp_path):
    """The coder learns without a tester: rewards are shares of the problem's own tests."""
    rows = run(small_run, tmp_path, "golden", "--gin.TrainConfig.num_steps=1", NO_HOLD_OUT)
    assert rows[-1]["step"] == 1
    assert rows[-1]["coder/num_tokens"] > 0
    assert not any(name.startswith("tester/num_") for name in rows[-1])
    assert rows[-1]["book/size"] == 0
    for row in rollouts(tmp_path, 1):
        assert row["suite_responses"] == []
        assert row["verdicts"]["history"], "no golden test was run"
        for code, reward in zip(row["verdicts"]["codes"], row["rewards"]["coder"], strict=True):
            passed = [verdict == "pass" for verdict in code["history"]]
            share = sum(passed) / len(passed) if code["is_valid"] else 0.0
            assert reward == pytest.approx(share, abs=1e-6)


def test_self_play_learns_from_both_roles_answers(small_run, tmp_path):
    """One policy: every suite attacks every code, and one update takes both kinds of groups."""
    flags = ["--gin.NUM_SUITES=4", "--gin.GROUPS_KEPT=1", NO_HOLD_OUT]
    rows = run(small_run, tmp_path, "self_play", "--gin.TrainConfig.num_steps=2", *flags)
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[-1]["coder/num_groups"] == 2 * 4  # 4 questions: a group of codes and one of suites
    assert not any(name.startswith("tester/num_groups") for name in rows[-1])
    # The tester samples with the weights it shares: an outdated copy would show as a mismatch.
    assert rows[-1]["coder/mismatch_max"] < 1e-2
    for row in rollouts(tmp_path, 1):
        (group,) = row["verdicts"]["suites"]
        assert len(group) == 4
        assert all(suite["targets"] == [0, 1, 2, 3] for suite in group)

    flags += ["--gin.RoleConfig.offload_optimizer=True", "--gin.RoleConfig.offload_reference=True"]
    again = run(small_run, tmp_path / "host", "self_play", "--gin.TrainConfig.num_steps=2", *flags)
    assert list(map(comparable, again)) == list(map(comparable, rows))


def test_base_only_evaluates(small_run, tmp_path):
    (row,) = run(small_run, tmp_path, "base")
    assert row["step"] == 0
    assert 0.0 <= row["eval/coder/pass_rate"] <= 1.0
    assert not list(tmp_path.glob("rollouts/*"))


def test_a_tester_prompt_without_room_is_found_before_sampling(small_run, tmp_path, capsys):
    """Black box needs a longer prompt than the shipped run has room for."""
    black_box = f"--gin_file={ROOT}/gin/ablations/black_box.gin"
    command = ["train", small_run[0], black_box, *small_run[1:], f"--run_dir={tmp_path}"]
    assert cli.main(command) == 2
    assert "has room for 0 of 300 questions" in capsys.readouterr().err
