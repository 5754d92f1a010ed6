"""Mistakes on the command line must cost a second and one sentence, not a queue slot."""

import pytest

from codea1_jax import cli


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--gin.SEDE=1"], ["SEDE", "did you mean SEED"]),
        (["--gin.MeshConfig.tensor=3"], ["tensor", "choose a divisor"]),
        (["--gin.TrainConfig.num_minibatches=7"], ["num_minibatches=7", "does not divide"]),
        (["--gin.CODER_CHECKPOINT='nowhere'"], ["coder/RoleConfig.checkpoint", "nowhere"]),
        (["--gin.DataConfig.path='/nowhere'"], ["DataConfig.path", "does not exist"]),
        (["--gin.CODER_PROMPT=4000"], ["coder", "max_prompt_tokens"]),
        (["--gin.coder/RolloutConfig.rows=100"], ["coder/RolloutConfig.rows=100"]),
        (["--gin.ALPHA=2.0"], ["alpha=2.0"]),
        (["--steps=3"], ["--gin.NAME=VALUE"]),
    ],
)
def test_a_mistake_is_one_sentence(small_run, capsys, flags, words):
    code = cli.main(["train", "--dry_run", *small_run, *flags])
    error = capsys.readouterr().err
    assert code == 2
    for word in words:
        assert word in error
    assert error.count("\n") == 1


def test_a_dry_run_prints_the_bound_configuration(small_run, capsys):
    assert cli.main(["train", "--dry_run", *small_run]) == 0
    assert "STEPS = 3" in capsys.readouterr().out


def test_an_unreachable_sandbox_is_found_before_anything_is_loaded(small_run, capsys, tmp_path):
    flags = ["--gin.SandboxConfig.address='127.0.0.1:1'", f"--run_dir={tmp_path / 'run'}"]
    assert cli.main(["train", *small_run, *flags]) == 2
    error = capsys.readouterr().err
    assert "SandboxConfig.address" in error
    assert "codea1-sandbox serve" in error
