"""Policy objectives: unreduced sums, divided once by the caller.

An objective maps the log-probs of the tokens in a micro-batch to a sum over tokens and a count.
Sums and counts of micro-batches add up, so the division at the very end gives the exact mean over
the mini-batch however its rows were split, packed, padded or ordered. Weighting each micro-batch by
its own mean, as some trainers do, is left out on purpose: its result depends on the packing.

`OBJECTIVES` lists the objectives; docs/objectives.md puts them side by side. r is the probability
ratio exp(logp - old_logp) of a token, A its advantage.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from codea1_jax.rl.kl import KL_ESTIMATORS, LOG_RATIO_LIMIT, KlEstimator, kl_estimate
from codea1_jax.typing import Array, Bool, Float32, Int32

Normalization = Literal["token", "sequence", "constant"]
Importance = Literal["none", "token", "sequence", "icepop"]


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """What an update optimizes.

    Attributes:
      objective: "grpo", "dr_grpo", "dapo", "gspo" or "cispo" (`OBJECTIVES`).
      normalization: what the loss is a mean of. "token": all tokens of the mini-batch. "sequence":
        sequences, each the mean of its tokens. "constant": sequences, each the sum of its tokens
        over max_response_tokens. "": the objective's own.
      clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high]
        (clip-higher: DAPO, arXiv 2503.14476, section 3.1).
      dual_clip: bound on the loss of a token with negative advantage, in units of |advantage|
        (dual-clip PPO, arXiv 1912.09729, eq. 5); 0 turns it off. CISPO has none.
      kl_coefficient: weight of the KL term against the frozen reference; 0: no reference needed.
      kl_estimator: "k1", "k2" or "k3" (rl/kl.py).
      entropy_coefficient: weight of the entropy bonus; the entropy is logged either way.
      temperature: divides the logits, in the update and in the log-probs it is compared with. It is
        the rollout's temperature.
      max_response_tokens: the rollout's limit, for "constant" and for the overlong penalty.
      overlong_buffer: this share of max_response_tokens, the last part, costs up to 1 reward
        (DAPO, eq. 13, has a fifth; rl/advantages.py); 0: no penalty.
      importance: correction of the gap between sampler and learner (rl/importance.py).
      importance_cap: weights above it are cut to it ("token", "sequence") or to 0 ("icepop").
      importance_floor: "icepop" cuts weights below it to 0.
      max_mismatch_kl: the run stops, saved, when the KL between sampler and learner exceeds it in a
        step; 0: never.
    """

    objective: str = "grpo"
    normalization: Normalization | Literal[""] = ""
    clip_low: float = 0.20
    clip_high: float = 0.28
    dual_clip: float = 10.0
    kl_coefficient: float = 0.001
    kl_estimator: KlEstimator = "k3"
    entropy_coefficient: float = 0.0
    temperature: float = 1.0
    max_response_tokens: int = 0
    overlong_buffer: float = 0.0
    importance: Importance = "none"
    importance_cap: float = 2.0
    importance_floor: float = 0.5
    max_mismatch_kl: float = 0.0

    def __post_init__(self) -> None:
        one_of = lambda names: f"use one of {', '.join(names)}"  # noqa: E731
        importances = ("none", "token", "sequence", "icepop")
        normalizations = ("token", "sequence", "constant")
        rules = (
            ("objective", self.objective in OBJECTIVES, one_of(OBJECTIVES)),
            (
                "normalization",
                self.normalization in ("", *normalizations),
                one_of(normalizations) + ", or '' for the objective's own",
            ),
            ("clip_low", 0.0 <= self.clip_low <= 1.0, "it must be in [0, 1]"),
            ("clip_high", self.clip_high >= 0.0, "it must not be negative"),
            (
                "dual_clip",
                self.dual_clip == 0.0 or self.dual_clip > 1.0,
                "it must be above 1, or 0 to turn it off",
            ),
            ("kl_coefficient", self.kl_coefficient >= 0.0, "it must not be negative"),
            ("kl_estimator", self.kl_estimator in KL_ESTIMATORS, one_of(KL_ESTIMATORS)),
            (
                "temperature",
                self.temperature > 0.0,
                "it must be above 0 (greedy samples have no policy gradient)",
            ),
            ("overlong_buffer", 0.0 <= self.overlong_buffer <= 1.0, "it must be in [0, 1]"),
            ("importance", self.importance in importances, one_of(importances)),
            ("importance_cap", self.importance_cap >= 1.0, "it must be at least 1"),
            ("importance_floor", 0.0 <= self.importance_floor <= 1.0, "it must be in [0, 1]"),
            ("max_mismatch_kl", self.max_mismatch_kl >= 0.0, "it must not be negative"),
        )
        for name, is_right, rule in rules:
            if not is_right:
                raise ValueError(f"LossConfig.{name}={getattr(self, name)!r}; {rule}")
        is_limit_needed = self.loss_normalization == "constant" or self.overlong_buffer > 0.0
        if is_limit_needed and self.max_response_tokens < 1:
            raise ValueError(
                f"LossConfig.max_response_tokens={self.max_response_tokens}; normalization "
                "'constant' and overlong_buffer need it, set it to SamplingParams.max_new_tokens"
            )

    @property
    def loss_normalization(self) -> Normalization:
        return self.normalization or OBJECTIVES[self.objective].normalization

    @property
    def normalize_std(self) -> bool:
        """Whether advantages are divided by their group's standard deviation."""
        return OBJECTIVES[self.objective].normalize_std


