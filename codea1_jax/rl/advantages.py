"""Group-relative advantages (GRPO; DeepSeekMath, arXiv 2402.03300, section 4.1.2).

Everything here is NumPy in float64: rewards are few, and bf16 rewards merge near-ties.
"""

from typing import Literal

import numpy as np

from codea1_jax.typing import Bool, Float, Int

Singleton = Literal["zero", "raw"]


def effective_mask(
    rewards: Float[np.ndarray, "Q G"], mask: Bool[np.ndarray, "Q G"] | None
) -> Bool[np.ndarray, "Q G"]:
    """Samples with a usable reward: known verdict (`mask`) and a finite number."""
    rewards = np.asarray(rewards, np.float64)
    if rewards.ndim != 2:
        raise ValueError(f"rewards must be [groups, samples], got shape {rewards.shape}")
    known = np.ones(rewards.shape, bool) if mask is None else np.asarray(mask).astype(bool)
    if known.shape != rewards.shape:
        raise ValueError(f"mask has shape {known.shape}, rewards have {rewards.shape}")
    return known & np.isfinite(rewards)


def group_advantages(
    rewards: Float[np.ndarray, "Q G"],
    mask: Bool[np.ndarray, "Q G"] | None = None,
    *,
    eps: float = 1e-6,
    normalize_std: bool = True,
    singleton: Singleton = "zero",
) -> Float[np.ndarray, "Q G"]:
    """(r - mean) / (std + eps) within each group of samples of one prompt.

    The standard deviation is the unbiased one (ddof 1). Samples outside `effective_mask` (unknown
    verdict, NaN or infinite reward) take no part in mean and deviation and get advantage 0; the
    caller also leaves them out of the loss. A group whose rewards are all equal gets exact zeros,
    so that rounding of its mean is not blown up by 1/eps.

    Args:
      rewards: one row a prompt.
      mask: true where the verdict is known; None means everywhere.
      eps: added to the deviation.
      normalize_std: False leaves the division out (Dr. GRPO, arXiv 2503.20783, section 3.2).
      singleton: a group with one usable sample has no baseline. "zero" gives advantage 0; "raw"
        takes mean 0 and deviation 1, which turns the reward itself into the advantage.

    Returns:
      float64 [Q, G].
    """
    if singleton not in ("zero", "raw"):
        raise ValueError(f"singleton={singleton!r}; use 'zero' or 'raw'")
    known = effective_mask(rewards, mask)
    values = np.where(known, np.asarray(rewards, np.float64), 0.0)
    count = known.sum(axis=1, keepdims=True)  # [Q, 1]
    mean = values.sum(axis=1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(known, values - mean, 0.0)
    variance = np.square(centred).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1)
    scale = np.sqrt(variance) + eps if normalize_std else np.ones_like(variance)
    advantages = np.where(_is_varied(values, known)[:, None], centred / scale, 0.0)
    if singleton == "raw":
        raw = values / (1.0 + eps) if normalize_std else values
        advantages = np.where(count == 1, raw, advantages)
    return advantages


def overlong_penalty(
    lengths: Int[np.ndarray, "Q G"], max_tokens: int, buffer: float
) -> Float[np.ndarray, "Q G"]:
    """What is added to the rewards of long responses (DAPO, arXiv 2503.14476, eq. 13).

    0 up to max_tokens - buffer, from there linearly down to -1 at max_tokens.

    Args:
      lengths: response lengths in tokens.
      buffer: tokens, above 0.
    """
    return np.clip((max_tokens - buffer - np.asarray(lengths, np.float64)) / buffer, -1.0, 0.0)


def group_statistics(
    rewards: Float[np.ndarray, "Q G"], mask: Bool[np.ndarray, "Q G"] | None = None
) -> dict[str, float]:
    """Counts worth logging: what the advantages were computed from and what was left out."""
    known = effective_mask(rewards, mask)
    asked = np.ones(known.shape, bool) if mask is None else np.asarray(mask).astype(bool)
    values = np.where(known, np.asarray(rewards, np.float64), 0.0)
    count = known.sum(axis=1)
    return {
        "num_groups": float(known.shape[0]),
        "num_unknown": float((~asked).sum()),
        "num_nonfinite": float((asked & ~known).sum()),
        "num_empty_groups": float((count == 0).sum()),
        "num_singleton_groups": float((count == 1).sum()),
        "num_zero_variance_groups": float(((count > 1) & ~_is_varied(values, known)).sum()),
        "reward_mean": float(values[known].mean()) if known.any() else 0.0,
        "reward_std": float(values[known].std()) if known.any() else 0.0,
    }


def _is_varied(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """bool[Q]: the group has two usable samples with different rewards."""
    highest = np.where(known, values, -np.inf).max(axis=1, initial=-np.inf)
    lowest = np.where(known, values, np.inf).min(axis=1, initial=np.inf)
    return highest > lowest
