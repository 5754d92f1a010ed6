"""The gap between the sampler's and the learner's log-probs: how wide it is, and its correction.

A response was drawn from the sampler's distribution mu, and the update takes it for one of the
learner's, pi. Both are the same model here, but not the same program; with other kernels, low
precision or truncated sampling they drift apart. The correction multiplies a token's advantage with
a bounded importance weight, a constant of the update, from rho = pi(token) / mu(token):

  token      min(rho, cap): truncated importance sampling, Yao et al., "Your Efficient RL Framework
             Secretly Brings You Off-Policy RL Training" (2025).
  sequence   min(product of rho over the response, cap), the same for all its tokens: less biased,
             more variance.
  icepop     rho where floor <= rho <= cap, else 0: IcePop, arXiv 2510.18855.
"""

import numpy as np

from codea1_jax.rl.batching import TrainBatch
from codea1_jax.rl.kl import LOG_RATIO_LIMIT
from codea1_jax.rl.losses import LossConfig
from codea1_jax.typing import Float32


def importance_weights(
    batch: TrainBatch, config: LossConfig
) -> tuple[Float32[np.ndarray, "B L"], dict[str, float]]:
    """Weights for `TrainBatch.weights`, and what the gap is made of.

    Args:
      batch: with `old_logp` and `sampler_logp`.

    Returns:
      (weights, metrics). Weights are ones with `importance` "none" and outside the mask. Metrics,
      over the counted tokens, with d = old_logp - sampler_logp:
        mismatch_mean, mismatch_max: of |d|.
        mismatch_kl: k3 estimate of KL(sampler || learner), mean of exp(d) - 1 - d.
        mismatch_clipped_share: tokens whose rho the correction cuts, or with "none" would cut if it
          were "token".
        importance_mean: the mean weight; far from 1 means a biased update.
    """
    counted = batch.response_mask > 0
    gap = np.where(counted, batch.old_logp.astype(np.float64) - batch.sampler_logp, 0.0)  # [B, L]
    values = gap[counted]
    if values.size == 0:
        values = np.zeros(1)
    if config.importance == "sequence":
        gap = np.where(counted, gap.sum(axis=1, keepdims=True), 0.0)
    rho = np.exp(np.clip(gap, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    is_cut = rho > config.importance_cap
    weights = np.minimum(rho, config.importance_cap)
    if config.importance == "icepop":
        is_cut |= rho < config.importance_floor
        weights = np.where(is_cut, 0.0, rho)
    elif config.importance == "none":
        weights = np.ones_like(rho)
    num_tokens = max(int(counted.sum()), 1)
    return weights.astype(np.float32), {
        "mismatch_mean": float(np.abs(values).mean()),
        "mismatch_max": float(np.abs(values).max()),
        "mismatch_kl": float(np.mean(np.expm1(np.minimum(values, 700.0)) - values)),
        "mismatch_clipped_share": float(is_cut[counted].sum()) / num_tokens,
        "importance_mean": float(weights[counted].sum()) / num_tokens,
    }
