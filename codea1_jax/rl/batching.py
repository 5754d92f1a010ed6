"""From finished samples to batches and mini-batches of rows, one sample a row.

How a mini-batch is cut and packed for the device is rl/packing.py's business.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from codea1_jax.typing import Float32, Int32


@dataclasses.dataclass(frozen=True)
class TrainSample:
    """A prompt, its response, and what the update should make of it.

    Attributes:
      is_trained: False keeps the row (shapes stay put) but no token of it counts.
      sampler_logp: log-probs of `tokens` when they were drawn; None where that is not known.
    """

    prompt: Sequence[int]
    tokens: Sequence[int] | np.ndarray
    advantage: float = 0.0
    is_trained: bool = True
    sampler_logp: Sequence[float] | np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class TrainBatch:
    """Right-padded rows: prompt, then response. Index t describes token t.

    Attributes:
      lengths: tokens in the row, padding excluded.
      response_mask: 1 on the response's tokens (its stop token included) that count in the loss.
      old_logp: log-probs under the parameters before the step's first update.
      ref_logp: log-probs under the frozen reference.
      sampler_logp: log-probs when the tokens were drawn; zero where that is not known.
      weights: what a token's advantage is multiplied with (rl/importance.py); ones unless set.
    """

    tokens: Int32[np.ndarray, "B L"]
    lengths: Int32[np.ndarray, "B"]
    response_mask: Float32[np.ndarray, "B L"]
    advantages: Float32[np.ndarray, "B"]
    old_logp: Float32[np.ndarray, "B L"]
    ref_logp: Float32[np.ndarray, "B L"]
    sampler_logp: Float32[np.ndarray, "B L"]
    weights: Float32[np.ndarray, "B L"]

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def num_response_tokens(self) -> int:
        return int(self.response_mask.sum())

    def arrays(self) -> dict[str, np.ndarray]:
        """Field name -> array, for a jitted function."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def take(self, rows: np.ndarray | slice) -> "TrainBatch":
        """The given rows, in the given order."""
        return TrainBatch(**{name: value[rows] for name, value in self.arrays().items()})

    def replace(self, **changes: np.ndarray) -> "TrainBatch":
        """A copy with some arrays replaced, e.g. `old_logp` once it is known."""
        return dataclasses.replace(self, **changes)


def default_length_buckets(max_length: int) -> tuple[int, ...]:
    """2^k and 1.5 * 2^k from 128 up, ending at the first that holds `max_length`."""
    buckets: list[int] = []
    size = 128
    while not buckets or buckets[-1] < max_length:
        buckets.append(size)
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return tuple(buckets)


def pick_bucket(length: int, buckets: Sequence[int]) -> int:
    """Smallest bucket that holds `length`.

    Raises:
      ValueError: none does.
    """
    fitting = [bucket for bucket in buckets if bucket >= length]
    if not fitting:
        raise ValueError(
            f"a row of {length} tokens is longer than the largest length bucket {max(buckets)}; "
            "add a bucket to LearnerConfig.length_buckets or lower the prompt or response limit"
        )
    return min(fitting)


def build_batch(
    samples: Sequence[TrainSample], *, length_buckets: Sequence[int], pad_id: int = 0
) -> TrainBatch:
    """Lays samples out in rows of one bucket length. Log-probs are zeros until they are computed.

    A response may be empty: its row then has no token that counts.

    Raises:
      ValueError: no samples, an empty prompt (a first token has no log-prob), an advantage that is
        not finite, or a row longer than every bucket.
    """
    if not samples:
        raise ValueError("a batch needs at least one sample")
    for index, sample in enumerate(samples):
        if len(sample.prompt) == 0:
            raise ValueError(f"sample {index} has an empty prompt")
        if not np.isfinite(sample.advantage):
            raise ValueError(f"sample {index} has advantage {sample.advantage}; mask it instead")
    lengths = np.array([len(s.prompt) + len(s.tokens) for s in samples], np.int32)
    shape = (len(samples), pick_bucket(int(lengths.max()), length_buckets))
    tokens = np.full(shape, pad_id, np.int32)
    mask = np.zeros(shape, np.float32)
    sampler_logp = np.zeros(shape, np.float32)
    for row, sample in enumerate(samples):
        start = len(sample.prompt)
        tokens[row, :start] = np.asarray(sample.prompt, np.int32)
        tokens[row, start : lengths[row]] = np.asarray(sample.tokens, np.int32)
        mask[row, start : lengths[row]] = float(sample.is_trained)
        if sample.sampler_logp is not None:
            sampler_logp[row, start : lengths[row]] = sample.sampler_logp
    advantages = np.array([s.advantage for s in samples], np.float32)
    zeros = np.zeros(shape, np.float32)
    return TrainBatch(
        tokens,
        lengths,
        mask,
        advantages,
        old_logp=zeros,
        ref_logp=zeros,
        sampler_logp=sampler_logp,
        weights=np.ones(shape, np.float32),
    )


def mini_batches(batch: TrainBatch, num: int, *, seed: int | None = None) -> list[TrainBatch]:
    """Cuts a batch into `num` parts of (nearly) equal size, contiguous in the batch's order.

    `seed` shuffles the rows first; the order is a function of the seed and the row count alone.

    Raises:
      ValueError: fewer rows than parts.
    """
    if not 1 <= num <= batch.num_rows:
        raise ValueError(f"cannot cut {batch.num_rows} rows into {num} mini-batches")
    order = np.arange(batch.num_rows)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(batch.num_rows)
    return [batch.take(rows) for rows in np.array_split(order, num)]
