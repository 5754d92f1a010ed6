"""Floating-point operations of the model's programs, counted from shapes.

A matrix product of [a, b] with [b, c] counts 2abc. Only what the mathematics needs is counted:
no padding, no recomputation, no elementwise work. Attention counts the visible pairs only.
"""

import dataclasses

import numpy as np

from codea1_jax.models.config import Qwen2Config
from codea1_jax.rl.packing import PackedRows


@dataclasses.dataclass(frozen=True)
class ForwardFlops:
    """FLOPs of one forward pass, by part. A backward pass costs twice as much."""

    layers: float
    attention: float
    head: float

    @property
    def total(self) -> float:
        return self.layers + self.attention + self.head

    def __add__(self, other: "ForwardFlops") -> "ForwardFlops":
        return ForwardFlops(
            self.layers + other.layers, self.attention + other.attention, self.head + other.head
        )


def forward_flops(
    config: Qwen2Config, num_tokens: int, num_pairs: int, num_logits: int
) -> ForwardFlops:
    """FLOPs of a forward pass.

    Args:
      num_tokens: tokens that go through the layers.
      num_pairs: (query, key) pairs that attention has to look at, summed over sequences.
      num_logits: positions whose logits are computed.
    """
    d, f, h = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * h, config.num_key_value_heads * h
    layer = d * (q + 2 * kv) + q * d + 3 * d * f  # weights of a layer's matrices
    return ForwardFlops(
        layers=2.0 * config.num_hidden_layers * layer * num_tokens,
        attention=4.0 * config.num_hidden_layers * q * num_pairs,  # scores and weighted sum
        head=2.0 * config.vocab_size * d * num_logits,
    )


def packed_forward_flops(config: Qwen2Config, rows: PackedRows) -> ForwardFlops:
    """FLOPs of a forward pass over packed rows, with every prompt counted once."""
    num_pairs = 0
    for segments, branches in zip(rows.segment_ids, rows.branch_ids, strict=True):
        for segment in range(1, int(segments.max(initial=0)) + 1):
            counts = np.bincount(branches[segments == segment])
            prefix, answers = int(counts[0]), counts[1:]
            num_pairs += prefix * (prefix + 1) // 2
            num_pairs += int(sum(prefix * n + n * (n + 1) // 2 for n in answers.tolist()))
    return forward_flops(
        config, int((rows.segment_ids > 0).sum()), num_pairs, int(rows.response_mask.sum())
    )
