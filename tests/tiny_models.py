"""Sizes of models that compile in a second, for tests that need one and do not care which."""

import dataclasses

from codea1_jax.models.config import Qwen2Config

# Two layers, grouped heads: enough for every axis to be sharded.
SMALL = Qwen2Config(
    vocab_size=48,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    max_position_embeddings=64,
)
SMALLEST = dataclasses.replace(
    SMALL,
    vocab_size=16,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
)