class PolicyTerms(NamedTuple):
    """An objective's policy term per token, unmasked.

    Attributes:
      loss: to be minimized.
      ratio: the probability ratio it looked at.
      is_low, is_high: the ratio was clipped from below, from above.
      is_dual: the dual clip was at work.
    """

    loss: Float32[Array, "B L"]
    ratio: Float32[Array, "B L"]
    is_low: Bool[Array, "B L"]
    is_high: Bool[Array, "B L"]
    is_dual: Bool[Array, "B L"]


def token_ratio(logp: Array, rows: dict[str, Any], config: LossConfig) -> PolicyTerms:
    """Clipped ratio of each token (PPO, arXiv 1707.06347, eq. 7).

    GRPO (arXiv 2402.03300, eq. 3), here as a token mean; Dr. GRPO (arXiv 2503.20783, section 3.2):
    advantages without the standard deviation, a constant length; DAPO (arXiv 2503.14476, eq. 8).
    With r = exp(clamp(logp - old_logp, -20, 20)) the loss of a token is
    max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), at most -A dual_clip where A < 0.
    """
    return _clipped(_ratio(logp - rows["old_logp"]), rows["advantages"], config)


def sequence_ratio(logp: Array, rows: dict[str, Any], config: LossConfig) -> PolicyTerms:
    """GSPO: one clipped ratio a sequence (arXiv 2507.18071, eq. 5 to 7).

    s = exp(mean over the sequence's tokens of logp - old_logp); the sequence's loss is that of
    `token_ratio` with s for r. Every token carries it, and the mean over tokens gives it back.
    """
    difference = rows["response_mask"] * (logp - rows["old_logp"])
    length = jnp.maximum(sample_sums(rows["response_mask"], rows["sample_ids"]), 1.0)
    ratio = _ratio(sample_sums(difference, rows["sample_ids"]) / length)
    return _clipped(ratio, rows["advantages"], config)


def clipped_weight(logp: Array, rows: dict[str, Any], config: LossConfig) -> PolicyTerms:
    """CISPO: the clipped ratio is a constant weight, so no token loses its gradient.

    MiniMax-M1 (arXiv 2506.13585, eq. 4 and 5): the loss of a token is
    -stop_gradient(clip(r, 1 - clip_low, 1 + clip_high)) A logp. clip_low 1: no lower bound.
    """
    ratio = _ratio(logp - rows["old_logp"])
    low, high = 1.0 - config.clip_low, 1.0 + config.clip_high
    weight = jax.lax.stop_gradient(jnp.clip(ratio, low, high))
    loss = -weight * rows["advantages"] * logp
    return PolicyTerms(loss, ratio, ratio < low, ratio > high, jnp.zeros_like(ratio, dtype=bool))


@dataclasses.dataclass(frozen=True)
class Objective:
    """A policy term, what its mean is over, and how its advantages are scaled."""

    terms: Callable[[Array, dict[str, Any], LossConfig], PolicyTerms]
    normalization: Normalization = "token"
    normalize_std: bool = True


OBJECTIVES = {
    "grpo": Objective(token_ratio),
    "dr_grpo": Objective(token_ratio, "constant", normalize_std=False),
    "dapo": Objective(token_ratio),
    "gspo": Objective(sequence_ratio, "sequence"),
    "cispo": Objective(clipped_weight),
}


class LossOutput(NamedTuple):
    """Sums over the counted tokens of one micro-batch.

    Attributes:
      loss_sum: what is differentiated.
      divisor: this micro-batch's share of what loss and gradient sums are divided by.
      sums: metrics to divide by the token count (float32 scalars).
      maxima: metrics to combine by maximum.
    """

    loss_sum: Array
    divisor: Array
    sums: dict[str, Array]
    maxima: dict[str, Array]


