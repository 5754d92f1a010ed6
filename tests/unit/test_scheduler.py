"""A lost or doubled sample makes a group's advantages wrong; a free shape makes XLA recompile."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codea1_jax.rollout.scheduler import Buckets, SlotBook, check_requests, plan_blocks
from codea1_jax.rollout.types import GroupRequest

BUCKETS = Buckets.halved([32, 8, 16], rows=16, min_rows=4, prefill_rows=4, multiple=1)


def request(name, length, num_samples):
    return GroupRequest(name, (1,) * length, num_samples)


def make_groups(sizes):
    return [request(f"r{i}", length, samples) for i, (length, samples) in enumerate(sizes)]


RESPONSE = 8
LENGTHS = (16, 24, 40)  # of the cache, by prompt bucket

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
    blocks = plan_blocks(groups, BUCKETS)
    planned = [group for block in blocks for group in block.groups]
    assert sorted(planned) == list(range(len(groups)))
    for block in blocks:
        assert block.num_rows in BUCKETS.prefill
        assert 0 < len(block.groups) <= block.num_rows
        for group in block.groups:
            assert BUCKETS.prompt_bucket(len(groups[group].prompt)) == block.prompt_bucket
    assert blocks == plan_blocks(groups, BUCKETS)


def test_longest_prompts_go_first_in_full_prefills():
    """A long prompt at the end makes every row pay for its cache, and the tail long."""
    groups = make_groups([(5, 4), (20, 4), (30, 4), (6, 2), (18, 1), (17, 1), (31, 1), (7, 1)])
    blocks = plan_blocks(groups, BUCKETS)
    assert [(b.prompt_bucket, b.num_rows, b.groups) for b in blocks] == [
        (32, 4, (6, 2, 1, 4)),
        (32, 1, (5,)),
        (8, 2, (7, 3)),
        (8, 1, (0,)),
    ]


def test_free_slots_are_filled_from_the_next_bucket():
    """Buckets that run one after another leave slots empty at the end of each."""
    groups = make_groups([(30, 10), (5, 10)])
    book = SlotBook(groups, BUCKETS, [RESPONSE])
    assert (len(book.slots), book.cache_length) == (16, 40)
    assert book.next_block().groups == (0,)
    assert len(book.admit()) == 10
    assert book.next_block().groups == (1,)
    assert len(book.admit()) == 6
    assert book.shrink() is None
    for slot in range(10):
        book.release(slot)
    assert len(book.admit()) == 4
    # All long prompts are done: the cache needs room for short ones only. Then 10 rows stay 16.
    move = book.shrink()
    assert (move.cache_length, move.old) == (16, tuple(range(16)))
    assert book.shrink() is None
    for slot in range(4, 16):
        book.release(slot)
    move = book.shrink()
    assert move.old == (0, 1, 2, 3, 0, 0, 0, 0)
    assert book.shrink().old == (0, 1, 2, 3)
    assert [occupant.slot for occupant in book.live] == [0, 1, 2, 3]


def test_devices_hold_as_many_samples_and_keep_their_own():
    """A row that moves to another device is sent to all of them."""
    book = SlotBook(make_groups([(5, 10)]), BUCKETS, [RESPONSE], num_shards=4)
    book.next_block()
    assert [admission.slot for admission in book.admit()] == [0, 4, 8, 12, 1, 5, 9, 13, 2, 6]
    for slot in (5, 8):
        book.release(slot)
    assert book.shrink() is None  # the first device has three, of 8 rows it would have two
    book.release(0)
    assert book.shrink().old == (1, 2, 4, 6, 9, 8, 12, 13)
    assert [occupant.slot for occupant in book.live] == [0, 1, 2, 3, 4, 6, 7]


def test_samples_that_start_together_start_with_half_the_room():
    """On CPU a step costs what the cache is long."""
    book = SlotBook(make_groups([(5, 16)]), BUCKETS, [8, 16])
    assert book.cache_length == 8 + 8
    book.next_block()
    book.admit()
    assert book.grow(8) is None
    assert book.grow(9).cache_length == 8 + 16
    assert book.grow(16) is None
    assert book.cache_length == 24
    # One that has to wait would be behind; half of little is not worth a program.
    assert SlotBook(make_groups([(5, 17)]), BUCKETS, [8, 16]).cache_length == 24
    assert SlotBook(make_groups([(32, 16)]), BUCKETS, [8, 16]).cache_length == 48


@settings(deadline=None)
@given(GROUPS, st.randoms(use_true_random=False), st.sampled_from([1, 2, 4]))
def test_every_sample_gets_exactly_one_slot(groups, random, num_shards):
    """Plays a whole rollout with random sample lengths."""
    seen = collections.Counter()
    book = SlotBook(groups, BUCKETS, [RESPONSE], num_shards)
    content = [None] * len(book.slots)  # what the device would hold in each slot
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
                assert block.prompt_bucket < book.cache_length
                assert content[admission.slot] is None
                content[admission.slot] = (admission.group, admission.sample_index)
                seen[content[admission.slot]] += 1
        assert book.live
        # No slot stays free while something waits.
        assert len(book.live) == len(book.slots) or book.next_block() is None
        for admission in book.live:
            expected = (admission.group, admission.sample_index)
            assert content[admission.slot] == expected
            bucket = BUCKETS.prompt_bucket(len(groups[admission.group].prompt))
            assert book.cache_length >= LENGTHS[BUCKETS.prompts.index(bucket)]
            if random.random() < 0.4:
                book.release(admission.slot)
                content[admission.slot] = None
        while (move := book.shrink()) is not None:
            assert len(move.old) in BUCKETS.slots
            assert move.cache_length in LENGTHS
            before, after = len(content) // num_shards, len(move.old) // num_shards
            assert all(old // before == new // after for new, old in enumerate(move.old))
            content = [content[slot] for slot in move.old]
            if len(content) > len(book.live):
                occupied = {admission.slot for admission in book.live}
                content = [c if i in occupied else None for i, c in enumerate(content)]
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
