"""Grouped-query attention: projections as a module, the attention itself as pure functions.

The functions here are XLA programs that run on every backend; kernels for TPUs take the place of
`attend_full` and `attend_stack` by having their signatures (models/tpu_attention.py).
"""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.layers import (
    MATMUL_RESULT,
    Linear,
    matmul_precision,
    repeats_for_tensor,
    rotate,
)
from codea1_jax.models.sharding import ambient_axis_size, constrain
from codea1_jax.typing import Array, Bool, Float, Float32, Int

# Finite, so that a row without any visible key gives an average instead of NaN.
MASKED_SCORE = -1e30
# Scores exist for this many queries at a time: [B N 512 L] instead of [B N L L] in float32. Blocks
# are unrolled, so long rows get larger ones.
QUERY_BLOCK = 512
MAX_BLOCKS = 16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys (rotated) and values of all layers in the compute dtype, [B Y S K H] each.

    Rows come first because a TPU's decode loop wants them so: with layers first it keeps a second
    copy of the cache.
    """

    k: Array
    v: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer, heads before slots: [B K S H] each.

    What goes with unrolled layers. On CPU the products then are plain batched matmuls and a write
    touches one slot; through the stacked form both go through copies of a layer (4x the time of a
    decode step at 128 rows).
    """

    k: Array
    v: Array


Cache = KVCache | list[LayerCache]  # the list: one a layer

LAYER_CACHE_AXES = ("batch", "act_kv_heads", "length", "head_dim")


class Attention(nnx.Module):
    """Projections of one layer; queries, keys and values have biases, the output has none."""

    def __init__(self, config: Qwen2Config, *, compute_dtype: Any, rngs: nnx.Rngs):
        d, h = config.hidden_size, config.head_dim
        n, k = config.num_attention_heads, config.num_key_value_heads
        common: dict[str, Any] = dict(compute_dtype=compute_dtype, rngs=rngs)
        self.q = Linear((d,), (n, h), ("embed", "heads", "head_dim"), use_bias=True, **common)
        self.k = Linear((d,), (k, h), ("embed", "kv_heads", "head_dim"), use_bias=True, **common)
        self.v = Linear((d,), (k, h), ("embed", "kv_heads", "head_dim"), use_bias=True, **common)
        self.o = Linear((n, h), (d,), ("heads", "head_dim", "embed"), use_bias=False, **common)

    def project(
        self, x: Float[Array, "B L D"], rotary: tuple[Array, Array]
    ) -> tuple[Float[Array, "B L N H"], Float[Array, "B L K H"], Float[Array, "B L K H"]]:
        q = constrain(self.q(x), "batch", "length", "act_heads", "head_dim")
        k = constrain(self.k(x), "batch", "length", "act_kv_heads", "head_dim")
        v = constrain(self.v(x), "batch", "length", "act_kv_heads", "head_dim")
        return rotate(q, rotary), rotate(k, rotary), v


