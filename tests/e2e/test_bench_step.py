"""The bench must time the loop that trains, and add up."""

import json

import pytest

from codea1_jax import cli


def test_a_step_is_timed_by_phase(small_run, capsys):
    arguments = ["bench", "step", *small_run, "--warmup=1", "--steps=1"]
    assert cli.main([*arguments, "--gin.MeshConfig.data=8", "--gin.MeshConfig.fsdp=1"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["bench"] == "step"
    assert (result["steps"], result["devices"], result["problems"]) == (1, 8, 4)
    phases = result["phases"]
    roles = [f"{role}_{part}" for role in ("coder", "tester") for part in ("rollout", "update")]
    assert {*roles, "coder_log-probs", "tester_log-probs", "judging", "checkpoint"} == set(phases)
    assert all(seconds > 0 for seconds in phases.values())
    assert 0.5 * result["seconds"] < sum(phases.values()) <= result["seconds"] + 0.01
    idle = phases["judging"] + phases["checkpoint"]
    assert idle / result["seconds"] <= result["accelerator_idle_share"] + 1e-3 < 1.0
    assert result["verdicts_awaited_s"] == phases["judging"]
    assert result["sandbox_busy_s"] > 0
    assert result["tokens_per_s"] == pytest.approx(
        result["sampled_tokens"] / result["seconds"], rel=1e-2
    )


def test_what_cannot_be_timed_is_one_sentence(capsys):
    assert cli.main(["bench", "step", "--gin_file=gin/runs/smoke.gin", "--steps=0"]) == 2
    assert "--steps=0" in capsys.readouterr().err
    assert cli.main(["bench", "step", "--gin_file=gin/runs/none.gin"]) == 2
    assert "none.gin" in capsys.readouterr().err
