"""A token that is lost, doubled or shown to a neighbour trains on something nobody sampled."""

import numpy as np
import pytest

from codea1_jax.rl.batching import TrainBatch, TrainSample, build_batch
from codea1_jax.rl.packing import PackedRows, micro_batches

BUCKETS = (8, 16, 32)
LISTED = ("old_logp", "ref_logp")


def make_batch(sizes: list[tuple[int, int, int]], seed: int = 0) -> TrainBatch:
    """Samples of (prompt number, prompt length, response length); equal numbers, equal prompts."""
    rng = np.random.default_rng(seed)
    samples = [
        TrainSample(
            np.random.default_rng(1000 + number).integers(1, 99, prompt).tolist(),
            rng.integers(1, 99, response),
            advantage=float(index),
        )
        for index, (number, prompt, response) in enumerate(sizes)
    ]
    batch = build_batch(samples, length_buckets=BUCKETS)
    noise = lambda: rng.normal(size=batch.tokens.shape).astype(np.float32)  # noqa: E731
    return batch.replace(old_logp=noise(), ref_logp=noise(), weights=noise())


GROUPS = [(0, 5, 3), (0, 5, 9), (0, 5, 1), (1, 3, 4), (2, 2, 0), (1, 3, 2), (3, 9, 7), (0, 5, 2)]


def visible(rows: PackedRows, r: int, at: int) -> list[int]:
    """Tokens of row r that position `at` may see, in order: what attention is told."""
    same = rows.segment_ids[r] == rows.segment_ids[r, at]
    same &= (rows.branch_ids[r] == 0) | (rows.branch_ids[r] == rows.branch_ids[r, at])
    return rows.tokens[r, np.flatnonzero(same & (np.arange(len(same)) <= at))].tolist()


@pytest.mark.parametrize("share_prefix", [True, False])
def test_every_counted_token_once_and_with_its_own_past(share_prefix: bool):
    batch = make_batch(GROUPS)
    parts = micro_batches(
        batch, length_buckets=BUCKETS, max_tokens=64, row_multiple=2, share_prefix=share_prefix
    )
    width = batch.tokens.shape[1]
    seen = []
    for part in parts:
        assert part.tokens.shape[0] % 2 == 0
        for r, c in np.argwhere(part.response_mask > 0).tolist():
            sample, token = divmod(int(part.source[r, c]), width)
            seen.append((sample, token))
            assert part.targets[r, c] == batch.tokens[sample, token]
            weighted = batch.advantages[sample] * batch.weights[sample, token]
            assert part.advantages[r, c] == weighted
            for name in LISTED:
                assert getattr(part, name)[r, c] == getattr(batch, name)[sample, token]
            before = int(part.hidden_index[r, c])
            assert part.positions[r, before] == token - 1
            assert visible(part, r, before) == batch.tokens[sample, :token].tolist()
            # A sample's columns, and no others, share its number.
            same = part.sample_ids[r] == part.sample_ids[r, c]
            assert set(part.source[r, same] // width) == {sample}
            assert same.sum() == batch.response_mask[sample].sum()
        np.testing.assert_array_equal(part.sample_ids > 0, part.response_mask > 0)
        num_samples = [len(set(row[row >= 0] // width)) for row in part.source]
        assert part.sample_ids.max(axis=1).tolist() == num_samples
        assert (part.source >= 0).sum() == part.response_mask.sum()
        # Counted tokens come first, so that the loop over columns can stop early.
        assert np.all(np.diff(part.response_mask, axis=1) <= 0)
    assert sorted(seen) == [tuple(at) for at in np.argwhere(batch.response_mask > 0).tolist()]


def test_values_return_to_their_places():
    batch = make_batch(GROUPS)
    whole = np.zeros_like(batch.old_logp)
    for part in micro_batches(batch, length_buckets=BUCKETS, max_tokens=32):
        part.restore(part.old_logp, into=whole)
    np.testing.assert_array_equal(whole, batch.old_logp * batch.response_mask)


def num_model_tokens(batch: TrainBatch, **options: bool) -> int:
    parts = micro_batches(batch, length_buckets=BUCKETS, max_tokens=64, **options)
    return sum(int((part.segment_ids > 0).sum()) for part in parts)


def test_a_prompt_is_read_once():
    batch = make_batch([(0, 12, 4)] * 5)
    assert num_model_tokens(batch, share_prefix=True) == 12 + 5 * 4
    assert num_model_tokens(batch, share_prefix=False) == 5 * (12 + 4)


def test_a_group_that_fits_no_row_is_split():
    batch = make_batch([(0, 12, 8)] * 5)  # 12 + 5 * 8 tokens, rows of 32
    (part,) = micro_batches(batch, length_buckets=BUCKETS, max_tokens=128)
    assert part.tokens.shape == (4, 32)  # 3 rows of 2, 2 and 1 samples, and an empty one
    assert part.branch_ids.max(axis=1).tolist() == [2, 2, 1, 0]


def test_shapes_are_few_and_the_plan_ignores_order():
    rng = np.random.default_rng(0)
    sizes = [(i, 1, length - 1) for i, length in enumerate(range(2, 16))]
    shapes, plans = set(), []
    for _ in range(5):
        batch = make_batch([sizes[i] for i in rng.permutation(len(sizes))])
        parts = micro_batches(batch, length_buckets=BUCKETS, max_tokens=64, row_multiple=2)
        shapes |= {part.tokens.shape for part in parts}
        plans.append([part.positions.max(axis=1).tolist() for part in parts])
    assert shapes <= {(rows, length) for length in BUCKETS for rows in (2, 4, 8)}
    assert all(plan == plans[0] for plan in plans)


def test_no_counted_token_gives_no_micro_batch():
    batch = make_batch([(0, 3, 0), (1, 2, 0)])
    assert micro_batches(batch, length_buckets=BUCKETS, max_tokens=64) == []