def attend_full(
    q: Float[Array, "B L N H"],
    k: Float[Array, "B L K H"],
    v: Float[Array, "B L K H"],
    segment_ids: Int[Array, "B L"],
    branch_ids: Int[Array, "B L"] | None = None,
) -> Float[Array, "B L N H"]:
    """Causal attention inside segments: token i sees tokens j <= i of its own non-zero segment.

    Tokens of segment 0 (padding) see nothing; their result is finite and must not be used. Scores
    exist for one block of queries at a time, in the backward pass too, which recomputes them from
    the saved normaliser (as FlashAttention does, arXiv 2205.14135, algorithms 1 and 4).

    Args:
      branch_ids: continuations of one prefix inside a segment: token i sees branch 0 (the prefix)
        and its own branch.
    """
    b, length, n, h = q.shape
    if branch_ids is None:
        branch_ids = jnp.zeros_like(segment_ids)
    k, v = repeated_for_tensor(k, n), repeated_for_tensor(v, n)
    block = min(max(QUERY_BLOCK, -(-length // MAX_BLOCKS)), length)
    pad = -length % block
    q, k, v = (jnp.pad(x, ((0, 0), (0, pad), (0, 0), (0, 0))) for x in (q, k, v))
    segment_ids, branch_ids = (jnp.pad(x, ((0, 0), (0, pad))) for x in (segment_ids, branch_ids))
    out = _attend_blocks(block, _grouped(q, k.shape[2]), k, v, segment_ids, branch_ids)
    out = out[:, :length].reshape(b, length, n, h)
    return constrain(out, "batch", "length", "act_heads", "head_dim")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_blocks(
    block: int,
    q: Float[Array, "B L K G H"],
    k: Float[Array, "B L K H"],
    v: Float[Array, "B L K H"],
    segment_ids: Int[Array, "B L"],
    branch_ids: Int[Array, "B L"],
) -> Float[Array, "B L K G H"]:
    """Attention in blocks of queries, each against the keys up to its own end."""
    return _blocks_forward(block, q, k, v, segment_ids, branch_ids)[0]


def _blocks_forward(
    block: int, q: Array, k: Array, v: Array, segment_ids: Array, branch_ids: Array
) -> tuple[Array, tuple[Array, ...]]:
    outs: list[Array] = []
    norms: list[Array] = []
    for end in range(block, q.shape[1] + 1, block):
        rows = slice(end - block, end)
        if outs:  # one block after the other: XLA would keep the scores of many alive
            q, outs[-1] = lax.optimization_barrier((q, outs[-1]))
        scores = _block_scores(q, k, segment_ids, branch_ids, rows)  # [B K G Q S]
        top = jnp.max(scores, axis=-1, keepdims=True)
        lse = top + jnp.log(jnp.sum(jnp.exp(scores - top), axis=-1, keepdims=True))
        weights = jnp.exp(scores - lse).astype(v.dtype)
        outs.append(_product("BKGQS,BSKH->BQKGH", weights, v[:, :end], v.dtype))
        norms.append(lse)
    # What remat="dots" keeps: the backward pass then has no need of the forward's scores.
    out = checkpoint_name(jnp.concatenate(outs, axis=1), MATMUL_RESULT)
    lse = checkpoint_name(jnp.concatenate(norms, axis=3), MATMUL_RESULT)  # [B K G L 1]
    return out, (q, k, v, segment_ids, branch_ids, out, lse)


def _blocks_backward(
    block: int, residuals: tuple[Array, ...], out_bar: Array
) -> tuple[Array | None, ...]:
    q, k, v, segment_ids, branch_ids, out, lse = residuals
    scale = 1.0 / math.sqrt(q.shape[-1])
    # Row sums of P * dP, which equal those of O * dO.
    inner = jnp.sum(out.astype(jnp.float32) * out_bar.astype(jnp.float32), axis=-1)  # [B L K G]
    inner = jnp.moveaxis(inner, 1, 3)[..., None]  # [B K G L 1]
    q_bars = []
    k_bar, v_bar = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    for end in range(block, q.shape[1] + 1, block):
        rows = slice(end - block, end)
        q, k_bar, v_bar = lax.optimization_barrier((q, k_bar, v_bar))
        scores = _block_scores(q, k, segment_ids, branch_ids, rows)
        weights = jnp.exp(scores - lse[:, :, :, rows])
        bar = out_bar[:, rows]
        weights_bar = _product("BQKGH,BSKH->BKGQS", bar, v[:, :end], jnp.float32)
        scores_bar = (weights * (weights_bar - inner[:, :, :, rows]) * scale).astype(q.dtype)
        q_bars.append(_product("BKGQS,BSKH->BQKGH", scores_bar, k[:, :end], q.dtype))
        k_part = _product("BKGQS,BQKGH->BSKH", scores_bar, q[:, rows], jnp.float32)
        v_part = _product("BKGQS,BQKGH->BSKH", weights.astype(v.dtype), bar, jnp.float32)
        k_bar, v_bar = k_bar.at[:, :end].add(k_part), v_bar.at[:, :end].add(v_part)
    return (
        jnp.concatenate(q_bars, axis=1),
        k_bar.astype(k.dtype),
        v_bar.astype(v.dtype),
        None,
        None,
    )


_attend_blocks.defvjp(_blocks_forward, _blocks_backward)


def _block_scores(
    q: Array, k: Array, segment_ids: Array, branch_ids: Array, rows: slice
) -> Float32[Array, "B K G Q S"]:
    """Scaled and masked scores of the queries `rows` against the keys up to their end."""
    scores = _product("BQKGH,BSKH->BKGQS", q[:, rows], k[:, : rows.stop], jnp.float32)
    index = jnp.arange(rows.stop)
    q_ids = (segment_ids[:, rows], branch_ids[:, rows], index[rows])
    k_ids = (segment_ids[:, : rows.stop], branch_ids[:, : rows.stop], index)
    visible = segment_mask(q_ids, k_ids)[:, None, None]
    return _masked(scores, visible, q.shape[-1])


def _product(equation: str, a: Array, b: Array, dtype: Any) -> Array:
    return jnp.einsum(
        equation, a, b, precision=matmul_precision(a.dtype), preferred_element_type=dtype
    )


def _grouped(q: Float[Array, "B L N H"], num_kv: int) -> Float[Array, "B L K G H"]:
    b, length, n, h = q.shape
    return q.reshape(b, length, num_kv, n // num_kv, h)


def repeated_for_tensor(
    x: Float[Array, "..."],
    num_heads: int,
    axes: tuple[str, ...] = ("batch", "length", "act_kv_heads", "head_dim"),
) -> Float[Array, "..."]:
    """Keys or values, repeated where their heads do not divide over the `tensor` axis."""
    heads = axes.index("act_kv_heads")
    num_kv = x.shape[heads]
    repeats = repeats_for_tensor(num_kv, num_heads // num_kv, ambient_axis_size("tensor"))
    if repeats > 1:
        x = jnp.repeat(x, repeats, axis=heads)
    return constrain(x, *axes)


def _masked(scores: Float32[Array, "..."], visible: Array, head_dim: int) -> Float32[Array, "..."]:
    return jnp.where(visible, scores * (1.0 / math.sqrt(head_dim)), MASKED_SCORE)


def attend_cache(
    q: Float[Array, "B 1 N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    positions: Int[Array, "B"],
) -> Float[Array, "B 1 N H"]:
    """One query a row against cache slots 0..positions[b]."""
    b, _, n, h = q.shape
    k, v = repeated_for_tensor(k, n), repeated_for_tensor(v, n)
    scores = _product("BQKGH,BSKH->BKGQS", _grouped(q, k.shape[2]), k, jnp.float32)
    visible = jnp.arange(k.shape[1])[None, :] <= positions[:, None]
    weights = jax.nn.softmax(_masked(scores, visible[:, None, None, None], h), axis=-1)
    out = _product("BKGQS,BSKH->BQKGH", weights.astype(v.dtype), v, v.dtype)
    return constrain(out.reshape(b, 1, n, h), "batch", "length", "act_heads", "head_dim")


def attend_stack(
    q: Float[Array, "B 1 N H"],
    k: Float[Array, "B Y S K H"],
    v: Float[Array, "B Y S K H"],
    layer: Int[Array, ""],
    positions: Int[Array, "B"],
) -> Float[Array, "B 1 N H"]:
    """`attend_cache` on one layer of a stacked cache."""
    k, v = (lax.dynamic_index_in_dim(x, layer, axis=1, keepdims=False) for x in (k, v))
    return attend_cache(q, k, v, positions)


def write_layer(
    cache: LayerCache,
    k: Float[Array, "B 1 K H"],
    v: Float[Array, "B 1 K H"],
    positions: Int[Array, "B"],
) -> LayerCache:
    """Writes one token a row at slot positions[b]; a position outside the cache writes nothing."""
    # vmap over rows makes a scatter with a batch dimension, which XLA can partition.
    put = jax.vmap(lambda row, at, value: row.at[:, at].set(value, mode="drop"))
    return jax.tree.map(
        lambda rows, new: constrain(put(rows, positions, new[:, 0]), *LAYER_CACHE_AXES),
        cache,
        LayerCache(k, v),
    )


def attend_layer(
    q: Float[Array, "B 1 N H"], cache: LayerCache, positions: Int[Array, "B"]
) -> Float[Array, "B 1 N H"]:
    """`attend_cache` on one layer's cache in head-major form."""
    b, _, n, h = q.shape
    k, v = (repeated_for_tensor(x, n, LAYER_CACHE_AXES) for x in (cache.k, cache.v))  # [B K S H]
    num_kv, num_slots = k.shape[1:3]
    grouped = q.reshape(b, num_kv, n // num_kv, h)
    scores = _product("BKGH,BKSH->BKGS", grouped, k, jnp.float32)
    visible = jnp.arange(num_slots)[None, :] <= positions[:, None]
    weights = jax.nn.softmax(_masked(scores, visible[:, None, None], h), axis=-1)
    out = _product("BKGS,BKSH->BKGH", weights.astype(v.dtype), v, v.dtype)
    return constrain(out.reshape(b, 1, n, h), "batch", "length", "act_heads", "head_dim")


def segment_mask(
    q_ids: tuple[Int[Array, "B Q"], Int[Array, "B Q"], Int[Array, "Q"]],
    k_ids: tuple[Int[Array, "B L"], Int[Array, "B L"], Int[Array, "L"]],
) -> Bool[Array, "B Q L"]:
    """Which keys a query sees, from (segment, branch, index) of both."""
    q_segment, q_branch, q_index = q_ids
    k_segment, k_branch, k_index = k_ids
    same = q_segment[:, :, None] == k_segment[:, None, :]
    is_shared = k_branch[:, None, :] == 0
    same &= is_shared | (q_branch[:, :, None] == k_branch[:, None, :])
    causal = q_index[:, None] >= k_index[None, :]
    return same & causal[None] & (q_segment != 0)[:, :, None]
