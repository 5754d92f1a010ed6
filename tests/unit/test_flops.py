"""A benchmark's per cent of peak is only as true as its count of operations."""

import numpy as np
from tiny_models import SMALL

from codea1_jax.bench.flops import forward_flops, packed_forward_flops
from codea1_jax.rl.batching import TrainSample, build_batch
from codea1_jax.rl.packing import micro_batches


def test_two_per_weight_and_token():
    """The usual estimate: 2 x (matrix parameters) per token."""
    norms_and_biases = 2 * (2 * 16 + 4 * 4 + 2 * 2 * 4) + 16
    matrices = SMALL.num_params() - norms_and_biases
    assert forward_flops(SMALL, 10, 0, 10).total == 2 * 10 * matrices


def test_a_shared_prompt_counts_once():
    samples = [TrainSample([1, 2, 3], [4, 5]), TrainSample([1, 2, 3], [6])]
    batch = build_batch(samples, length_buckets=(8,))

    def flops(share_prefix: bool):
        (rows,) = micro_batches(
            batch, length_buckets=(16,), max_tokens=16, share_prefix=share_prefix
        )
        return packed_forward_flops(SMALL, rows)

    # Pairs: the prompt's 3*4/2 once, then each answer on prompt and itself.
    assert flops(True) == forward_flops(SMALL, 6, 6 + (2 * 3 + 3) + (3 + 1), 3)
    assert flops(False) == forward_flops(SMALL, 5 + 4, 5 * 6 // 2 + 4 * 5 // 2, 3)
    assert np.isclose(flops(True).head, flops(False).head)
