"""The order in which problems are trained on: a pure function of (seed, epoch, index).

    cursor = DataCursor(num_items=len(problems), batch_size=256, seed=0)
    epoch, indices = cursor.next_batch()
    state = cursor.state()                      # JSON; goes into the checkpoint
    cursor = DataCursor.from_state(state)       # continues exactly

The last, partial batch of an epoch is dropped: floor(9688 / 256) = 37 steps per epoch.
"""

import dataclasses
from typing import Any

import numpy as np


def epoch_order(num_items: int, seed: int, epoch: int) -> np.ndarray:
    """int64[num_items]: the permutation of an epoch.

    Sorting raw generator words instead of `Generator.permutation`: NumPy promises the words of
    Philox for all versions, but not the algorithms on top, and a run must resume under another
    version in the same order.
    """
    bits = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(num_items)
    return np.argsort(bits, kind="stable")


@dataclasses.dataclass
class DataCursor:
    """Walks over `num_items` in batches, epoch after epoch.

    Attributes:
      step: number of batches handed out so far; all there is to the state.
      is_shuffled: False keeps the source's order in every epoch.
    """

    num_items: int
    batch_size: int
    seed: int = 0
    is_shuffled: bool = True
    step: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be at least 1")
        if self.num_items < self.batch_size:
            raise ValueError(
                f"batch_size={self.batch_size} is more than the {self.num_items} problems: "
                "an epoch would have no step; lower the batch size"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed} must be in [0, 2^63)")
        self._cached: tuple[int, np.ndarray] | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self.num_items // self.batch_size

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self.step // self.steps_per_epoch

    def batch_at(self, step: int) -> tuple[int, list[int]]:
        """(epoch, indices) of any step, without moving the cursor."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        return epoch, self._order(epoch)[start : start + self.batch_size].tolist()

    def next_batch(self) -> tuple[int, list[int]]:
        batch = self.batch_at(self.step)
        self.step += 1
        return batch

    def _order(self, epoch: int) -> np.ndarray:
        if not self.is_shuffled:
            return np.arange(self.num_items)
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, epoch_order(self.num_items, self.seed, epoch))
        return self._cached[1]

    def state(self) -> dict[str, Any]:
        """JSON-serialisable; everything `from_state` needs."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "DataCursor":
        return cls(**state)

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a saved state; the data and the order must be the same as then."""
        for name in ("num_items", "batch_size", "seed", "is_shuffled"):
            if state[name] != getattr(self, name):
                raise ValueError(
                    f"the checkpoint's data cursor has {name}={state[name]}, this run has "
                    f"{getattr(self, name)}; resume with the same data, batch size and seed"
                )
        self.step = int(state["step"])


def process_slice(indices: list[int], process_index: int, process_count: int) -> list[int]:
    """The part of a batch that one of several processes works on (contiguous, equal sizes)."""
    if len(indices) % process_count:
        raise ValueError(
            f"a batch of {len(indices)} does not divide among {process_count} processes"
        )
    size = len(indices) // process_count
    return indices[process_index * size : (process_index + 1) * size]
