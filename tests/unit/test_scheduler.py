"""A lost or doubled sample makes a group's advantages wrong; a free shape makes XLA recompile."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codea1_jax.rollout.scheduler import Buckets, SlotBook, check_requests, plan_waves
from codea1_jax.rollout.types import GroupRequest

BUCKETS = Buckets.halved([32, 8, 16], rows=16, min_rows=4, prefill_rows=4, multiple=1)


def request(name, length, num_samples):
    return GroupRequest(name, (1,) * length, num_samples)


def make_groups(sizes):
    return [request(f"r{i}", length, samples) for i, (length, samples) in enumerate(sizes)]


GROUPS = st.lists(st.tuples(st.integers(1, 32), st.integers(1, 40)), max_size=30).map(make_groups)


def test_row_counts_halve_while_the_mesh_divides_them():
    """Rows that don't divide the mesh can't be sharded."""
    assert Buckets((8, 16, 32), (4, 8, 16), (1, 2, 4)) == BUCKETS
    assert Buckets.halved([8], 24, 1, 8, 8) == Buckets((8,), (24,), (8,))
    assert Buckets.halved([8], 32, 1, 4, 8) == Buckets((8,), (8, 16, 32), (8,))
    assert Buckets.halved([8], 32, 5, 20, 4) == Buckets((8,), (8, 16, 32), (20,))
    assert Buckets.halved([8], 2, 8, 8, 1) == Buckets((8,), (2,), (1, 2))


@settings(deadline=None)
@given(GROUPS)
def test_plan_covers_every_group_once_with_known_shapes(groups):
    """A group that is planned twice or never breaks the batch."""
    waves = plan_waves(groups, BUCKETS)
    planned = [group for wave in waves for block in wave.blocks for group in block.groups]
    assert sorted(planned) == list(range(len(groups)))
    for wave in waves:
        assert wave.num_slots in BUCKETS.slots
        assert wave.prompt_bucket in BUCKETS.prompts
        for block in wave.blocks:
            assert block.num_rows in BUCKETS.prefill
            assert 0 < len(block.groups) <= block.num_rows
            longest = max(len(groups[group].prompt) for group in block.groups)
            assert longest <= block.prompt_bucket <= wave.prompt_bucket
    assert waves == plan_waves(groups, BUCKETS)


def test_plan_of_a_small_call():
    """Prompts of a small call share one program instead of running half-empty ones."""
    groups = make_groups([(5, 4), (20, 4), (30, 4), (6, 2)])
    (wave,) = plan_waves(groups, BUCKETS)
    assert (wave.prompt_bucket, wave.num_slots) == (32, 16)
    assert [(b.prompt_bucket, b.num_rows, b.groups) for b in wave.blocks] == [(32, 4, (2, 1, 3, 0))]


def test_full_buckets_get_their_own_cache_length():
    """Short prompts must not pay for the longest one's cache when there are enough of them."""
    groups = make_groups([(30, 16), (5, 8), (6, 8), (7, 2)])
    long, short = plan_waves(groups, BUCKETS)
    assert (long.prompt_bucket, long.num_slots) == (32, 16)
    assert (short.prompt_bucket, short.num_slots) == (8, 16)
    assert [block.groups for block in short.blocks] == [(3, 2), (1,)]


@settings(deadline=None)
@given(GROUPS, st.randoms(use_true_random=False))
def test_every_sample_gets_exactly_one_slot(groups, random):
    """Plays a whole rollout with random sample lengths."""
    seen = collections.Counter()
    for wave in plan_waves(groups, BUCKETS):
        book = SlotBook(wave, groups)
        content = [None] * wave.num_slots  # what the device would hold in each slot
        block = None
        while book.has_work:
            while True:
                new = book.next_block()
                block = new or block
                admitted = book.admit()
                if not admitted:
                    break
                for admission in admitted:
                    assert block.groups[admission.source] == admission.group
                    assert content[admission.slot] is None
                    content[admission.slot] = (admission.group, admission.sample_index)
                    seen[content[admission.slot]] += 1
            assert book.live
            # No slot stays free while something waits.
            assert book.is_draining or len(book.live) == len(book.slots)
            for admission in book.live:
                expected = (admission.group, admission.sample_index)
                assert content[admission.slot] == expected
                if random.random() < 0.4:
                    book.release(admission.slot)
                    content[admission.slot] = None
            old = book.compact(BUCKETS.slots)
            if old is not None:
                assert len(old) in BUCKETS.slots
                assert len(old) < len(content)
                content = [content[slot] for slot in old]
                content[len(book.live) :] = [None] * (len(old) - len(book.live))
                assert len(content) == len(book.slots)
    expected = {(g, s) for g, group in enumerate(groups) for s in range(group.num_samples)}
    assert set(seen) == expected
    assert set(seen.values()) <= {1}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([request("a", 33, 1)], r"'a' has a prompt of 33 tokens; the limit is 32.*prompt_buckets"),
        ([request("a", 0, 1)], "empty prompt"),
        ([request("a", 3, 0)], "0 samples"),
        ([request("a", 3, 1), request("a", 3, 1)], "'a' appears twice"),
        ([GroupRequest("a", (1, 50), 1)], "outside the vocabulary of 50"),
        ([GroupRequest("a", (-1, 2), 1)], "outside the vocabulary of 50"),
    ],
)
def test_requests_that_no_program_serves_are_refused(groups, message):
    """An oversized prompt must fail before hours of sampling, with the limit in the message."""
    with pytest.raises(ValueError, match=message):
        check_requests(groups, BUCKETS, vocab_size=50)


def test_prompts_at_the_limit_are_served():
    check_requests([request("a", 32, 1)], BUCKETS, vocab_size=50)
