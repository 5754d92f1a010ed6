"""AdamW with warm-up and cosine, global-norm clipping, and steps skipped when they are not finite.

The learning rate is a function of the training step, not of the number of updates: all mini-batches
of a step use one rate.
"""

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from codea1_jax.typing import Array, Params


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (arXiv 1711.05101, algorithm 2) on every parameter, norms and biases included.

    Attributes:
      total_steps: training steps of the run; the cosine reaches 0 after the last.
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


def adam(config: OptimizerConfig) -> optax.GradientTransformation:
    """Adam's direction; rate, decay and clipping are applied in `clipped_step`."""
    return optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)


def clipped_step(
    config: OptimizerConfig, params: Params, opt_state: Any, grads: Params, lr: Array
) -> tuple[Params, Any, Array, Array]:
    """One AdamW step; nothing moves if the gradient's norm is not finite.

    Args:
      params, grads: float32 trees of the same structure.
      lr: float32 scalar.

    Returns:
      (params, opt_state, gradient norm before clipping, whether the step was taken).
    """
    grad_norm = optax.tree.norm(grads)
    is_taken = jnp.isfinite(grad_norm)
    scale = jnp.float32(1.0)
    if config.max_grad_norm:
        # torch.nn.utils.clip_grad_norm_'s form, epsilon included.
        scale = jnp.minimum(1.0, config.max_grad_norm / (grad_norm + 1e-6))
    grads = jax.tree.map(lambda g: g * scale, grads)
    with jax.numpy_dtype_promotion("standard"):  # optax raises a Python float to an int32 count
        direction, new_opt_state = adam(config).update(grads, opt_state, params)
    new_params = jax.tree.map(
        lambda p, d: p - lr * (d + config.weight_decay * p), params, direction
    )
    keep = lambda new, old: jnp.where(is_taken, new, old)  # noqa: E731
    return (
        jax.tree.map(keep, new_params, params),
        jax.tree.map(keep, new_opt_state, opt_state),
        grad_norm,
        is_taken,
    )
