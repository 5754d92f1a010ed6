"""A benchmark's per cent of peak is only as true as its count of operations."""

import numpy as np

from codea1_jax.bench.flops import forward_flops, packed_forward_flops
from codea1_jax.models.config import Qwen2Config
from codea1_jax.rl.batching import TrainSample, build_batch
from codea1_jax.rl.packing import micro_batches

CONFIG = Qwen2Config(
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


def test_two_per_weight_and_token():
    """The usual estimate: 2 x (matrix parameters) per token."""
    norms_and_biases = 2 * (2 * 16 + 4 * 4 + 2 * 2 * 4) + 16
    matrices = CONFIG.num_params() - norms_and_biases
    assert forward_flops(CONFIG, 10, 0, 10).total == 2 * 10 * matrices


def test_a_shared_prompt_counts_once():
    samples = [TrainSample([1, 2, 3], [4, 5]), TrainSample([1, 2, 3], [6])]
    batch = build_batch(samples, length_buckets=(8,))

    def flops(share_prefix: bool):
        (rows,) = micro_batches(
            batch, length_buckets=(16,), max_tokens=16, share_prefix=share_prefix
        )
        return packed_forward_flops(CONFIG, rows)

    # Pairs: the prompt's 3*4/2 once, then each answer on prompt and itself.
    assert flops(True) == forward_flops(CONFIG, 6, 6 + (2 * 3 + 3) + (3 + 1), 3)
    assert flops(False) == forward_flops(CONFIG, 5 + 4, 5 * 6 // 2 + 4 * 5 // 2, 3)
    assert np.isclose(flops(True).head, flops(False).head)
