"""AdamW with warm-up and cosine, global-norm clipping, and steps skipped when they are not finite.

The learning rate is a function of the training step, not of the number of updates: all mini-batches
of a step use one rate.
"""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from codea1_jax.typing import Array, Params


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (arXiv 1711.05101, algorithm 2) on every parameter, norms and biases included.

    Attributes:
      total_steps: training steps of the run; the cosine reaches 0 after the last.
      mu_dtype: of the stored first moment. bfloat16 saves 2 bytes a parameter; the second moment
        stays float32, because its changes at b2=0.999 are below bfloat16's resolution.
      max_grad_norm: bound on the global norm of the gradient; 0 turns clipping off.
      zero_first_step: the first step's rate is 0, as with a scheduler that counts from 0 (the
        official recipe). Otherwise the warm-up's first rate is peak_lr / warmup_steps.
    """

    peak_lr: float = 1e-6
    warmup_steps: int = 10
    total_steps: int = 111
    schedule: Literal["cosine", "constant"] = "cosine"
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.1
    mu_dtype: Literal["float32", "bfloat16"] = "float32"
    max_grad_norm: float = 1.0
    zero_first_step: bool = False

    def __post_init__(self) -> None:
        if self.peak_lr < 0.0:
            raise ValueError(f"OptimizerConfig.peak_lr={self.peak_lr}; it must not be negative")
        if self.schedule not in ("cosine", "constant"):
            raise ValueError(
                f"OptimizerConfig.schedule={self.schedule!r}; use 'cosine' or 'constant'"
            )
        if self.warmup_steps < 0:
            raise ValueError(f"OptimizerConfig.warmup_steps={self.warmup_steps} is negative")
        if self.schedule == "cosine" and self.total_steps < 1:
            raise ValueError(f"OptimizerConfig.total_steps={self.total_steps}; it must be positive")
        for name in ("b1", "b2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"OptimizerConfig.{name}={getattr(self, name)}; use [0, 1)")
        if self.mu_dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"OptimizerConfig.mu_dtype={self.mu_dtype!r}; use 'float32' or 'bfloat16'"
            )
        if self.max_grad_norm < 0.0:
            raise ValueError(f"OptimizerConfig.max_grad_norm={self.max_grad_norm} is negative")


def lr_multiplier(config: OptimizerConfig, training_step: int) -> float:
    """Share of the peak rate at a training step, counted from 1.

    Warm-up is linear; the half-cosine then falls from 1 at step warmup_steps + 1 to nearly 0 at
    total_steps.
    """
    if training_step < 1:
        raise ValueError(f"training steps count from 1, got {training_step}")
    done = training_step - 1
    if done < config.warmup_steps:
        return (done if config.zero_first_step else training_step) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = (done - config.warmup_steps) / max(config.total_steps - config.warmup_steps, 1)
    return 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))


def init_moments(config: OptimizerConfig, params: Params) -> optax.ScaleByAdamState:
    """Zero moments for float32 `params`, sharded like them."""
    mu = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.dtype(config.mu_dtype)), params)
    return optax.ScaleByAdamState(jnp.int32(0), mu, jax.tree.map(jnp.zeros_like, params))


def clipped_step(
    config: OptimizerConfig,
    params: Params,
    moments: optax.ScaleByAdamState,
    grad_sums: Params,
    count: Array,
    lr: Array,
) -> tuple[Params, optax.ScaleByAdamState, Array, Array]:
    """One AdamW step; nothing moves if the gradient's norm is not finite.

    Args:
      params, grad_sums: float32 trees of the same structure.
      count: float32 scalar; the gradient is grad_sums / count.
      lr: float32 scalar.

    Returns:
      (params, moments, gradient norm before clipping, whether the step was taken).
    """
    grad_norm = optax.tree.norm(grad_sums) / count
    is_taken = jnp.isfinite(grad_norm)
    scale = 1.0 / count
    if config.max_grad_norm:
        # torch.nn.utils.clip_grad_norm_'s form, epsilon included.
        scale = scale * jnp.minimum(1.0, config.max_grad_norm / (grad_norm + 1e-6))
    num_steps = moments.count + is_taken.astype(jnp.int32)
    step = jnp.maximum(num_steps, 1).astype(jnp.float32)
    mu_correction = 1.0 - jnp.float32(config.b1) ** step
    nu_correction = 1.0 - jnp.float32(config.b2) ** step

    def next_mu(mu: Array, grad: Array) -> Array:
        new = config.b1 * mu.astype(jnp.float32) + (1.0 - config.b1) * scale * grad
        return jnp.where(is_taken, new.astype(mu.dtype), mu)

    def next_nu(nu: Array, grad: Array) -> Array:
        new = config.b2 * nu + (1.0 - config.b2) * jnp.square(scale * grad)
        return jnp.where(is_taken, new, nu)

    def next_param(param: Array, mu: Array, nu: Array) -> Array:
        direction = (mu.astype(jnp.float32) / mu_correction) / (
            jnp.sqrt(nu / nu_correction) + config.eps
        )
        return jnp.where(is_taken, param - lr * (direction + config.weight_decay * param), param)

    # Moments first, then parameters from the new moments: each result can take its argument's
    # place in memory. Without the barrier XLA reads the old moments again and so copies them.
    mu, nu = jax.lax.optimization_barrier(
        (jax.tree.map(next_mu, moments.mu, grad_sums), jax.tree.map(next_nu, moments.nu, grad_sums))
    )
    params = jax.tree.map(next_param, params, mu, nu)
    return params, optax.ScaleByAdamState(num_steps, mu, nu), grad_norm, is_taken
