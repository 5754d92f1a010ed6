"""A token laid out, masked or dropped wrongly here is trained on wrongly, without any error."""

import numpy as np
import pytest

from codea1_jax.rl.batching import (
    TrainSample,
    build_batch,
    default_length_buckets,
    mini_batches,
    pick_bucket,
)

BUCKETS = (4, 8, 16)


def make_samples(sizes: list[tuple[int, int]]) -> list[TrainSample]:
    """Samples with (prompt, response) lengths; sample i's tokens are 100 i + position."""
    return [
        TrainSample(
            prompt=[100 * i + t for t in range(p)],
            tokens=np.arange(100 * i + p, 100 * i + p + r),
            advantage=float(i),
        )
        for i, (p, r) in enumerate(sizes)
    ]


def test_rows_hold_prompt_then_response():
    batch = build_batch(make_samples([(2, 3), (1, 5), (3, 0)]), length_buckets=BUCKETS, pad_id=-1)
    assert batch.tokens.tolist() == [
        [0, 1, 2, 3, 4, -1, -1, -1],
        [100, 101, 102, 103, 104, 105, -1, -1],
        [200, 201, 202, -1, -1, -1, -1, -1],
    ]
    assert batch.response_mask.tolist() == [
        [0, 0, 1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert batch.lengths.tolist() == [5, 6, 3]
    assert batch.advantages.tolist() == [0, 1, 2]
    assert batch.num_response_tokens == 8
    assert batch.tokens.dtype == batch.lengths.dtype == np.int32


def test_untrained_sample_counts_no_token():
    sample = TrainSample([1, 2], [3, 4], advantage=1.0, is_trained=False)
    assert build_batch([sample], length_buckets=BUCKETS).num_response_tokens == 0


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "at least one sample"),
        ([TrainSample([], [1])], "sample 0 has an empty prompt"),
        ([TrainSample([1], [1]), TrainSample([1], [1], np.nan)], "sample 1 has advantage nan"),
        ([TrainSample([1] * 9, [1] * 8)], "17 tokens is longer than the largest length bucket 16"),
    ],
)
def test_bad_samples_are_refused(samples: list[TrainSample], message: str):
    with pytest.raises(ValueError, match=message):
        build_batch(samples, length_buckets=BUCKETS)


def test_mini_batches_are_contiguous_and_complete():
    batch = build_batch(make_samples([(1, 1)] * 5), length_buckets=BUCKETS)
    parts = mini_batches(batch, 2)
    assert [part.advantages.tolist() for part in parts] == [[0, 1, 2], [3, 4]]
    shuffled = [part.advantages.tolist() for part in mini_batches(batch, 2, seed=3)]
    assert shuffled == [part.advantages.tolist() for part in mini_batches(batch, 2, seed=3)]
    assert sorted(shuffled[0] + shuffled[1]) == [0, 1, 2, 3, 4]
    assert shuffled != [[0, 1, 2], [3, 4]]
    with pytest.raises(ValueError, match="cannot cut 5 rows into 6"):
        mini_batches(batch, 6)


def test_default_buckets():
    assert default_length_buckets(700) == (128, 192, 256, 384, 512, 768)
    assert default_length_buckets(1) == (128,)
    assert pick_bucket(193, default_length_buckets(700)) == 256
