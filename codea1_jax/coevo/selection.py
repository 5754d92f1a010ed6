"""Which trajectories train. Pure functions of rewards and masks, ties broken by index."""

import numpy as np

# Differences below this are rounding, not variance.
_TIE = 1e-9


def top_variance_groups(rewards: np.ndarray, mask: np.ndarray, groups_kept: int) -> np.ndarray:
    """TopVar, Code-A1 (arXiv 2603.15611) eq. 6: the groups of suites whose rewards vary most.

    Args:
      rewards: float[groups, N], one question's tester rewards.
      mask: bool[groups, N], False where there is no reward.
      groups_kept: how many groups to keep (l).

    Returns:
      int[<= groups_kept] group indices, by falling population standard deviation (ddof 0), ties by
      rising index. Groups without any reward are never returned.
    """
    _check_shapes(rewards, mask)
    spread = np.array([_population_std(row[known]) for row, known in zip(rewards, mask)])
    # Rounded first: equal variances computed in another order must stay ties.
    order = np.argsort(-np.round(spread / _TIE), kind="stable")
    eligible = [g for g in order if mask[g].any()]
    return np.array(eligible[:groups_kept], dtype=np.int64)


def questions_with_variance(rewards: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """bool[Q]: questions whose coder rewards are not all the same (the zero-variance filter).

    Args:
      rewards: float[Q, M]; mask: bool[Q, M].
    """
    _check_shapes(rewards, mask)
    return np.array([_population_std(row[known]) > _TIE for row, known in zip(rewards, mask)], bool)


def filled_batch(is_varied: np.ndarray, size: int) -> np.ndarray:
    """Which of the questions sampled so far make up the batch, in their order.

    Those with variance come first (DAPO, arXiv 2503.14476, section 3.2); where they are too few,
    the earliest of the others fill up, which keeps the batch's shape and is masked in the update.

    Args:
      is_varied: bool[Q]; size: questions of a batch, at most Q.
    """
    order = np.concatenate([np.flatnonzero(is_varied), np.flatnonzero(~is_varied)])
    return np.sort(order[:size])


def _population_std(values: np.ndarray) -> float:
    return float(np.std(values, dtype=np.float64)) if values.size > 1 else 0.0


def _check_shapes(rewards: np.ndarray, mask: np.ndarray) -> None:
    if rewards.ndim != 2 or rewards.shape != mask.shape:
        raise ValueError(f"rewards {rewards.shape} and mask {mask.shape} must be one 2-D shape")
