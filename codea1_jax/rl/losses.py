"""Token losses: unreduced sums, divided once by the caller.

A loss maps the log-probs of the tokens in a batch to a sum over tokens and the number of tokens it
counts. Sums of micro-batches add up, so the division by the mini-batch's token count at the very
end gives the exact token mean (DAPO, arXiv 2503.14476, eq. 8) however the rows were split, padded
or ordered. Weighting each micro-batch by its own mean, as some trainers do, is left out on purpose:
its result depends on the packing.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from codea1_jax.rl.kl import KL_ESTIMATORS, LOG_RATIO_LIMIT, KlEstimator, kl_estimate
from codea1_jax.typing import Array, Float32


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The GRPO objective.

    Attributes:
      clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high]
        (clip-higher: DAPO, arXiv 2503.14476, section 3.1).
      dual_clip: bound on the loss of a token with negative advantage, in units of |advantage|
        (dual-clip PPO, arXiv 1912.09729, eq. 5); 0 turns it off.
      kl_coefficient: weight of the KL term against the frozen reference; 0: no reference needed.
      kl_estimator: "k1", "k2" or "k3" (rl/kl.py).
      entropy_coefficient: weight of the entropy bonus; the entropy is logged either way.
      temperature: divides the logits, in the update and in the log-probs it is compared with. It is
        the rollout's temperature.
    """

    clip_low: float = 0.20
    clip_high: float = 0.28
    dual_clip: float = 10.0
    kl_coefficient: float = 0.001
    kl_estimator: KlEstimator = "k3"
    entropy_coefficient: float = 0.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.clip_low < 1.0:
            raise ValueError(f"LossConfig.clip_low={self.clip_low}; it must be in [0, 1)")
        if self.clip_high < 0.0:
            raise ValueError(f"LossConfig.clip_high={self.clip_high}; it must not be negative")
        if self.dual_clip != 0.0 and self.dual_clip <= 1.0:
            raise ValueError(
                f"LossConfig.dual_clip={self.dual_clip}; it must be above 1, or 0 to turn it off"
            )
        if self.kl_coefficient < 0.0:
            raise ValueError(
                f"LossConfig.kl_coefficient={self.kl_coefficient}; it must not be negative"
            )
        if self.kl_estimator not in KL_ESTIMATORS:
            raise ValueError(
                f"LossConfig.kl_estimator={self.kl_estimator!r}; use one of "
                f"{', '.join(KL_ESTIMATORS)}"
            )
        if self.temperature <= 0.0:
            raise ValueError(
                f"LossConfig.temperature={self.temperature}; it must be above 0 (greedy samples "
                "have no policy gradient)"
            )


class LossOutput(NamedTuple):
    """Sums over the counted tokens of one micro-batch.

    Attributes:
      loss_sum: what is differentiated.
      sums: metrics to divide by the token count (float32 scalars).
      maxima: metrics to combine by maximum.
    """

    loss_sum: Array
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


def grpo_loss(
    logp: Float32[Array, "B L"],
    entropy: Float32[Array, "B L"],
    rows: dict[str, Any],
    config: LossConfig,
) -> LossOutput:
    """Clipped policy loss plus KL to the reference (GRPO, arXiv 2402.03300, eq. 3).

    With r = exp(clamp(logp - old_logp, -20, 20)) and the sample's advantage A, a token's loss is
    max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), at most -A dual_clip where A < 0.
    """
    mask = rows["response_mask"]  # [B, L]
    advantage = rows["advantages"]  # [B, L]
    log_ratio = jnp.clip(logp - rows["old_logp"], -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = jnp.exp(log_ratio)
    plain = -advantage * ratio
    clipped = -advantage * jnp.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    policy = jnp.maximum(plain, clipped)
    is_dual = jnp.zeros_like(mask, dtype=bool)
    if config.dual_clip:
        bound = -advantage * config.dual_clip
        is_dual = (advantage < 0.0) & (policy > bound)
        policy = jnp.where(advantage < 0.0, jnp.minimum(policy, bound), policy)

    total = lambda values: jnp.sum(mask * values, dtype=jnp.float32)  # noqa: E731
    policy_sum = total(policy)
    loss_sum = policy_sum
    is_clipped = clipped > plain
    sums = {
        "policy_loss": policy_sum,
        "entropy": total(entropy),
        "clip_fraction_low": total((is_clipped & (advantage < 0.0)).astype(jnp.float32)),
        "clip_fraction_high": total((is_clipped & (advantage > 0.0)).astype(jnp.float32)),
        "dual_clip_fraction": total(is_dual.astype(jnp.float32)),
        "ratio_mean": total(ratio),
        # KL(old || new), k3 on the samples' own distribution: how far this step moved the policy.
        "policy_kl": total(ratio - log_ratio - 1.0),
    }
    if config.kl_coefficient:
        kl_sum = total(kl_estimate(logp, rows["ref_logp"], config.kl_estimator))
        loss_sum = loss_sum + config.kl_coefficient * kl_sum
        sums["kl"] = kl_sum
    if config.entropy_coefficient:
        loss_sum = loss_sum - config.entropy_coefficient * sums["entropy"]
    sums["loss"] = loss_sum
    maxima = {"ratio_max": jnp.max(mask * ratio)}
    return LossOutput(loss_sum, *jax.lax.stop_gradient((sums, maxima)))


def sft_loss(
    logp: Float32[Array, "B L"], entropy: Float32[Array, "B L"], rows: dict[str, Any]
) -> LossOutput:
    """Cross-entropy of the response tokens (supervised fine-tuning)."""
    loss_sum = -jnp.sum(rows["response_mask"] * logp, dtype=jnp.float32)
    entropy_sum = jnp.sum(rows["response_mask"] * entropy, dtype=jnp.float32)
    sums = {"loss": loss_sum, "entropy": entropy_sum}
    return LossOutput(loss_sum, jax.lax.stop_gradient(sums), {})
