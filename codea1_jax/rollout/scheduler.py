"""Plans a rollout in fixed shapes, and keeps the books of which sample sits in which slot.

Host only, no JAX. Shapes come from three finite lists: prompt lengths, rows of a decode program,
rows of a prefill program. All requests of a call go through one queue: a prompt is prefilled once,
its samples take slots as they become free, whatever the prompt's bucket. The order is a pure
function of the requests; the tokens do not depend on it at all.

Longest prompts go first. Their answers tend to be the longest, so the tail is short; and once the
last long prompt is done, the cache moves to fewer slots a row. When nothing waits any more, the
live rows move to fewer rows: a decode step's cost falls with both. For the same reason samples that
start together may start with room for half of their tokens.

Rows are split over devices, each holding as many neighbouring slots. A sample never leaves its
device, so new samples go to the device with the fewest.
"""

import collections
import dataclasses
import itertools
from collections.abc import Sequence

from codea1_jax.rollout.types import GroupRequest


@dataclasses.dataclass(frozen=True)
class Buckets:
    """The finite lists of shapes, each rising."""

    prompts: tuple[int, ...]  # tokens of a padded prompt
    slots: tuple[int, ...]  # rows of a decode program
    prefill: tuple[int, ...]  # rows of a prefill program

    @classmethod
    def halved(
        cls,
        prompts: Sequence[int],
        rows: int,
        min_rows: int,
        prefill_rows: int,
        multiple: int,
    ) -> "Buckets":
        """Row counts are halved while they stay a multiple of `multiple`, which divides `rows`.

        Sizes between would follow the tail more closely, but XLA's CPU kernels are slow for them: a
        step of the 0.5B model takes 190 ms at 48 rows and 150 at 64.
        """
        prefill_rows = max(min(prefill_rows, rows) // multiple, 1) * multiple
        return cls(
            tuple(sorted(set(prompts))),
            _halvings(rows, min_rows, multiple),
            _halvings(prefill_rows, multiple, multiple),
        )

    def prompt_bucket(self, length: int) -> int:
        return smallest_at_least(self.prompts, length)


def _halvings(largest: int, smallest: int, multiple: int) -> tuple[int, ...]:
    sizes = [largest]
    while sizes[-1] % (2 * multiple) == 0 and sizes[-1] // 2 >= smallest:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))


def smallest_at_least(sizes: Sequence[int], number: int) -> int:
    """The smallest of rising `sizes` that holds `number`; the largest if none does."""
    return next((size for size in sizes if size >= number), sizes[-1])


@dataclasses.dataclass(frozen=True)
class PromptBlock:
    """Prompts that are prefilled together.

    Attributes:
      prompt_bucket: padded length.
      num_rows: rows of the prefill program; rows after the last group are dummies.
      groups: indices into the call's groups.
    """

    prompt_bucket: int
    num_rows: int
    groups: tuple[int, ...]


def check_requests(groups: Sequence[GroupRequest], buckets: Buckets, vocab_size: int) -> None:
    """Refuses what no program can serve, before anything is computed.

    Raises:
      ValueError: names the request and the limit.
    """
    seen: set[str] = set()
    limit = buckets.prompts[-1]
    for group in groups:
        name = f"request {group.request_id!r}"
        if group.request_id in seen:
            raise ValueError(f"{name} appears twice in one call; its samples would be identical")
        seen.add(group.request_id)
        if not group.prompt:
            raise ValueError(f"{name} has an empty prompt")
        if len(group.prompt) > limit:
            raise ValueError(
                f"{name} has a prompt of {len(group.prompt)} tokens; the limit is {limit} (the "
                "largest of prompt_buckets): truncate or drop it before submitting"
            )
        if group.num_samples < 1:
            raise ValueError(f"{name} asks for {group.num_samples} samples; must be >= 1")
        if not 0 <= min(group.prompt) <= max(group.prompt) < vocab_size:
            raise ValueError(f"{name} has a token outside the vocabulary of {vocab_size}")


def plan_blocks(groups: Sequence[GroupRequest], buckets: Buckets) -> list[PromptBlock]:
    """Cuts the requests into prefills of one bucket each, longest prompts first.

    Full prefills come first, then smaller ones; only the last of a bucket is padded.
    """
    order = sorted(range(len(groups)), key=lambda i: (-len(groups[i].prompt), i))
    blocks = []
    for bucket, members in itertools.groupby(
        order, lambda i: buckets.prompt_bucket(len(groups[i].prompt))
    ):
        remaining = list(members)
        while remaining:
            fitting = [size for size in buckets.prefill if size <= len(remaining)]
            num_rows = fitting[-1] if fitting else buckets.prefill[0]
            blocks.append(PromptBlock(bucket, num_rows, tuple(remaining[:num_rows])))
            del remaining[:num_rows]
    return blocks


@dataclasses.dataclass(frozen=True)
class Admission:
    """One sample that takes a slot: row `source` of the prefilled block goes to `slot`."""

    slot: int
    source: int
    group: int
    sample_index: int


@dataclasses.dataclass(frozen=True)
class Move:
    """The cache changes its shape: row i of the new one was row `old[i]`."""

    cache_length: int
    old: tuple[int, ...]


def is_worth_moving(length: int, shorter: int) -> bool:
    """A program for every little difference in length costs more to compile than it saves."""
    return 4 * shorter <= 3 * length


def cache_lengths(buckets: Buckets, responses: Sequence[int]) -> list[list[int]]:
    """Cache lengths by response length and prompt bucket; of the first half, those that pay."""
    full = responses[-1]
    return [
        [
            bucket + response
            for bucket in buckets.prompts
            if response == full or is_worth_moving(bucket + full, bucket + response)
        ]
        for response in responses
    ]


class SlotBook:
    """Which sample occupies which slot, and what waits.

    Attributes:
      slots: the occupant of each row of the decode program.
      cache_length: slots of the cache in each row.

    Args:
      responses: tokens of a sample that the cache has room for: all of them or, before that, what
        a cache can start with.
      num_shards: devices, or groups of them, that the slots are split over.
    """

    def __init__(
        self,
        groups: Sequence[GroupRequest],
        buckets: Buckets,
        responses: Sequence[int],
        num_shards: int = 1,
    ):
        self._groups = groups
        self._num_shards = num_shards
        self._buckets = buckets
        self._full_response = responses[-1]
        self._response = self._full_response
        self._blocks = collections.deque(plan_blocks(groups, buckets))
        self._waiting: collections.deque[tuple[int, int, int]] = collections.deque()
        num_samples = sum(group.num_samples for group in groups)
        self.slots: list[Admission | None]
        self.slots = [None] * smallest_at_least(buckets.slots, num_samples)
        self.cache_length = self._needed_length()
        shorter = self.cache_length - self._full_response + responses[0]
        # Samples that wait for a slot are behind the others: soon one needs the full length.
        if num_samples <= len(self.slots) and is_worth_moving(self.cache_length, shorter):
            self._response, self.cache_length = responses[0], shorter

    @property
    def live(self) -> list[Admission]:
        """Occupied slots, by rising slot."""
        return [slot for slot in self.slots if slot is not None]

    @property
    def has_work(self) -> bool:
        return bool(self._blocks or self._waiting or self.live)

    @property
    def has_prefilled(self) -> bool:
        """Samples of the current block still wait for a slot."""
        return bool(self._waiting)

    def next_block(self) -> PromptBlock | None:
        """The block to prefill now: only when slots are free and no prefilled prompt waits."""
        if self._waiting or not self._blocks or len(self.live) == len(self.slots):
            return None
        block = self._blocks.popleft()
        self._waiting.extend(
            (source, group, sample)
            for source, group in enumerate(block.groups)
            for sample in range(self._groups[group].num_samples)
        )
        return block

    def admit(self) -> list[Admission]:
        """Moves waiting samples of the current block into free slots."""
        admitted = []
        live = [len(occupants) for occupants in self._by_shard()]
        free = [slot for slot, occupant in enumerate(self.slots) if occupant is None]
        while free and self._waiting:
            slot = min(free, key=lambda slot: (live[self._shard(slot)], slot))
            free.remove(slot)
            live[self._shard(slot)] += 1
            self.slots[slot] = admission = Admission(slot, *self._waiting.popleft())
            admitted.append(admission)
        return admitted

    def release(self, slot: int) -> None:
        self.slots[slot] = None

    def grow(self, response: int) -> Move | None:
        """To the full length, if a sample needs room for `response` tokens and has less."""
        if response <= self._response:
            return None
        self.cache_length += self._full_response - self._response
        self._response = self._full_response
        return Move(self.cache_length, tuple(range(len(self.slots))))

    def shrink(self) -> Move | None:
        """One step to a smaller cache, if what is left fits in it; call until it gives None.

        To the next smaller number of rows once nothing waits and each device's samples fit its new
        share, or to a much shorter length. Rows of the new cache without a sample repeat another.
        """
        if not self.has_work:
            return None
        sizes = self._buckets.slots
        rows = sizes.index(len(self.slots))
        if not self._blocks and not self._waiting and rows > 0:
            by_shard, share = self._by_shard(), sizes[rows - 1] // self._num_shards
            if max(map(len, by_shard)) <= share:
                return self._take(by_shard, share)
        needed = self._needed_length()
        if is_worth_moving(self.cache_length, needed):
            self.cache_length = needed
            return Move(needed, tuple(range(len(self.slots))))
        return None

    def _take(self, by_shard: list[list[Admission]], share: int) -> Move:
        old: list[int] = []
        slots: list[Admission | None] = []
        for shard, occupants in enumerate(by_shard):
            for occupant in occupants:
                slots.append(dataclasses.replace(occupant, slot=len(slots)))
                old.append(occupant.slot)
            num_free = share - len(occupants)
            slots += [None] * num_free
            old += [shard * (len(self.slots) // self._num_shards)] * num_free
        self.slots = slots
        return Move(self.cache_length, tuple(old))

    def _shard(self, slot: int) -> int:
        return slot // (len(self.slots) // self._num_shards)

    def _by_shard(self) -> list[list[Admission]]:
        by_shard: list[list[Admission]] = [[] for _ in range(self._num_shards)]
        for occupant in self.live:
            by_shard[self._shard(occupant.slot)].append(occupant)
        return by_shard

    def _needed_length(self) -> int:
        left = [*self.live, *(Admission(-1, *waiting) for waiting in self._waiting)]
        lengths = [len(self._groups[admission.group].prompt) for admission in left]
        buckets = [block.prompt_bucket for block in self._blocks]
        buckets += [self._buckets.prompt_bucket(length) for length in lengths]
        return max(buckets, default=self._buckets.prompts[0]) + self._response
