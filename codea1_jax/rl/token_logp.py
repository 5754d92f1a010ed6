"""Log-probs and entropies of given tokens without `[B, L, V]` logits in memory.

Hidden states are shifted so that every row's response starts in column 0; then a loop walks over
columns, a chunk at a time, as far as the longest response goes. Only one chunk's logits exist at a
time, in the backward pass too: it recomputes them from the saved normaliser.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from codea1_jax.typing import Array, Float, Float32, Int32, Params

# (head parameters, hidden [B C D]) -> float32 logits [B C V]
LogitsFn = Callable[[Params, Array], Array]


def response_logp(
    logits_fn: LogitsFn,
    head: Params,
    hidden: Float[Array, "B L D"],
    tokens: Int32[Array, "B L"],
    response_mask: Float32[Array, "B L"],
    temperature: Array,
    *,
    chunk_length: int,
) -> tuple[Float32[Array, "B L"], Float32[Array, "B L"]]:
    """log p(token t | tokens before t) and that distribution's entropy, zero outside the mask.

    Args:
      head: the parameters `logits_fn` reads; gradients reach them and `hidden`.
      hidden: hidden[:, t] has seen tokens up to and including t, so it predicts token t + 1.
      response_mask: column 0 must be 0: nothing predicts a first token.
      temperature: float32 scalar that divides the logits.
      chunk_length: columns per chunk.

    Returns:
      (logp, entropy), float32.
    """
    length = tokens.shape[1]
    # [B]; rows without response tokens start anywhere: their mask is 0 throughout.
    start = jnp.maximum(jnp.argmax(response_mask > 0, axis=1), 1)
    padded = -(-length // chunk_length) * chunk_length
    column = start[:, None] + jnp.arange(padded)[None, :]  # [B, padded]: token index
    inside = column < length
    column = jnp.minimum(column, length - 1)
    gather = partial(jnp.take_along_axis, axis=1)
    mask = gather(response_mask, column) * inside
    targets = gather(tokens, column)
    shifted = gather(hidden, (column - 1)[:, :, None])  # [B, padded, D]
    logp, entropy = _chunked_logp(
        logits_fn, chunk_length, head, shifted, targets, mask, temperature
    )
    # Back to token indices: column t of the result is column t - start of the shifted arrays.
    back = jnp.arange(length)[None, :] - start[:, None]  # [B, L]
    is_kept = (back >= 0) & (response_mask > 0)
    back = jnp.maximum(back, 0)
    restore = lambda values: jnp.where(is_kept, gather(values, back), 0.0)  # noqa: E731
    return restore(logp), restore(entropy)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chunked_logp(
    logits_fn: LogitsFn,
    chunk_length: int,
    head: Params,
    hidden: Float[Array, "B L D"],
    targets: Int32[Array, "B L"],
    mask: Float32[Array, "B L"],
    temperature: Array,
) -> tuple[Float32[Array, "B L"], Float32[Array, "B L"]]:
    """(logp, entropy) of `targets` given the hidden state of the same column.

    Columns past the last masked one are not computed (zeros); masked-out columns before it are.
    """
    outputs, _ = _forward(logits_fn, chunk_length, head, hidden, targets, mask, temperature)
    return outputs


def _forward(logits_fn, chunk_length, head, hidden, targets, mask, temperature):  # type: ignore[no-untyped-def]
    def body(index, carry):  # type: ignore[no-untyped-def]
        start = index * chunk_length
        part = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=chunk_length)
        logits = logits_fn(head, part(hidden, axis=1)) / temperature  # [B, C, V]
        top = jnp.max(logits, axis=-1, keepdims=True)
        lse = top[..., 0] + jnp.log(jnp.sum(jnp.exp(logits - top), axis=-1))
        # A one-hot sum instead of a gather: it stays local when V is sharded.
        logp = jnp.sum(jnp.where(_one_hot(part(targets, axis=1), logits), logits, 0.0), -1) - lse
        mean_logit = jnp.sum(jnp.exp(logits - lse[..., None]) * logits, axis=-1)
        put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=1)
        values = (logp, lse - mean_logit, lse)
        return tuple(put(whole, new) for whole, new in zip(carry, values, strict=True))

    zeros = jnp.zeros(targets.shape, jnp.float32)
    logp, entropy, lse = jax.lax.fori_loop(
        0, _num_chunks(mask, chunk_length), body, (zeros, zeros, zeros)
    )
    residuals = (head, hidden, targets, mask, temperature, lse, entropy)
    return (logp, entropy), residuals


def _backward(logits_fn, chunk_length, residuals, cotangents):  # type: ignore[no-untyped-def]
    head, hidden, targets, mask, temperature, lse, entropy = residuals
    # Masked here as well, so that padding cannot put 0 * inf into a weight gradient.
    logp_bar, entropy_bar = (jnp.where(mask > 0, bar, 0.0) for bar in cotangents)

    def body(index, carry):  # type: ignore[no-untyped-def]
        hidden_bar, head_bar = carry
        start = index * chunk_length
        part = partial(
            jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=chunk_length, axis=1
        )
        raw, pull_back = jax.vjp(logits_fn, head, part(hidden))
        log_probs = raw / temperature - part(lse)[..., None]  # [B, C, V]
        one_hot = _one_hot(part(targets), raw).astype(jnp.float32)
        # d logp / d logits = onehot - p;  d entropy / d logits = -p (log p + entropy)
        per_prob = part(logp_bar)[..., None] + part(entropy_bar)[..., None] * (
            log_probs + part(entropy)[..., None]
        )
        bar = part(logp_bar)[..., None] * one_hot - jnp.exp(log_probs) * per_prob
        head_part, hidden_part = pull_back(bar / temperature)
        hidden_bar = jax.lax.dynamic_update_slice_in_dim(hidden_bar, hidden_part, start, axis=1)
        return hidden_bar, jax.tree.map(jnp.add, head_bar, head_part)

    zeros = jax.tree.map(jnp.zeros_like, (hidden, head))
    hidden_bar, head_bar = jax.lax.fori_loop(0, _num_chunks(mask, chunk_length), body, zeros)
    return head_bar, hidden_bar, None, None, jnp.zeros_like(temperature)


_chunked_logp.defvjp(_forward, _backward)


def _one_hot(targets: Array, logits: Array) -> Array:
    """bool[B C V]: the target's entry, from an iota so that it is never stored."""
    iota = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return iota == targets[..., None]


def _num_chunks(mask: Float32[Array, "B L"], chunk_length: int) -> Array:
    """Chunks up to the last column in which any row has a counted token."""
    last = jnp.max(jnp.where(mask > 0, jnp.arange(1, mask.shape[1] + 1)[None, :], 0))
    return (last + chunk_length - 1) // chunk_length
