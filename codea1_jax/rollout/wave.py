"""One wave of a rollout: a cache, the rows in it, and the host's side of their decoding."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from codea1_jax.models.attention import KVCache
from codea1_jax.rollout import scheduler
from codea1_jax.rollout.programs import DecodeShape, DecodeState, Programs
from codea1_jax.rollout.sampling import Method, request_key
from codea1_jax.rollout.scheduler import Admission, Buckets, PromptBlock, SlotBook, Wave
from codea1_jax.rollout.types import GroupRequest, Sample, SamplingParams
from codea1_jax.typing import Params

# Stop tokens are an input of the decode program, padded to a multiple of this.
_STOPS_MULTIPLE = 8


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


class WaveRun:
    """One wave: a cache, the rows in it, and the tokens drawn so far."""

    def __init__(
        self,
        programs: Programs,
        buckets: Buckets,
        view: Params,
        groups: tuple[GroupRequest, ...],
        wave: Wave,
        cache_length: int,
        sampling: SamplingParams,
        method: Method,
        policy_version: int,
        pad_id: int,
        stats: RolloutStats,
    ):
        self._programs = programs
        self._buckets = buckets
        self._view = view
        self._groups = groups
        self._cache_length = cache_length
        self._sampling = sampling
        self._method = method
        self._policy_version = policy_version
        self._pad_id = pad_id
        self._stats = stats
        self._book = SlotBook(wave, groups)
        self._temperature = np.float32(sampling.temperature or 1.0)
        self._top_p = np.float32(sampling.top_p)
        self._stops = padded_stops(sampling)
        self._cache: KVCache = programs.empty(wave.num_slots, cache_length)()
        self._state = self._empty_state(wave.num_slots)
        self._drawn: list[list[tuple[np.ndarray, ...]]] = [[] for _ in range(wave.num_slots)]
        self._block: PromptBlock | None = None
        self._hidden: jax.Array | None = None
        self._prompts: tuple[KVCache, ...] = ()

    def samples(self) -> Iterator[Sample]:
        while self._book.has_work:
            yield from self._fill()
            if self._book.live:
                yield from self._decode()
                self._compact()

    def _fill(self) -> Iterator[Sample]:
        """Gives free slots to waiting samples, prefilling blocks as needed.

        A sample can finish with its first token; its slot is then filled again.
        """
        while True:
            block = self._book.next_block()
            if block is not None:
                self._prefill(block)
            admitted = self._book.admit()
            if not admitted:
                return
            yield from self._start(admitted)
            if not self._book.has_prefilled:
                self._prompts, self._hidden = (), None  # their slots hold copies

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
        self._hidden, self._prompts = program(self._view, tokens, lengths)
        jax.block_until_ready(self._hidden)
        self._stats.prefill_s += time.perf_counter() - start
        self._stats.num_prefill_tokens += int(lengths[: len(block.groups)].sum())

    def _start(self, admitted: list[Admission]) -> Iterator[Sample]:
        """Copies prompts to the slots of the admitted samples and draws their first tokens."""
        assert self._block is not None
        size = scheduler.smallest_at_least(self._buckets.slots, len(admitted))
        first = self._programs.first(self._block.num_rows, size, self._method)
        rows = len(self._book.slots)
        insert = self._programs.insert(rows, self._cache_length, self._block.prompt_bucket)
        start = time.perf_counter()
        sources = np.zeros(size, np.int32)
        key_data = np.zeros((size, 2), np.uint32)
        slots_of: dict[int, list[int]] = {}
        for i, admission in enumerate(admitted):
            group = self._groups[admission.group]
            sources[i] = admission.source
            key_data[i] = request_key(
                self._policy_version, group.seed, group.request_id, admission.sample_index
            )
            slots_of.setdefault(admission.source, []).append(admission.slot)
        draw = first(self._view, self._hidden, sources, key_data, self._temperature, self._top_p)
        for source, slots in slots_of.items():
            padded = np.array(slots + [0] * (rows - len(slots)), np.int32)
            self._cache = insert(self._cache, self._prompts[source], padded, np.int32(len(slots)))
        token, logp, kept_mass = jax.device_get((draw.token, draw.logp, draw.kept_mass))
        self._stats.prefill_s += time.perf_counter() - start
        for i, admission in enumerate(admitted):
            slot = admission.slot
            self._state.token[slot] = token[i]
            self._state.index[slot] = 0
            self._state.key_data[slot] = key_data[i]
            self._state.is_done[slot] = False
            self._drawn[slot] = []
            column = slice(i, i + 1)
            sample = self._collect(admission, token[column], logp[column], kept_mass[column])
            if sample is not None:
                yield sample

    def _decode(self) -> Iterator[Sample]:
        """One loop on the device; yields the samples that finished in it."""
        rows = len(self._book.slots)
        program = self._programs.decode(
            DecodeShape(rows, self._cache_length, self._method, len(self._stops))
        )
        start = time.perf_counter()
        limit = np.int32(self._sampling.max_new_tokens)
        self._cache, num_steps, draw = program(
            self._view, self._cache, self._state, self._temperature, self._top_p, limit, self._stops
        )
        steps, tokens, logp, kept_mass = jax.device_get(
            (num_steps, draw.token, draw.logp, draw.kept_mass)
        )
        self._stats.decode_s += time.perf_counter() - start
        self._stats.num_row_steps += int(steps) * rows
        for admission in self._book.live:
            slot = admission.slot
            before = int(self._state.index[slot])
            sample = self._collect(
                admission, tokens[slot, :steps], logp[slot, :steps], kept_mass[slot, :steps]
            )
            self._stats.num_live_row_steps += int(self._state.index[slot]) - before
            if sample is not None:
                yield sample

    def _collect(
        self, admission: Admission, tokens: np.ndarray, logp: np.ndarray, kept_mass: np.ndarray
    ) -> Sample | None:
        """Adds new tokens up to a stop token or the limit; the sample if that finished it."""
        slot, group = admission.slot, self._groups[admission.group]
        tokens = tokens[: self._sampling.max_new_tokens - int(self._state.index[slot])]
        stops = np.flatnonzero(np.isin(tokens, self._stops))
        if stops.size:
            tokens = tokens[: stops[0] + 1]
        self._drawn[slot].append((tokens, logp[: len(tokens)], kept_mass[: len(tokens)]))
        self._state.index[slot] += len(tokens)
        self._state.token[slot] = tokens[-1]
        # The last token is not in the cache yet; the next loop starts by writing it.
        self._state.position[slot] = len(group.prompt) + self._state.index[slot] - 1
        if not stops.size and self._state.index[slot] < self._sampling.max_new_tokens:
            return None
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
            finish_reason="stop" if stops.size else "length",
            policy_version=self._policy_version,
        )

    def _compact(self) -> None:
        """Moves the live rows to a smaller program if one holds them all and nothing waits."""
        before = len(self._book.slots)
        old = self._book.compact(self._buckets.slots)
        if old is None:
            return
        program = self._programs.compact(before, len(old), self._cache_length)
        start = time.perf_counter()
        self._cache = program(self._cache, np.array(old, np.int32))
        state = dataclasses.asdict(self._state)
        self._state = DecodeState(**{name: column[old] for name, column in state.items()})
        self._state.is_done[len(self._book.live) :] = True
        self._drawn = [self._drawn[slot] for slot in old]
        self._stats.decode_s += time.perf_counter() - start

    def _empty_state(self, rows: int) -> DecodeState:
        column: dict[str, Any] = {
            name: np.zeros(rows, np.int32) for name in ("token", "position", "index")
        }
        return DecodeState(
            **column, is_done=np.ones(rows, bool), key_data=np.zeros((rows, 2), np.uint32)
        )
