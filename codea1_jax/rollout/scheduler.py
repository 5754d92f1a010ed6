"""Turns groups into a plan of fixed shapes, and keeps the books of which sample sits in which slot.

Host only, no JAX. Shapes come from three finite lists: prompt lengths, slots per program, prompts
per prefill. Requests are grouped into waves that share a cache length; inside a wave a prompt is
prefilled once and its samples take slots as they become free. The plan is a pure function of the
requests; the tokens do not depend on it at all.

Example: prompt_buckets (128, 256), 32 slots, groups of 4 with prompts of 100, 200 and 210 tokens:
one wave of cache prompt length 256 and 16 slots, with a prefill of two prompts at 256 and one of
one prompt at 128.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence

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
        """Row counts are halved while they stay a multiple of `multiple`, which divides `rows`."""
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


@dataclasses.dataclass(frozen=True)
class Wave:
    """Requests that share one cache.

    Attributes:
      prompt_bucket: the longest prompt the cache has room for.
      num_slots: rows of the decode program at the start.
      blocks: in the order in which they are prefilled.
    """

    prompt_bucket: int
    num_slots: int
    blocks: tuple[PromptBlock, ...]


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


def plan_waves(groups: Sequence[GroupRequest], buckets: Buckets) -> list[Wave]:
    """Longest prompts first, so that the tail of the work is the cheapest.

    A wave takes all requests of one prompt bucket, and those of the next smaller one as long as it
    has fewer samples than slots: a half-empty program costs more than a cache that is too long.
    """
    order = sorted(range(len(groups)), key=lambda i: (-len(groups[i].prompt), i))
    waves: list[Wave] = []
    members: list[int] = []
    num_samples = 0
    for position, index in enumerate(order):
        members.append(index)
        num_samples += groups[index].num_samples
        is_last = position + 1 == len(order)
        is_bucket_end = is_last or buckets.prompt_bucket(
            len(groups[order[position + 1]].prompt)
        ) != buckets.prompt_bucket(len(groups[index].prompt))
        if is_last or (is_bucket_end and num_samples >= buckets.slots[-1]):
            waves.append(
                Wave(
                    buckets.prompt_bucket(len(groups[members[0]].prompt)),
                    smallest_at_least(buckets.slots, num_samples),
                    tuple(_blocks(groups, members, buckets)),
                )
            )
            members, num_samples = [], 0
    return waves


def _blocks(
    groups: Sequence[GroupRequest], members: Sequence[int], buckets: Buckets
) -> Iterator[PromptBlock]:
    """Cuts the members into prefills: full ones first, then smaller ones, padding only the last."""
    start = 0
    while start < len(members):
        remaining = len(members) - start
        fitting = [size for size in buckets.prefill if size <= remaining]
        num_rows = fitting[-1] if fitting else buckets.prefill[0]
        chosen = tuple(members[start : start + num_rows])
        longest = len(groups[chosen[0]].prompt)
        yield PromptBlock(buckets.prompt_bucket(longest), num_rows, chosen)
        start += len(chosen)


@dataclasses.dataclass(frozen=True)
class Admission:
    """One sample that takes a slot: row `source` of the prefilled block goes to `slot`."""

    slot: int
    source: int
    group: int
    sample_index: int


class SlotBook:
    """Which sample occupies which slot of a wave, and what waits."""

    def __init__(self, wave: Wave, groups: Sequence[GroupRequest]):
        self._groups = groups
        self._blocks = collections.deque(wave.blocks)
        self._waiting: collections.deque[tuple[int, int, int]] = collections.deque()
        self.slots: list[Admission | None] = [None] * wave.num_slots

    @property
    def live(self) -> list[Admission]:
        """Occupied slots, by rising slot."""
        return [slot for slot in self.slots if slot is not None]

    @property
    def has_work(self) -> bool:
        return bool(self._blocks or self._waiting or self.live)

    @property
    def is_draining(self) -> bool:
        """Nothing waits: slots that become free stay free."""
        return not self._blocks and not self._waiting

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
        for slot, occupant in enumerate(self.slots):
            if occupant is None and self._waiting:
                admission = Admission(slot, *self._waiting.popleft())
                self.slots[slot] = admission
                admitted.append(admission)
        return admitted

    def release(self, slot: int) -> None:
        self.slots[slot] = None

    def compact(self, sizes: Sequence[int]) -> list[int] | None:
        """Moves the live samples to fewer slots once nothing waits.

        Returns:
          The old slot of each new one, or None when no smaller size fits. Slots without a sample
          repeat slot 0.
        """
        live = self.live
        size = smallest_at_least(sizes, len(live))
        if not self.is_draining or not live or size >= len(self.slots):
            return None
        old = [occupant.slot for occupant in live]
        self.slots = [dataclasses.replace(occupant, slot=i) for i, occupant in enumerate(live)]
        self.slots += [None] * (size - len(live))
        return old + [0] * (size - len(old))
