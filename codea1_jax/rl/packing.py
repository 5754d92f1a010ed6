"""Packs a batch into the fixed-shape rows that programs run on, sharing prompts inside groups.

Samples of one prompt become one *item*: the prompt once, then the responses, which see the prompt
and themselves but not each other. Items are packed into rows, rows into micro-batches:

    row:          | prompt | response 1 | response 2 |  prompt' | response 1' | padding |
    segment_ids:      1          1            1           2           2            0
    branch_ids:       0          1            2           0           1            0
    positions:     0..P-1      P..          P..        0..P'-1      P'..           0

Attention stays inside a segment and, beyond the prompt (branch 0), inside a branch; so every token
gets the values that it would get in a row of its own. Forward and backward pay for each prompt once
instead of once per sample.

The plan depends on the batch alone, not on the number of hosts or devices beyond `row_multiple`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from codea1_jax.rl.batching import TrainBatch, pick_bucket
from codea1_jax.typing import Float32, Int32, Int64


@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Rows of one micro-batch.

    The first group of arrays describes the tokens the model reads. The second describes the tokens
    that count, moved to the front of their row: column c of row r stands for the c-th counted token
    of that row, wherever it lies. Columns beyond have mask 0.

    Attributes:
      segment_ids: 0 for padding, else the item.
      branch_ids: 0 for prompts, else the response within the item.
      hidden_index: the position in the row whose hidden state predicts the counted token.
      sample_ids: which sample of the row the counted token belongs to, from 1; 0 beyond. A sample
        lies in one row, so sums over its columns are sums over the whole sample.
      advantages: the sample's advantage times the token's weight.
      source: flat index of the counted token in the batch's [B L] arrays; -1 beyond. Host only.
    """

    tokens: Int32[np.ndarray, "R L"]
    positions: Int32[np.ndarray, "R L"]
    segment_ids: Int32[np.ndarray, "R L"]
    branch_ids: Int32[np.ndarray, "R L"]

    hidden_index: Int32[np.ndarray, "R L"]
    targets: Int32[np.ndarray, "R L"]
    sample_ids: Int32[np.ndarray, "R L"]
    response_mask: Float32[np.ndarray, "R L"]
    advantages: Float32[np.ndarray, "R L"]
    old_logp: Float32[np.ndarray, "R L"]
    ref_logp: Float32[np.ndarray, "R L"]
    source: Int64[np.ndarray, "R L"]

    def arrays(self) -> dict[str, np.ndarray]:
        """Field name -> array, for a jitted function."""
        return {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "source"
        }

    @classmethod
    def dtypes(cls) -> dict[str, Any]:
        """The dtype of each of `arrays`, in their order."""
        floats = ("response_mask", "advantages", "old_logp", "ref_logp")
        names = (f.name for f in dataclasses.fields(cls) if f.name != "source")
        return {name: np.float32 if name in floats else np.int32 for name in names}

    def restore(self, values: Float32[np.ndarray, "R L"], into: Float32[np.ndarray, "B L"]) -> None:
        """Writes values of counted tokens to their places in an array of the batch."""
        is_counted = self.source >= 0
        into.reshape(-1)[self.source[is_counted]] = values[is_counted]


@dataclasses.dataclass(frozen=True)
class _Item:
    """Samples (rows of the batch) whose first `prompt_length` tokens are the same."""

    samples: tuple[int, ...]
    prompt_length: int
    length: int


