"""Models that compile in a second and a batch for them, for tests that do not care which."""

import dataclasses

import numpy as np

from codea1_jax.models.config import Qwen2Config
from codea1_jax.rl.batching import TrainBatch, TrainSample, build_batch

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


def small_batch() -> TrainBatch:
    """Eight samples of 5 + 6 tokens of `SMALL` in rows of 16, random and always the same."""
    rng = np.random.default_rng(0)
    samples = [
        TrainSample(rng.integers(0, 48, 5).tolist(), rng.integers(0, 48, 6), float(rng.normal()))
        for _ in range(8)
    ]
    return build_batch(samples, length_buckets=(16,))
