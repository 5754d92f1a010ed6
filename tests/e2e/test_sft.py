"""A broken fine-tuning run makes a checkpoint that both roles then start from."""

import dataclasses
import json
import pathlib
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from codea1_jax import sft
from codea1_jax.data.sft_examples import ExampleMix
from codea1_jax.data.tiny_tokenizer import TinyModelSizes
from codea1_jax.gin_io import ConfigurationError
from codea1_jax.models.tokenizer import ChatTokenizer
from codea1_jax.obs.metrics import comparable, read_jsonl
from codea1_jax.rl.learner import Learner, LearnerConfig
from codea1_jax.rl.optim import OptimizerConfig

SIZES = TinyModelSizes(32, 48, 1, 2, 1, 512)


def small_config(**changes) -> sft.SftConfig:
    config = sft.SftConfig(
        num_steps=6,
        rows_per_step=8,
        optimizer=OptimizerConfig(peak_lr=1e-2, warmup_steps=0, total_steps=6),
        # One bucket and one micro-batch: one program to compile.
        learner=LearnerConfig(length_buckets=(192,), micro_batch_tokens=8 * 192),
        data=sft.SftData(num_problems=48, tests_per_problem=8, mix=ExampleMix(wrong_share=0.5)),
        tiny=SIZES,
        log_every_steps=1,
    )
    return dataclasses.replace(config, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> pathlib.Path:
    run_dir = tmp_path_factory.mktemp("sft")
    assert sft.run_sft(small_config(), run_dir) == run_dir / "hf"
    return run_dir


def test_loss_falls_and_a_loadable_directory_is_written(finished):
    rows = read_jsonl(finished / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
    assert abs(rows[0]["loss"] - np.log(600)) < 1.0  # random weights: about uniform
    tokenizer = ChatTokenizer(finished / "hf")
    config = json.loads((finished / "hf" / "config.json").read_text())
    assert config["vocab_size"] == tokenizer.vocab_size
    weights = load_file(finished / "hf" / "model.safetensors")
    assert weights["model.embed_tokens.weight"].shape == (config["vocab_size"], 32)


def test_stopped_run_goes_on_to_the_same_result(finished, tmp_path, monkeypatch):
    update = Learner.sft_update

    def stop_at_three(self, state, batch, step):
        if step == 3:
            signal.raise_signal(signal.SIGTERM)
        return update(self, state, batch, step)

    monkeypatch.setattr(Learner, "sft_update", stop_at_three)
    assert sft.run_sft(small_config(), tmp_path) is None
    monkeypatch.setattr(Learner, "sft_update", update)
    assert sft.run_sft(small_config(), tmp_path) == tmp_path / "hf"
    for one, other in zip(
        read_jsonl(finished / "metrics.jsonl"), read_jsonl(tmp_path / "metrics.jsonl"), strict=True
    ):
        assert comparable(one) == comparable(other)
    name = "model.safetensors"
    assert (finished / "hf" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes()
    with pytest.raises(ConfigurationError, match="another configuration"):
        sft.run_sft(small_config(seed=1), tmp_path)


def test_fine_tunes_a_given_checkpoint_on_a_data_set(finished, tmp_path):
    config = small_config(
        checkpoint=str(finished / "hf"),
        num_steps=2,
        data=sft.SftData(dataset="embedded", num_problems=40),
    )
    target = sft.run_sft(config, tmp_path)
    assert target is not None
    first = read_jsonl(tmp_path / "metrics.jsonl")[0]["loss"]
    assert first < read_jsonl(finished / "metrics.jsonl")[0]["loss"] - 0.5
    for name in ("tokenizer.json", "generation_config.json"):
        assert (target / name).read_bytes() == (finished / "hf" / name).read_bytes()


def test_bad_configurations_name_the_key(tmp_path):
    with pytest.raises(ConfigurationError, match=r"SftConfig\.checkpoint"):
        sft.run_sft(small_config(checkpoint=str(tmp_path / "none")), tmp_path)
    with pytest.raises(ValueError, match=r"SftConfig\.num_steps"):
        small_config(num_steps=0)
    short = LearnerConfig(length_buckets=(16,), micro_batch_tokens=64)
    with pytest.raises(ConfigurationError, match="length_buckets"):
        sft.run_sft(small_config(learner=short), tmp_path / "short")
