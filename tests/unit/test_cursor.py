"""Data order: not a pure function of (seed, epoch, index), and a resumed run sees other data."""

import json

import numpy as np
import pytest

from codea1_jax.data.cursor import DataCursor, epoch_order, process_slice


def _batches(cursor: DataCursor, count: int):
    return [cursor.next_batch() for _ in range(count)]


def test_paper_schedule():
    """9,688 questions at batch 256 are 37 steps per epoch, 111 in three (Code-A1, section 4.1)."""
    cursor = DataCursor(num_items=9688, batch_size=256, seed=1)
    assert cursor.steps_per_epoch == 37
    assert [epoch for epoch, _ in _batches(cursor, 111)] == [0] * 37 + [1] * 37 + [2] * 37


def test_every_item_once_per_epoch():
    """Repeated or lost questions bias the book's replay statistics."""
    cursor = DataCursor(num_items=103, batch_size=10, seed=3)
    for _ in range(3):
        seen = [i for _, indices in _batches(cursor, 10) for i in indices]
        assert len(seen) == len(set(seen)) == 100
        assert set(seen) <= set(range(103))


def test_order_is_fixed_for_all_versions():
    """These numbers are the promise that a checkpoint resumes under any NumPy."""
    assert epoch_order(8, seed=0, epoch=0).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert epoch_order(8, seed=0, epoch=1).tolist() == [5, 3, 7, 2, 4, 1, 0, 6]
    assert epoch_order(8, seed=1, epoch=0).tolist() == [3, 5, 2, 7, 0, 6, 1, 4]


def test_resume_is_exact_from_every_step():
    """Kill -9 may come at any step; the rest of the run must not change."""
    whole = _batches(DataCursor(23, 4, seed=7), 20)
    for step in range(20):
        cursor = DataCursor(23, 4, seed=7)
        _batches(cursor, step)
        state = json.loads(json.dumps(cursor.state()))
        fresh = DataCursor(23, 4, seed=7)
        fresh.restore(state)
        assert _batches(fresh, 20 - step) == whole[step:]
        assert _batches(DataCursor.from_state(state), 20 - step) == whole[step:]


def test_random_access_agrees_with_walking():
    """A prefetching pipeline asks for steps out of order."""
    walked = _batches(DataCursor(23, 4, seed=7), 20)
    cursor = DataCursor(23, 4, seed=7)
    for step in np.random.default_rng(0).permutation(20):
        assert cursor.batch_at(int(step)) == walked[step]
    assert cursor.step == 0


def test_other_data_is_refused_on_restore():
    """A checkpoint of another data set would index into the wrong questions."""
    state = DataCursor(23, 4, seed=7).state()
    for other in (DataCursor(24, 4, seed=7), DataCursor(23, 5, seed=7), DataCursor(23, 4, seed=8)):
        with pytest.raises(ValueError, match="checkpoint's data cursor"):
            other.restore(state)


def test_impossible_sizes_name_the_key():
    """An epoch without a step would loop for ever."""
    with pytest.raises(ValueError, match="batch_size=8 is more than the 7 problems"):
        DataCursor(7, 8)
    with pytest.raises(ValueError, match="batch_size=0"):
        DataCursor(7, 0)


def test_without_shuffling_the_source_order_stays():
    """Fixed order is what the hand-checked demonstrations rely on."""
    cursor = DataCursor(5, 2, is_shuffled=False)
    assert _batches(cursor, 3) == [(0, [0, 1]), (0, [2, 3]), (1, [0, 1])]


def test_process_slices_partition_the_batch():
    """Two hosts that draw the same question would count it twice."""
    batch = list(range(12))
    parts = [process_slice(batch, i, 4) for i in range(4)]
    assert [i for part in parts for i in part] == batch
    with pytest.raises(ValueError, match="does not divide"):
        process_slice(batch, 0, 5)