class LossFn(Protocol):
    """Sums a loss over the tokens with `rows["response_mask"]` 1.

    `rows` holds the arrays of a PackedRows, whose columns are counted tokens; `logp` and `entropy`
    are zero outside the mask.
    """

    def __call__(
        self, logp: Float32[Array, "B L"], entropy: Float32[Array, "B L"], rows: dict[str, Any]
    ) -> LossOutput: ...


def policy_loss(
    logp: Float32[Array, "B L"],
    entropy: Float32[Array, "B L"],
    rows: dict[str, Any],
    config: LossConfig,
) -> LossOutput:
    """The objective's policy term plus KL to the reference minus the entropy bonus.

    All three have the normalization of `config`; metrics in `sums` are plain sums over tokens.
    """
    mask = rows["response_mask"]  # [B, L]
    terms = OBJECTIVES[config.objective].terms(logp, rows, config)
    log_ratio = jnp.clip(logp - rows["old_logp"], -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    total = lambda values: jnp.sum(mask * values, dtype=jnp.float32)  # noqa: E731
    share = lambda is_true: total(is_true.astype(jnp.float32))  # noqa: E731
    sums = {
        "policy_loss": total(terms.loss),
        "entropy": total(entropy),
        "clip_fraction_low": share(terms.is_low),
        "clip_fraction_high": share(terms.is_high),
        "dual_clip_fraction": share(terms.is_dual),
        "ratio_mean": total(terms.ratio),
        # KL(old || new), k3 on the samples' own distribution: how far this step moved the policy.
        "policy_kl": total(jnp.exp(log_ratio) - log_ratio - 1.0),
    }
    loss = terms.loss
    if config.kl_coefficient:
        kl = kl_estimate(logp, rows["ref_logp"], config.kl_estimator)
        loss = loss + config.kl_coefficient * kl
        sums["kl"] = total(kl)
    if config.entropy_coefficient:
        loss = loss - config.entropy_coefficient * entropy
    weight, count = _normalize(rows, config)
    maxima = {"ratio_max": jnp.max(mask * terms.ratio)}
    return LossOutput(total(weight * loss), *jax.lax.stop_gradient((count, sums, maxima)))


def sft_loss(
    logp: Float32[Array, "B L"], entropy: Float32[Array, "B L"], rows: dict[str, Any]
) -> LossOutput:
    """Cross-entropy of the response tokens (supervised fine-tuning), a token mean."""
    mask = rows["response_mask"]
    loss_sum = -jnp.sum(mask * logp, dtype=jnp.float32)
    sums = {"entropy": jnp.sum(mask * entropy, dtype=jnp.float32)}
    count = jnp.sum(mask, dtype=jnp.float32)
    return LossOutput(loss_sum, *jax.lax.stop_gradient((count, sums, {})))


def sample_sums(
    values: Float32[Array, "B L"], sample_ids: Int32[Array, "B L"]
) -> Float32[Array, "B L"]:
    """At every column the sum of `values` over the columns of the same sample in that row.

    Exact under micro-batching: a sample lies in one row.
    """

    def in_row(values: Array, ids: Array) -> Array:
        return jax.ops.segment_sum(values, ids, num_segments=values.shape[0] + 1)[ids]

    return jax.vmap(in_row)(values, sample_ids)


def _ratio(log_ratio: Array) -> Array:
    return jnp.exp(jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def _clipped(ratio: Array, advantage: Array, config: LossConfig) -> PolicyTerms:
    """The pessimistic clipped loss of given ratios, with the dual clip."""
    plain = -advantage * ratio
    clipped = -advantage * jnp.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    loss = jnp.maximum(plain, clipped)
    is_clipped = clipped > plain
    is_dual = jnp.zeros_like(is_clipped)
    if config.dual_clip:
        bound = -advantage * config.dual_clip
        is_dual = (advantage < 0.0) & (loss > bound)
        loss = jnp.where(advantage < 0.0, jnp.minimum(loss, bound), loss)
    is_low, is_high = is_clipped & (advantage < 0.0), is_clipped & (advantage > 0.0)
    return PolicyTerms(loss, ratio, is_low, is_high, is_dual)


def _normalize(rows: dict[str, Any], config: LossConfig) -> tuple[Array, Array]:
    """(weight of each counted token [B L], what the weighted sum is divided by)."""
    mask = rows["response_mask"]
    if config.loss_normalization == "token":
        return jnp.ones_like(mask), jnp.sum(mask, dtype=jnp.float32)
    # Samples of a row are numbered from 1.
    num_sequences = jnp.sum(jnp.max(rows["sample_ids"], axis=1)).astype(jnp.float32)
    if config.loss_normalization == "sequence":
        return 1.0 / jnp.maximum(sample_sums(mask, rows["sample_ids"]), 1.0), num_sequences
    return jnp.ones_like(mask), num_sequences * config.max_response_tokens