def micro_batches(
    batch: TrainBatch,
    *,
    length_buckets: Sequence[int],
    max_tokens: int,
    row_multiple: int = 1,
    share_prefix: bool = True,
) -> list[PackedRows]:
    """Packs the samples that have a counted token, longest items first.

    Row lengths are buckets. The number of rows of a micro-batch is what fits `max_tokens`, or, for
    the last ones of a length, the smallest power of two that holds them; always a multiple of
    `row_multiple`. So the shapes come from a finite list.

    Args:
      max_tokens: padded tokens a micro-batch may hold, over all devices; one row may be longer.
      row_multiple: what the number of rows must divide by: the devices the rows are spread over.
      share_prefix: False packs every sample with a prompt of its own.
    """
    fitting = [bucket for bucket in length_buckets if bucket * row_multiple <= max_tokens]
    items = _items(batch, max(fitting, default=min(length_buckets)), share_prefix)
    rows = _pack(items, length_buckets)
    parts = []
    for length in sorted({length for length, _ in rows}, reverse=True):
        same = [items for row_length, items in rows if row_length == length]
        most = max(max_tokens // length // row_multiple, 1)
        while same:
            multiples = -(-len(same) // row_multiple)
            num_rows = min(1 << (multiples - 1).bit_length(), most) * row_multiple
            parts.append(_lay_out(batch, same[:num_rows], num_rows, length))
            same = same[num_rows:]
    return parts


def _items(batch: TrainBatch, most_tokens: int, share_prefix: bool) -> list[_Item]:
    """Groups samples by prompt; a group longer than `most_tokens` becomes several items."""
    starts = np.argmax(batch.response_mask > 0, axis=1)  # the first counted token
    groups: dict[bytes | int, list[int]] = {}
    for sample in np.flatnonzero(batch.response_mask.any(axis=1)).tolist():
        prompt = batch.tokens[sample, : starts[sample]]
        groups.setdefault(prompt.tobytes() if share_prefix else sample, []).append(sample)
    items = []
    for samples in groups.values():
        prompt_length = int(starts[samples[0]])
        open_samples: list[int] = []
        length = prompt_length
        for sample in samples:
            more = int(batch.lengths[sample]) - prompt_length
            if open_samples and length + more > most_tokens:
                items.append(_Item(tuple(open_samples), prompt_length, length))
                open_samples, length = [], prompt_length
            open_samples.append(sample)
            length += more
        items.append(_Item(tuple(open_samples), prompt_length, length))
    return items


def _pack(items: list[_Item], length_buckets: Sequence[int]) -> list[tuple[int, list[_Item]]]:
    """First fit, longest first: (row length, its items) for every row."""
    waiting = sorted(items, key=lambda item: -item.length)
    rows = []
    while waiting:
        length = pick_bucket(waiting[0].length, length_buckets)
        row, rest, room = [], [], length
        for item in waiting:
            if item.length <= room:
                row.append(item)
                room -= item.length
            else:
                rest.append(item)
        rows.append((length, row))
        waiting = rest
    return rows


def _lay_out(batch: TrainBatch, rows: list[list[_Item]], num_rows: int, length: int) -> PackedRows:
    shape = (num_rows, length)
    of_row = ("tokens", "positions", "segment_ids", "branch_ids")
    of_column = ("hidden_index", "targets", "sample_ids")
    ints = {name: np.zeros(shape, np.int32) for name in of_row + of_column}
    floats = {
        name: np.zeros(shape, np.float32)
        for name in ("response_mask", "advantages", "old_logp", "ref_logp")
    }
    source = np.full(shape, -1, np.int64)
    for r, items in enumerate(rows):
        at = num_counted = num_samples = 0
        for segment, item in enumerate(items, start=1):
            prompt_start, prompt_length = at, item.prompt_length
            for branch, sample in enumerate(item.samples, start=1):
                end = int(batch.lengths[sample])
                begin = 0 if branch == 1 else prompt_length
                span = slice(at, at + end - begin)
                ints["tokens"][r, span] = batch.tokens[sample, begin:end]
                ints["positions"][r, span] = np.arange(begin, end)
                ints["segment_ids"][r, span] = segment
                response_start = at + prompt_length - begin
                ints["branch_ids"][r, response_start : span.stop] = branch

                counted = np.flatnonzero(batch.response_mask[sample, :end] > 0)
                columns = slice(num_counted, num_counted + len(counted))
                num_counted += len(counted)
                num_samples += 1
                # Token t of the sample lies at response_start + t - prompt_length; the token
                # before the first one is the prompt's last, which all branches share.
                before = response_start + counted - prompt_length - 1
                before[counted == prompt_length] = prompt_start + prompt_length - 1
                ints["hidden_index"][r, columns] = before
                ints["targets"][r, columns] = batch.tokens[sample, counted]
                ints["sample_ids"][r, columns] = num_samples
                floats["response_mask"][r, columns] = batch.response_mask[sample, counted]
                weights = batch.weights[sample, counted]
                floats["advantages"][r, columns] = batch.advantages[sample] * weights
                floats["old_logp"][r, columns] = batch.old_logp[sample, counted]
                floats["ref_logp"][r, columns] = batch.ref_logp[sample, counted]
                source[r, columns] = sample * batch.tokens.shape[1] + counted
                at = span.stop
    return PackedRows(**ints, **floats, source=source)
