"""If this fails, a checkpoint is read with the wrong sizes, or one that can't be represented is."""

import json
import pathlib
from typing import Any

import pytest

from codea1_jax.models.config import ConfigError, Qwen2Config

# config.json of Qwen2.5-Coder-7B, the keys that matter.
RAW: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}


def test_reads_a_real_config():
    config = Qwen2Config.from_hf(RAW)
    assert (config.head_dim, config.rope_theta, config.tie_word_embeddings) == (128, 1e6, False)
    assert config.num_params() == 7_615_616_512  # what the checkpoint's index says, in bytes / 2


def test_tied_head_is_counted_once():
    raw = RAW | dict(
        hidden_size=896,
        intermediate_size=4864,
        num_attention_heads=14,
        num_hidden_layers=24,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        vocab_size=151936,
    )
    assert Qwen2Config.from_hf(raw).num_params() == 494_032_768


def test_reads_what_transformers_5_writes():
    raw = {key: value for key, value in RAW.items() if key != "rope_theta"}
    raw["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e5}
    assert Qwen2Config.from_hf(raw).rope_theta == 5e5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, r"x\.json: model_type='llama'.*only Qwen2ForCausalLM"),
        ({"architectures": ["Qwen2ForRewardModel"]}, "only Qwen2ForCausalLM"),
        ({"use_sliding_window": True}, "use_sliding_window=true is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'; only 'silu'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope type 'linear'"),
        ({"num_key_value_heads": 5}, "num_key_value_heads=5 does not divide"),
        ({"hidden_size": "3584"}, "hidden_size='3584' is not a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 is not a positive integer"),
        ({"num_attention_heads": 24}, "hidden_size=3584 is no multiple"),
    ],
)
def test_what_is_not_qwen2_is_refused(change: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        Qwen2Config.from_hf(RAW | change, "x.json")


@pytest.mark.parametrize("key", ["vocab_size", "num_key_value_heads", "rms_norm_eps"])
def test_missing_key_is_named(key: str):
    with pytest.raises(ConfigError, match=f"key '{key}' is missing"):
        Qwen2Config.from_hf({k: v for k, v in RAW.items() if k != key})


def test_directory_without_config(tmp_path: pathlib.Path):
    with pytest.raises(ConfigError, match=r"config\.json does not exist"):
        Qwen2Config.from_directory(tmp_path)
    (tmp_path / "config.json").write_text("{'a': 1}")
    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        Qwen2Config.from_directory(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    assert Qwen2Config.from_directory(tmp_path) == Qwen2Config.from_hf(RAW)
