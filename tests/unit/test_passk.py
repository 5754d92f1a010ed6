"""pass@k and avg@k: a wrong estimator makes checkpoints look better or worse than they are."""

import itertools
import math

import pytest

from codea1_jax.eval.passk import avg_at_k, pass_at_k, summarize


@pytest.mark.parametrize(("n", "c"), [(1, 0), (1, 1), (5, 0), (5, 2), (5, 5), (7, 1)])
def test_pass_at_k_is_the_share_of_lucky_draws(n, c):
    """The formula must equal counting every subset of k samples out of n."""
    samples = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        draws = list(itertools.combinations(samples, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


def test_large_counts_stay_finite():
    """Binomials of 200 samples overflow floats when computed directly."""
    assert pass_at_k(2000, 10, 1000) == pytest.approx(
        1 - math.comb(1990, 1000) / math.comb(2000, 1000)
    )


def test_avg_at_k_takes_the_first_k():
    """avg@32 of more than 32 samples counts the first 32 (Code-A1's definition)."""
    assert avg_at_k([True, False, True, True], 2) == 0.5
    assert avg_at_k([True, False, True, True], 4) == 0.75


def test_impossible_requests_are_refused():
    """pass@10 of 5 samples would silently be something else."""
    for call in (
        lambda: pass_at_k(5, 2, 6),
        lambda: pass_at_k(5, 6, 1),
        lambda: pass_at_k(5, 2, 0),
        lambda: avg_at_k([True], 2),
    ):
        with pytest.raises(ValueError, match=r"@|impossible"):
            call()


def test_summary_averages_over_problems():
    """Averaging over samples instead would weight problems by their number of samples."""
    metrics = summarize({"a": [True, True, False, False], "b": [False] * 4})
    assert metrics == {
        "pass@1": 0.25,
        "avg@1": 0.5,
        "pass@4": 0.5,
        "avg@4": 0.25,
    }
    assert "pass@8" not in metrics


def test_unknown_samples_are_no_failures():
    """An outage of the sandbox must not show as a worse model."""
    metrics = summarize({"a": [True, None], "b": [None, None], "c": [False, False]})
    assert metrics["avg@2"] == 0.5
    assert metrics["avg@1"] == 0.5
    assert metrics["pass@2"] == 0.0  # of "c" alone: "a" has one known sample
    assert summarize({"a": [None]}) == {}
    assert summarize({}) == {}
