"""Estimators of KL(policy || reference) from the log-probs of tokens drawn from the policy.

Schulman, "Approximating KL divergence" (2020); k3 as a loss term is DeepSeekMath (arXiv 2402.03300)
eq. 4. With d = log p(token) - log p_ref(token):

  k1 = d                   unbiased, high variance, signed
  k2 = d^2 / 2             biased, low variance
  k3 = exp(-d) - 1 + d     unbiased, low variance, never negative
"""

from typing import Literal, get_args

import jax.numpy as jnp

from codea1_jax.typing import Array, Float32

KlEstimator = Literal["k1", "k2", "k3"]
KL_ESTIMATORS: tuple[str, ...] = get_args(KlEstimator)

# exp(20) is still far from float32's limit, and a token that differs by more is an outlier whose
# gradient should vanish instead of dominating the batch.
LOG_RATIO_LIMIT = 20.0
K3_LIMIT = 10.0


def kl_estimate(
    logp: Float32[Array, "B L"], ref_logp: Float32[Array, "B L"], estimator: KlEstimator
) -> Float32[Array, "B L"]:
    """Per-token estimate; differentiable in `logp`, unmasked.

    k3's exponent is clamped to +-20 and its value to +-10; beyond the clamps the gradient is 0.
    """
    if estimator == "k1":
        return logp - ref_logp
    if estimator == "k2":
        return 0.5 * jnp.square(logp - ref_logp)
    if estimator == "k3":
        log_ratio = jnp.clip(ref_logp - logp, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        return jnp.clip(jnp.exp(log_ratio) - log_ratio - 1.0, -K3_LIMIT, K3_LIMIT)
    raise ValueError(f"kl_estimator={estimator!r}; use one of {', '.join(KL_ESTIMATORS)}")
