"""avg@k and pass@k.

pass@k of one problem is the chance that k samples drawn without replacement out of n hold a correct
one: 1 - C(n-c, k) / C(n, k) (Chen et al., arXiv 2107.03374, eq. 1). avg@k is the mean share of
correct samples among the first k (Code-A1, arXiv 2603.15611, section 4.1). Both are averaged over
problems.
"""

import math
from collections.abc import Mapping, Sequence

K_VALUES = (1, 8, 10, 16, 32, 100)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased estimate for one problem."""
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"{num_correct} correct of {num_samples} samples is impossible")
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, there are {num_samples}")
    if num_samples - num_correct < k:
        return 1.0
    return 1.0 - math.prod(
        1.0 - k / n for n in range(num_samples - num_correct + 1, num_samples + 1)
    )


def avg_at_k(is_correct: Sequence[bool], k: int) -> float:
    """Share of correct samples among the first k of one problem."""
    if not 1 <= k <= len(is_correct):
        raise ValueError(f"avg@{k} needs at least {k} samples, there are {len(is_correct)}")
    return sum(is_correct[:k]) / k


def summarize(
    verdicts: Mapping[str, Sequence[bool | None]], ks: Sequence[int] = K_VALUES
) -> dict[str, float]:
    """`pass@k` and `avg@k` over problems, for each k up to the number of samples per problem.

    Args:
      verdicts: per problem, per sample: correct, wrong, or None for unknown. Unknown samples say
        nothing about the model and are left out; so are problems without any known sample, and for
        pass@k those with fewer than k.
      ks: the number of samples itself is always added.
    """
    num_samples = min(map(len, verdicts.values()), default=0)
    metrics = {}
    for k in sorted({*ks, num_samples}):
        if not 1 <= k <= num_samples:
            continue
        known = [[v for v in of_problem if v is not None] for of_problem in verdicts.values()]
        first = [[v for v in of_problem[:k] if v is not None] for of_problem in verdicts.values()]
        passes = [pass_at_k(len(v), sum(v), k) for v in known if len(v) >= k]
        averages = [avg_at_k(v, len(v)) for v in first if v]
        if passes:
            metrics[f"pass@{k}"] = math.fsum(passes) / len(passes)
        if averages:
            metrics[f"avg@{k}"] = math.fsum(averages) / len(averages)
    return metrics
