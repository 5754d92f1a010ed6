"""Draws one token per row, exactly and as a pure function of the row's own key.

A row's randomness is a key made on the host from (policy version, seed, request, sample) and folded
with the index of the token, so neither the batch nor the order in which rows run can change it.
The draw inverts the CDF in two levels: first a block of 128 tokens, then a token inside it. That
reads the vocabulary once and sorts nothing; Gumbel noise over 152k tokens costs twenty times as
much on a CPU. Each level has its own uniform, so rare tokens inside a block keep float32's
resolution.

Logits have the vocabulary first and rows last, [V B]: sums over the vocabulary then add whole rows
of neighbouring numbers. On CPU 64 rows of 152k take 2.5 ms instead of 28, and the product with the
head, its table on the left, half of its time.
"""

import dataclasses
import hashlib
import json
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from codea1_jax.models.layers import keep_apart
from codea1_jax.rollout.types import SamplingParams
from codea1_jax.typing import Array, Bool, Float32, Int32

BLOCK = 128
# Nucleus candidates looked at before falling back to a search over the whole vocabulary. Language
# models at temperatures around 1 nearly always keep fewer.
TOP_P_CANDIDATES = 256


@dataclasses.dataclass(frozen=True)
class Method:
    """The part of `SamplingParams` that changes the program rather than its inputs."""

    is_greedy: bool
    top_k: int
    has_top_p: bool

    @classmethod
    def from_params(cls, sampling: SamplingParams, vocab_size: int) -> "Method":
        """Checks the parameters.

        Raises:
          ValueError: names the parameter that is out of range.
        """
        if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
            raise ValueError(f"temperature={sampling.temperature}: must be finite and >= 0")
        if not 0 < sampling.top_p <= 1:
            raise ValueError(f"top_p={sampling.top_p}: must be in (0, 1]; 1 turns it off")
        if sampling.top_k < 0:
            raise ValueError(f"top_k={sampling.top_k}: must be >= 0; 0 turns it off")
        if sampling.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={sampling.max_new_tokens}: must be >= 1")
        for token in sampling.stop_token_ids:
            if not 0 <= token < vocab_size:
                raise ValueError(
                    f"stop_token_ids has {token}, outside the model's vocabulary of {vocab_size}"
                )
        is_greedy = sampling.temperature == 0
        top_k = 0 if is_greedy or sampling.top_k >= vocab_size else sampling.top_k
        return cls(is_greedy, top_k, not is_greedy and sampling.top_p < 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draw:
    """One token per row; see `Sample` for the meaning of the two numbers."""

    token: Int32[Array, "B"]
    logp: Float32[Array, "B"]
    kept_mass: Float32[Array, "B"]


def request_key(policy_version: int, seed: int, request_id: str, sample_index: int) -> np.ndarray:
    """uint32[2]: threefry key data of one sample; the same on every host and in every process."""
    identity = json.dumps([policy_version, seed, request_id, sample_index]).encode()
    digest = hashlib.blake2b(identity, digest_size=8).digest()
    return np.frombuffer(digest, "<u4").astype(np.uint32)


def uniforms(key_data: Array, index: Int32[Array, "B"]) -> Float32[Array, "B 2"]:
    """Two numbers in [0, 1) per row from its key (uint32[B 2]) and its token's index."""

    def one(data: Array, i: Array) -> Array:
        key = jax.random.fold_in(jax.random.wrap_key_data(data, impl="threefry2x32"), i)
        return jax.random.uniform(key, (2,), jnp.float32)

    return jax.vmap(one)(key_data, index)


def draw(
    logits: Float32[Array, "V B"],
    key_data: Array,
    index: Int32[Array, "B"],
    temperature: Float32[Array, ""],
    top_p: Float32[Array, ""],
    method: Method,
) -> Draw:
    """Draws a token per row from softmax(logits / temperature), truncated as `method` says.

    Args:
      logits: at least one per row is finite; a row with NaN gets a NaN log-probability.
      key_data: uint32[B 2] from `request_key`.
      index: which token of the response this is, from 0.
      temperature, top_p: traced, so that changing them compiles nothing. Unused when greedy.
      method: static.
    """
    if method.is_greedy:
        token = jnp.argmax(logits, axis=0).astype(jnp.int32)
        # log softmax at the maximum: minus the log of the sum of exp(logit - maximum).
        rest = jnp.exp(logits - logits.max(axis=0, keepdims=True)).sum(axis=0)
        return Draw(token, -jnp.log(rest), jnp.ones_like(rest))
    scale = _Scale(logits.max(axis=0), 1 / temperature)
    limit = total = None
    if method.top_k or method.has_top_p:
        total = _weights(logits, scale).sum(axis=0)
        limit = _truncation_limit(logits, scale, total, top_p, method)
    token, kept = _invert_cdf(logits, scale, limit, uniforms(key_data, index))
    drawn_below = scale.below(jnp.take_along_axis(logits, token[None], axis=0))[0]
    one = jnp.ones_like(kept)
    kept_mass = one if total is None else jnp.minimum(kept / total, one)
    return Draw(token, -drawn_below - jnp.log(kept), kept_mass)


class _Scale(NamedTuple):
    """What turns logits into distances from the most likely token: each row's peak, and 1/T.

    Logits are divided by the temperature where they are read: writing them once more takes longer
    than all the rest on CPU.
    """

    peak: Float32[Array, "B"]
    sharpness: Float32[Array, ""]

    def below(self, logits: Float32[Array, "*M B"]) -> Float32[Array, "*M B"]:
        """log of the peak's probability over that of each token."""
        return (jnp.expand_dims(self.peak, range(logits.ndim - 1)) - logits) * self.sharpness


def _weights(
    logits: Float32[Array, "*M B"], scale: _Scale, limit: Float32[Array, "B"] | None = None
) -> Float32[Array, "*M B"]:
    """Probability over the peak's, 0 for tokens more than `limit` below the peak.

    Cheap enough to be recomputed where it is needed: storing it costs more than the exponentials.
    """
    below = scale.below(logits)
    weights = jnp.exp(-below)
    if limit is None:
        return weights
    is_kept = below <= jnp.expand_dims(limit, range(below.ndim - 1))
    return jnp.where(is_kept, weights, jnp.zeros_like(weights))


def _truncation_limit(
    logits: Float32[Array, "V B"],
    scale: _Scale,
    total: Float32[Array, "B"],
    top_p: Float32[Array, ""],
    method: Method,
) -> Float32[Array, "B"]:
    """How far below the peak a token is still kept; tokens tied with the last one are kept too.

    Top-k keeps the k most likely tokens; top-p then keeps the fewest of them, most likely first,
    whose renormalised mass reaches `top_p` (at least one).
    """
    vocab_size = len(logits)
    num_candidates = method.top_k or min(TOP_P_CANDIDATES, vocab_size)
    candidates = scale.below(jax.lax.top_k(logits.T, num_candidates)[0].T).T  # [B C], rising
    if method.top_k:
        limit = candidates[:, -1]
        if not method.has_top_p:
            return limit
        total = _weights(logits, scale, limit).sum(axis=0)
    goal = top_p * total
    mass = jnp.cumsum(jnp.exp(-candidates), axis=-1)
    before = mass - jnp.exp(-candidates)
    is_kept = before < goal[:, None]
    limit = jnp.where(is_kept, candidates, jnp.full_like(candidates, -1)).max(axis=-1)
    if method.top_k or num_candidates == vocab_size:
        return limit
    # Per row, so that one flat row in the batch does not change what its neighbours keep.
    is_enough = mass[:, -1] >= goal
    return jax.lax.cond(
        is_enough.all(),
        lambda: limit,
        lambda: jnp.where(is_enough, limit, _search_limit(logits, scale, goal)),
    )


def _search_limit(
    logits: Float32[Array, "V B"], scale: _Scale, goal: Float32[Array, "B"]
) -> Float32[Array, "B"]:
    """Smallest distance d such that the mass of tokens at most d below the peak reaches `goal`.

    Bisects over the bit patterns of non-negative float32, which are ordered like the numbers:
    31 passes over the vocabulary, and no sort.
    """

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # the answer is in [low, high]
        middle = low + (high - low) // 2
        limit = jax.lax.bitcast_convert_type(middle, jnp.float32)
        is_enough = _weights(logits, scale, limit).sum(axis=0) >= goal
        return jnp.where(is_enough, low, middle + 1), jnp.where(is_enough, middle, high)

    low = jnp.zeros(goal.shape, jnp.int32)
    high = jnp.full(goal.shape, np.float32(np.inf).view(np.int32), jnp.int32)
    _, high = jax.lax.fori_loop(0, 31, halve, (low, high))
    return jax.lax.bitcast_convert_type(high, jnp.float32)


def _invert_cdf(
    logits: Float32[Array, "V B"],
    scale: _Scale,
    limit: Float32[Array, "B"] | None,
    uniform: Float32[Array, "B 2"],
) -> tuple[Int32[Array, "B"], Float32[Array, "B"]]:
    """A token per row with probability proportional to its weight, and the sum of the weights."""
    vocab_size, num_rows = logits.shape
    num_blocks = -(-vocab_size // BLOCK)
    if vocab_size % BLOCK:
        padding = ((0, num_blocks * BLOCK - vocab_size), (0, 0))
        logits = jnp.pad(logits, padding, constant_values=-np.inf)
    blocks = logits.reshape(num_blocks, BLOCK, num_rows)
    # Apart: XLA would add up the whole vocabulary a second time for the total.
    sums = keep_apart(_weights(blocks, scale, limit).sum(axis=1))
    block = _first_above(sums, uniform[:, 0])
    inner = jnp.take_along_axis(blocks, block[None, None], axis=0)[0]  # [BLOCK B]
    offset = _first_above(_weights(inner, scale, limit), uniform[:, 1])
    # Padding has no weight; only a row of NaN gets here with a token outside the vocabulary.
    token = jnp.minimum(block * BLOCK + offset, vocab_size - 1)
    return token, sums.sum(axis=0)


def _first_above(weights: Float32[Array, "M B"], uniform: Float32[Array, "B"]) -> Int32[Array, "B"]:
    """First index whose cumulative weight exceeds `uniform` of the whole; never one of weight 0.

    The running sum is rounded and need not rise monotonically, so positivity is asked for itself
    and the last positive entry stands in where rounding leaves nothing above the target.
    """
    mass = jnp.cumsum(weights, axis=0)
    is_positive: Bool[Array, "M B"] = weights > 0
    is_above = is_positive & (mass > (uniform * mass[-1])[None])
    first = jnp.argmax(is_above, axis=0)
    last = len(weights) - 1 - jnp.argmax(is_positive[::-1], axis=0)
    return jnp.where(is_above.any(axis=0), first, last).astype(jnp.int32)
