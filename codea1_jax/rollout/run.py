"""One call of the engine: a cache, the rows in it, and the host's side of their decoding."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from codea1_jax.models.attention import Cache
from codea1_jax.rollout.programs import CacheShape, DecodeShape, DecodeState, Programs
from codea1_jax.rollout.sampling import Method, request_key
from codea1_jax.rollout.scheduler import Admission, Buckets, PromptBlock, SlotBook
from codea1_jax.rollout.types import FinishReason, GroupRequest, Sample, SamplingParams
from codea1_jax.typing import Params

# Stop tokens are an input of the decode program, padded to a multiple of this.
_STOPS_MULTIPLE = 8


class Loop(NamedTuple):
    """One decode loop on the device.

    Attributes:
      end_s: seconds of the engine's own work (prefill and decoding) until its end.
      live: rows with a sample at its start.
      rows: rows of the program.
    """

    end_s: float
    live: int
    rows: int


@dataclasses.dataclass
class RolloutStats:
    """What one `generate` did. Times are seconds, without compilation and the caller's own time.

    Attributes:
      num_tokens: generated, stop tokens included.
      num_prefill_tokens: of prompts, each counted once per group, without padding.
      num_live_row_steps, num_row_steps: rows with a sample against all rows, summed over decode
        steps; their ratio is the occupancy.
    """

    num_samples: int = 0
    num_tokens: int = 0
    num_prefill_tokens: int = 0
    num_live_row_steps: int = 0
    num_row_steps: int = 0
    weights_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    compile_s: float = 0.0
    loops: list[Loop] = dataclasses.field(default_factory=list)

    @property
    def occupancy(self) -> float:
        return self.num_live_row_steps / max(self.num_row_steps, 1)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / max(self.weights_s + self.prefill_s + self.decode_s, 1e-9)


def padded_stops(sampling: SamplingParams) -> np.ndarray:
    stops = sorted(set(sampling.stop_token_ids))
    size = max(-(-len(stops) // _STOPS_MULTIPLE), 1) * _STOPS_MULTIPLE
    return np.array(stops + [-1] * (size - len(stops)), np.int32)


class RolloutRun:
    """A cache, the samples in its rows, and the tokens drawn so far.

    Args:
      responses: as `SlotBook` takes them.
    """

    def __init__(
        self,
        programs: Programs,
        buckets: Buckets,
        view: Params,
        groups: tuple[GroupRequest, ...],
        sampling: SamplingParams,
        method: Method,
        policy_version: int,
        pad_id: int,
        responses: Sequence[int],
        stats: RolloutStats,
    ):
        self._programs = programs
        self._view = view
        self._groups = groups
        self._sampling = sampling
        self._method = method
        self._policy_version = policy_version
        self._pad_id = pad_id
        self._stats = stats
        self._book = SlotBook(groups, buckets, responses, programs.num_row_shards)
        self._temperature = np.float32(sampling.temperature or 1.0)
        self._top_p = np.float32(sampling.top_p)
        self._stops = padded_stops(sampling)
        self._cache: Cache | None = None
        self._scratch: tuple[jax.Array, ...] = ()
        rows = len(self._book.slots)
        self._state = self._empty_state(rows)
        self._drawn: list[list[tuple[np.ndarray, ...]]] = [[] for _ in range(rows)]
        self._block: PromptBlock | None = None
        self._prompts: tuple[Cache, ...] = ()

    def samples(self) -> Iterator[Sample]:
        if self._book.has_work:
            self._cache = self._programs.empty(*self._shape)()
            self._scratch = self._programs.scratch(self._shape.rows)()
        while self._book.has_work:
            self._fill()
            self._grow()
            yield from self._decode()
            self._shrink()

    @property
    def _shape(self) -> CacheShape:
        return CacheShape(len(self._book.slots), self._book.cache_length)

    def _fill(self) -> None:
        """Gives free slots to waiting samples, prefilling blocks as needed."""
        while True:
            block = self._book.next_block()
            if block is not None:
                self._prefill(block)
            admitted = self._book.admit()
            if not admitted:
                return
            self._start(admitted)
            if not self._book.has_prefilled:
                self._prompts = ()  # their slots hold copies

    def _prefill(self, block: PromptBlock) -> None:
        program = self._programs.prefill(block.num_rows, block.prompt_bucket)
        start = time.perf_counter()
        tokens = np.full((block.num_rows, block.prompt_bucket), self._pad_id, np.int32)
        lengths = np.ones(block.num_rows, np.int32)  # of dummy rows
        for row, group in enumerate(block.groups):
            prompt = self._groups[group].prompt
            tokens[row, : len(prompt)] = prompt
            lengths[row] = len(prompt)
        self._block = block
        self._prompts = jax.block_until_ready(program(self._view, tokens, lengths))
        self._stats.prefill_s += time.perf_counter() - start
        self._stats.num_prefill_tokens += int(lengths[: len(block.groups)].sum())

    def _start(self, admitted: list[Admission]) -> None:
        """Copies prompts to the slots of the admitted samples.

        Their first token is drawn by the decode loop, which is given the prompt's last token.
        """
        assert self._block is not None
        rows = len(self._book.slots)
        insert = self._programs.insert(*self._shape, self._block.prompt_bucket)
        start = time.perf_counter()
        slots_of: dict[int, list[int]] = {}
        for admission in admitted:
            slot, group = admission.slot, self._groups[admission.group]
            slots_of.setdefault(admission.source, []).append(slot)
            self._state.token[slot] = group.prompt[-1]
            self._state.position[slot] = len(group.prompt) - 1
            self._state.index[slot] = 0
            self._state.key_data[slot] = request_key(
                self._policy_version, group.seed, group.request_id, admission.sample_index
            )
            self._state.is_done[slot] = False
            self._drawn[slot] = []
        for source, slots in slots_of.items():
            padded = np.array(slots + [0] * (rows - len(slots)), np.int32)
            self._cache = insert(self._cache, self._prompts[source], padded, np.int32(len(slots)))
        self._stats.prefill_s += time.perf_counter() - start

    def _grow(self) -> None:
        """Makes room for the tokens of the next loop."""
        before = self._shape
        most = max(int(self._state.index[occupant.slot]) for occupant in self._book.live)
        if self._book.grow(most + self._programs.chunk) is not None:
            program = self._programs.grow(before, self._book.cache_length)
            start = time.perf_counter()
            self._cache = program(self._cache)
            self._stats.decode_s += time.perf_counter() - start

    def _decode(self) -> Iterator[Sample]:
        """One loop on the device; yields the samples that finished in it."""
        rows, live = len(self._book.slots), self._book.live
        program = self._programs.decode(DecodeShape(self._shape, self._method, len(self._stops)))
        start = time.perf_counter()
        limit = np.int32(self._sampling.max_new_tokens)
        self._cache, num_steps, draw, self._scratch = program(
            self._view, self._cache, self._state, self._temperature, self._top_p, limit,
            self._stops, self._scratch,
        )  # fmt: skip
        steps, tokens, logp, kept_mass = jax.device_get(
            (num_steps, draw.token, draw.logp, draw.kept_mass)
        )
        self._stats.decode_s += time.perf_counter() - start
        self._stats.num_row_steps += int(steps) * rows
        own_s = self._stats.prefill_s + self._stats.decode_s
        self._stats.loops.append(Loop(own_s, len(live), rows))
        slots = np.array([admission.slot for admission in live])
        counts, is_stopped = self._count(tokens[slots, :steps], self._state.index[slots])
        self._state.index[slots] += counts
        # The last token is not in the cache yet; the next loop starts by writing it.
        self._state.token[slots] = tokens[slots, counts - 1]
        self._state.position[slots] += counts
        self._stats.num_live_row_steps += int(counts.sum())
        for admission, count, has_stopped in zip(live, counts, is_stopped):
            slot = admission.slot
            self._drawn[slot].append(
                (tokens[slot, :count], logp[slot, :count], kept_mass[slot, :count])
            )
            if has_stopped or self._state.index[slot] == limit:
                yield self._finish(admission, "stop" if has_stopped else "length")

    def _count(self, tokens: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many of the new `tokens` [B steps] count, and whether a stop token is the last.

        Args:
          before: tokens that each row had.
        """
        num_steps = tokens.shape[1]
        is_stop = np.isin(tokens, self._stops)
        stop = np.where(is_stop.any(axis=1), is_stop.argmax(axis=1), num_steps)
        room = np.minimum(num_steps, self._sampling.max_new_tokens - before)
        counts = np.minimum(stop + 1, room)
        return counts, stop < counts

    def _finish(self, admission: Admission, reason: FinishReason) -> Sample:
        """Frees the slot of a sample whose last token has been drawn."""
        slot, group = admission.slot, self._groups[admission.group]
        columns = [np.concatenate(parts) for parts in zip(*self._drawn[slot])]
        if not np.isfinite(columns[1]).all():
            raise FloatingPointError(
                f"request {group.request_id!r}, sample {admission.sample_index}: logits are not "
                f"finite at token {int(np.flatnonzero(~np.isfinite(columns[1]))[0])}; the weights "
                f"of policy version {self._policy_version} hold NaN or overflow in the compute "
                "dtype"
            )
        self._state.is_done[slot] = True
        self._state.position[slot] = 0
        self._book.release(slot)
        self._stats.num_samples += 1
        self._stats.num_tokens += len(columns[0])
        return Sample(
            request_id=group.request_id,
            sample_index=admission.sample_index,
            prompt=group.prompt,
            tokens=columns[0],
            sampler_logp=columns[1],
            kept_mass=columns[2],
            finish_reason=reason,
            policy_version=self._policy_version,
        )

    def _shrink(self) -> None:
        """Moves what is left to a smaller program, if one holds it."""
        before = self._shape
        while (move := self._book.shrink()) is not None:
            program = self._programs.shrink(before, self._shape)
            start = time.perf_counter()
            old = np.array(move.old, np.int32)
            self._cache = program(self._cache, old)
            state = dataclasses.asdict(self._state)
            self._state = DecodeState(**{name: column[old] for name, column in state.items()})
            for slot, occupant in enumerate(self._book.slots):
                self._state.is_done[slot] = occupant is None
            self._drawn = [self._drawn[slot] for slot in old]
            if self._shape.rows < before.rows:
                self._scratch = self._programs.scratch(self._shape.rows)()
            self._stats.decode_s += time.perf_counter() - start
            before = self._shape

    def _empty_state(self, rows: int) -> DecodeState:
        column: dict[str, Any] = {
            name: np.zeros(rows, np.int32) for name in ("token", "position", "index")
        }
        return DecodeState(
            **column, is_done=np.ones(rows, bool), key_data=np.zeros((rows, 2), np.uint32)
        )
