"""TopVar and the variance filter. If this breaks, the tester trains on groups without signal."""

import numpy as np
import pytest

from codea1_jax.coevo.selection import filled_batch, questions_with_variance, top_variance_groups


def all_known(rewards):
    return np.ones(np.shape(rewards), bool)


def test_largest_population_deviation_first():
    rewards = np.array([[0.5, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.2, 0.4, 0.3]])
    assert top_variance_groups(rewards, all_known(rewards), 3).tolist() == [1, 2, 3]
    assert top_variance_groups(rewards, all_known(rewards), 1).tolist() == [1]


def test_deviation_is_the_population_s():
    """ddof 1 would rank a masked group of two above a full group of larger spread."""
    rewards = np.array([[0.0, 0.8, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    mask = np.array([[True, True, False, False], [True, True, True, True]])
    # population: 0.4 against 0.5; sample: 0.566 against 0.577
    assert top_variance_groups(rewards, mask, 1).tolist() == [1]
    rewards[0, 1] = 0.9  # population: 0.45 against 0.5; sample: 0.636 against 0.577
    assert top_variance_groups(rewards, mask, 1).tolist() == [1]


def test_ties_go_to_the_lower_index_whatever_the_rounding():
    row = np.array([0.1, 0.2, 0.7, 0.3])
    rewards = np.stack([row[::-1] + 0.1, row, row + 0.2])
    assert top_variance_groups(rewards, all_known(rewards), 2).tolist() == [0, 1]
    flat = np.full((4, 3), 0.3)
    assert top_variance_groups(flat, all_known(flat), 2).tolist() == [0, 1]


def test_masked_rewards_do_not_count():
    rewards = np.array([[0.0, 1.0, 0.0], [0.2, 0.3, 0.2]])
    mask = np.array([[True, False, True], [True, True, True]])
    assert top_variance_groups(rewards, mask, 1).tolist() == [1]
    mask = np.array([[False, False, False], [True, False, False]])
    assert top_variance_groups(rewards, mask, 2).tolist() == [1]
    assert top_variance_groups(rewards, np.zeros_like(mask), 2).tolist() == []


def test_questions_without_variance():
    rewards = np.array([[1.0, 1.0], [0.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]])
    mask = all_known(rewards)
    mask[4, 0] = False
    assert questions_with_variance(rewards, mask).tolist() == [False, False, False, True, False]


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="shape"):
        top_variance_groups(np.zeros((2, 3)), np.ones((2, 2), bool), 1)


@pytest.mark.parametrize(
    ("is_varied", "size", "expected"),
    [
        ([0, 1, 0, 1, 1], 2, [1, 3]),  # enough: the first with variance
        ([0, 1, 0, 0, 1], 3, [0, 1, 4]),  # too few: the earliest of the others fill up
        ([0, 0, 0], 3, [0, 1, 2]),
    ],
)
def test_batch_is_filled_with_questions_that_teach(is_varied, size, expected):
    """Dynamic sampling: surplus is dropped, the batch keeps its size and the data's order."""
    assert filled_batch(np.array(is_varied, bool), size).tolist() == expected
