"""Sizes of a Qwen2.5 model, read from a Hugging Face `config.json`."""

import dataclasses
import json
import pathlib
from typing import Any

from codea1_jax.errors import UserError


class ConfigError(UserError):
    """A model configuration that this port cannot represent; names the key and the file."""


@dataclasses.dataclass(frozen=True)
class Qwen2Config:
    """Sizes of a Qwen2.5 decoder. Names follow Hugging Face's `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int

    @classmethod
    def from_hf(cls, raw: dict[str, Any], origin: str = "config.json") -> "Qwen2Config":
        """Reads the keys of a `config.json`.

        Raises:
          ConfigError: another architecture, a missing key, or a feature outside Qwen2.5's dense
            models (sliding windows, another activation, RoPE scaling).
        """
        architectures = raw.get("architectures") or []
        if raw.get("model_type") != "qwen2" or architectures not in ([], ["Qwen2ForCausalLM"]):
            raise ConfigError(
                f"{origin}: model_type={raw.get('model_type')!r}, architectures={architectures!r}; "
                "only Qwen2ForCausalLM (Qwen2 and Qwen2.5, dense) is supported"
            )
        if raw.get("use_sliding_window"):
            raise ConfigError(
                f"{origin}: use_sliding_window=true is not supported; set it to false"
            )
        if raw.get("hidden_act", "silu") != "silu":
            raise ConfigError(
                f"{origin}: hidden_act={raw['hidden_act']!r}; only 'silu' is supported"
            )
        # transformers 5 writes rope_parameters; older files have rope_theta and rope_scaling.
        rope = raw.get("rope_parameters") or {}
        scaling = raw.get("rope_scaling") or {}
        kind = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
        if kind != "default":
            raise ConfigError(f"{origin}: rope type {kind!r}; only unscaled RoPE is supported")
        integers = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
        )
        for key in (*integers, "rms_norm_eps"):
            if key not in raw:
                raise ConfigError(f"{origin}: key {key!r} is missing")
            if key in integers and not (isinstance(raw[key], int) and raw[key] > 0):
                raise ConfigError(f"{origin}: {key}={raw[key]!r} is not a positive integer")
        width, num_heads = raw["hidden_size"], raw["num_attention_heads"]
        if num_heads % raw["num_key_value_heads"]:
            raise ConfigError(
                f"{origin}: num_key_value_heads={raw['num_key_value_heads']} does not divide "
                f"num_attention_heads={num_heads}"
            )
        if not raw.get("head_dim") and width % num_heads:
            raise ConfigError(
                f"{origin}: hidden_size={width} is no multiple of num_attention_heads={num_heads}"
            )
        return cls(
            **{key: raw[key] for key in integers},
            head_dim=raw.get("head_dim") or width // num_heads,
            rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
            rms_norm_eps=float(raw["rms_norm_eps"]),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        )

    @classmethod
    def from_directory(cls, directory: str | pathlib.Path) -> "Qwen2Config":
        path = pathlib.Path(directory) / "config.json"
        if not path.exists():
            raise ConfigError(f"{path} does not exist; a Hugging Face model directory has one")
        try:
            raw = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} is not JSON: {error}") from error
        return cls.from_hf(raw, str(path))

    def num_params(self) -> int:
        """Number of parameters, the tied head counted once."""
        d, f, h = self.hidden_size, self.intermediate_size, self.head_dim
        q, kv = self.num_attention_heads * h, self.num_key_value_heads * h
        layer = d * (q + 2 * kv) + q + 2 * kv + q * d + 3 * d * f + 2 * d
        heads = 1 if self.tie_word_embeddings else 2
        return self.num_hidden_layers * layer + heads * self.vocab_size * d + d
