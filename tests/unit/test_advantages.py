"""A wrong advantage pushes tokens the wrong way, or lets an unknown verdict count as a reward."""

import numpy as np
import pytest

from codea1_jax.rl.advantages import (
    effective_mask,
    group_advantages,
    group_statistics,
    overlong_penalty,
)


def test_conformance_vector():
    """The official recipe's numbers: unbiased deviation, eps 1e-6."""
    rewards = np.array([[1, 0.5, 0.5, 0.25, 1, 0.75, 0, 0.5]])
    expected = [1.26014, -0.18002, -0.18002, -0.90010, 1.26014, 0.54006, -1.62018, -0.18002]
    np.testing.assert_allclose(group_advantages(rewards)[0], expected, atol=5e-6)


def test_masked_samples_leave_no_trace():
    """Mean and deviation come from known verdicts alone; an unknown's value does not matter."""
    rewards = np.array([[1.0, 0.25, 99.0, 0.5], [0.0, 1.0, 0.5, 0.5]])
    mask = np.array([[1, 1, 0, 1], [1, 1, 1, 1]], bool)
    got = group_advantages(rewards, mask)
    alone = group_advantages(rewards[:1, [0, 1, 3]])
    np.testing.assert_allclose(got[0, [0, 1, 3]], alone[0], rtol=1e-12)
    assert got[0, 2] == 0.0
    np.testing.assert_allclose(got[1], group_advantages(rewards[1:])[0], rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_reward_is_masked_and_counted(bad: float):
    rewards = np.array([[1.0, bad, 0.0]])
    got = group_advantages(rewards)
    np.testing.assert_allclose(got, [[np.sqrt(0.5), 0.0, -np.sqrt(0.5)]], rtol=1e-5)
    assert effective_mask(rewards, None).tolist() == [[True, False, True]]
    statistics = group_statistics(rewards, np.array([[True, True, False]]))
    assert statistics["num_nonfinite"] == 1
    assert statistics["num_unknown"] == 1
    assert statistics["num_singleton_groups"] == 1
    assert statistics["reward_mean"] == 1.0


def test_zero_variance_gives_exact_zeros():
    """0.1 three times has a mean that is not exactly 0.1; dividing by eps must not show it."""
    assert not group_advantages(np.full((2, 3), 0.1)).any()
    assert group_statistics(np.full((2, 3), 0.1))["num_zero_variance_groups"] == 2


def test_singletons_and_empty_groups():
    rewards = np.array([[0.7, 0.2], [0.7, 0.2]])
    mask = np.array([[True, False], [False, False]])
    assert not group_advantages(rewards, mask).any()
    raw = group_advantages(rewards, mask, singleton="raw")
    np.testing.assert_allclose(raw, [[0.7 / (1 + 1e-6), 0.0], [0.0, 0.0]], rtol=1e-12)
    assert group_statistics(rewards, mask)["num_empty_groups"] == 1
    assert group_advantages(np.zeros((0, 4))).shape == (0, 4)


def test_without_normalisation():
    got = group_advantages(np.array([[1.0, 0.0, 0.5]]), normalize_std=False)
    np.testing.assert_allclose(got, [[0.5, -0.5, 0.0]], rtol=1e-12)


def test_overlong_penalty_is_the_papers():
    """DAPO's numbers: 16384 expected tokens, 4096 of buffer on top."""
    lengths = np.array([[10, 16384, 17408, 18432, 20480, 20481]])
    got = overlong_penalty(lengths, 20480, 4096)
    np.testing.assert_allclose(got, [[0.0, 0.0, -0.25, -0.5, -1.0, -1.0]])


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="singleton='one'"):
        group_advantages(np.zeros((1, 2)), singleton="one")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mask has shape"):
        group_advantages(np.zeros((2, 2)), np.ones((1, 2), bool))
    with pytest.raises(ValueError, match=r"\[groups, samples\]"):
        group_advantages(np.zeros(3))
