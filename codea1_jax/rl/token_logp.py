"""Log-probs and entropies of given tokens without `[B, L, V]` logits in memory.

The hidden states that predict a counted token are gathered to the front of their row; then a loop
walks over columns, a chunk at a time, as far as the fullest row goes. Only one chunk's logits exist
at a time, in the backward pass too: it recomputes them from the saved normaliser.

The head's matmul is written out here instead of calling `LanguageModel.logits`, so that its
gradient can be summed over chunks in float32 while its operands stay in the compute dtype.

Rows are split over devices, so the head's gradient is a sum over all of them. Each device adds up
its own chunks, and the sums meet once, after the loop: sent in every chunk, [V D] in float32 would
be the largest transfer of a training step.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from codea1_jax.models.layers import keep_apart, matmul_precision
from codea1_jax.models.sharding import RULES, ambient_axis_size, constrain
from codea1_jax.typing import Array, Float, Float32, Int32


def response_logp(
    table: Float[Array, "V D"],
    hidden: Float[Array, "B L D"],
    hidden_index: Int32[Array, "B C"],
    targets: Int32[Array, "B C"],
    mask: Float32[Array, "B C"],
    temperature: Array,
    *,
    chunk_length: int,
) -> tuple[Float32[Array, "B C"], Float32[Array, "B C"]]:
    """log p(targets[c] | what hidden[hidden_index[c]] has seen) and that distribution's entropy.

    Args:
      table: the output head; logits are hidden @ table^T in hidden's dtype, summed in float32.
      hidden_index: position in the row of the hidden state that predicts the target.
      mask: 1 where a target counts, 0 elsewhere; counted columns should come first.
      temperature: float32 scalar that divides the logits.
      chunk_length: columns per chunk.

    Returns:
      (logp, entropy), float32, zero outside the mask; differentiable in table and hidden.
    """
    num_columns = targets.shape[1]
    pad = ((0, 0), (0, -num_columns % chunk_length))
    hidden_index, targets, mask = (jnp.pad(x, pad) for x in (hidden_index, targets, mask))
    chosen = jnp.take_along_axis(hidden, hidden_index[:, :, None], axis=1)  # [B, C, D]
    chosen = constrain(chosen, "batch", "length", "act_embed")
    values = _chunked_logp(chunk_length, table, chosen, targets, mask, temperature)
    logp, entropy = (jnp.where(mask > 0, value, 0.0)[:, :num_columns] for value in values)
    return logp, entropy


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked_logp(
    chunk_length: int,
    table: Float[Array, "V D"],
    hidden: Float[Array, "B L D"],
    targets: Int32[Array, "B L"],
    mask: Float32[Array, "B L"],
    temperature: Array,
) -> tuple[Float32[Array, "B L"], Float32[Array, "B L"]]:
    """(logp, entropy) of `targets` given the hidden state of the same column.

    Columns in chunks past the last masked one are not computed (zeros).
    """
    outputs, _ = _forward(chunk_length, table, hidden, targets, mask, temperature)
    return outputs


def _forward(
    chunk_length: int, table: Array, hidden: Array, targets: Array, mask: Array, temperature: Array
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    compute_table = _gathered(table, hidden.dtype)

    def body(index: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        part = partial(_columns, start=index * chunk_length, size=chunk_length)
        logits = _logits(compute_table, part(hidden)) / temperature  # [B, C, V]
        top = jnp.max(logits, axis=-1, keepdims=True)
        lse = top[..., 0] + jnp.log(jnp.sum(jnp.exp(logits - top), axis=-1))
        # A one-hot sum instead of a gather: it stays local where V is sharded.
        chosen = jnp.sum(jnp.where(_is_target(part(targets), logits), logits, 0.0), axis=-1)
        mean_logit = jnp.sum(jnp.exp(logits - lse[..., None]) * logits, axis=-1)
        values = (chosen - lse, lse - mean_logit, lse)
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(whole, new, index * chunk_length, axis=1)
            for whole, new in zip(carry, values, strict=True)
        )

    zeros = jnp.zeros(targets.shape, jnp.float32)
    logp, entropy, lse = jax.lax.fori_loop(
        0, _num_chunks(mask, chunk_length), body, (zeros, zeros, zeros)
    )
    return (logp, entropy), (table, hidden, targets, mask, temperature, lse, entropy)


def _backward(
    chunk_length: int, residuals: tuple[Array, ...], cotangents: tuple[Array, Array]
) -> tuple[Array | None, ...]:
    table, hidden, targets, mask, temperature, lse, entropy = residuals
    # Selected, not multiplied: padding must not put 0 * inf into a weight's gradient.
    logp_bar, entropy_bar = (jnp.where(mask > 0, bar, 0.0) for bar in cotangents)
    compute_table = _gathered(table, hidden.dtype)
    shards = _row_shards(len(hidden))
    dot = partial(
        jax.lax.dot_general,
        precision=matmul_precision(hidden.dtype),
        preferred_element_type=jnp.float32,
    )

    def chunk_gradients(index: Array | int) -> tuple[Array, Array]:
        """What one chunk adds: [B, C, D] in hidden's dtype, float32 [shards, V, D]."""
        part = partial(_columns, start=index * chunk_length, size=chunk_length)
        logits = _logits(compute_table, part(hidden)) / temperature
        log_probs = logits - part(lse)[..., None]  # [B, C, V]
        # d logp / d logits = onehot - p;  d entropy / d logits = -p (log p + entropy)
        per_prob = part(logp_bar)[..., None] + part(entropy_bar)[..., None] * (
            log_probs + part(entropy)[..., None]
        )
        at_target = jnp.where(_is_target(part(targets), logits), part(logp_bar)[..., None], 0.0)
        bar = ((at_target - jnp.exp(log_probs) * per_prob) / temperature).astype(hidden.dtype)
        bar, chunk = keep_apart((bar, part(hidden)))
        hidden_part = dot(bar, compute_table, (((2,), (0,)), ((), ())))
        if shards == 1:  # no batched product: CPU backends run it slower
            table_part = dot(bar, chunk, (((0, 1), (0, 1)), ((), ())))[None]
        else:
            own_bar, own_chunk = (x.reshape(shards, -1, *x.shape[1:]) for x in (bar, chunk))
            table_part = dot(own_bar, own_chunk, (((1, 2), (1, 2)), ((0,), (0,))))
        hidden_part, table_part = keep_apart((hidden_part.astype(hidden.dtype), table_part))
        return hidden_part, constrain(table_part, "batch", "vocab", "act_embed")

    def write(hidden_bar: Array, hidden_part: Array, index: Array | int) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(
            hidden_bar, hidden_part, index * chunk_length, axis=1
        )

    def body(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        hidden_part, table_part = chunk_gradients(index)
        return write(carry[0], hidden_part, index), carry[1] + table_part

    # The first chunk outside the loop: it needs no [V, D] of zeros to be added to.
    hidden_part, table_bar = chunk_gradients(0)
    hidden_bar = write(jnp.zeros_like(hidden), hidden_part, 0)
    hidden_bar, table_bar = jax.lax.fori_loop(
        1, _num_chunks(mask, chunk_length), body, (hidden_bar, table_bar)
    )
    table_bar = constrain(jnp.sum(table_bar, axis=0), "vocab", "embed")
    return table_bar.astype(table.dtype), hidden_bar, None, None, jnp.zeros_like(temperature)


_chunked_logp.defvjp(_forward, _backward)


def _gathered(table: Float[Array, "V D"], dtype: Any) -> Float[Array, "V D"]:
    """The head in the compute dtype, its fsdp shards gathered once, ahead of the loop."""
    return constrain(table.astype(dtype), "vocab", "act_embed")


def _logits(table: Float[Array, "V D"], hidden: Float[Array, "B C D"]) -> Float32[Array, "B C V"]:
    logits = jax.lax.dot_general(
        keep_apart(hidden),
        table,
        (((2,), (1,)), ((), ())),
        precision=matmul_precision(hidden.dtype),
        preferred_element_type=jnp.float32,
    )
    return constrain(keep_apart(logits), "batch", "length", "vocab")


def _row_shards(num_rows: int) -> int:
    """Devices that rows are split over; 1 where they are whole."""
    shards = math.prod(ambient_axis_size(axis) for axis in RULES["batch"])
    return shards if num_rows % shards == 0 else 1


def _columns(array: Array, *, start: Array | int, size: int) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, start, size, axis=1)


def _is_target(targets: Int32[Array, "B C"], logits: Float32[Array, "B C V"]) -> Array:
    """bool[B C V]: the target's entry, from an iota so that it need not be stored."""
    iota = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return iota == targets[..., None]


def _num_chunks(mask: Float32[Array, "B L"], chunk_length: int) -> Array:
    """Chunks up to the last column in which any row has a counted token."""
    last = jnp.max(jnp.where(mask > 0, jnp.arange(1, mask.shape[1] + 1)[None, :], 0))
    return (last + chunk_length - 1) // chunk_length
