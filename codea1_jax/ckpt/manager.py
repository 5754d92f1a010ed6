"""Atomic checkpoints of a whole run, on Orbax.

One checkpoint holds arrays (parameters and optimizer states of every trained role) and one JSON
object (step, Mistake Book, data cursor, policy versions, configuration, fingerprints). Orbax writes
to a temporary folder and renames it: a run killed while saving finds its previous checkpoint.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import (
    PolicyCheckpointInfo,
    PreservationContext,
    PreservationPolicy,
)

from codea1_jax.errors import UserError


class RestoreError(UserError):
    """A checkpoint that does not belong to this configuration; says what differs and what to do."""


@dataclasses.dataclass(frozen=True)
class KeepLastAndBest(PreservationPolicy):
    """Which checkpoints stay: the last ones, and those with the highest scores.

    Of equal scores the later one is the better. A checkpoint without a score is never among the
    best.
    """

    last: int
    best: int

    def should_preserve(
        self, checkpoints: Sequence[PolicyCheckpointInfo], *, context: PreservationContext
    ) -> list[bool]:
        steps = [info.step for info in checkpoints]
        kept = set(steps[-self.last :])
        scores = {info.step: _score(info.metrics) for info in checkpoints}
        kept.update(_ranked(scores)[: self.best])
        return [step in kept for step in steps]


def _score(metrics: Any) -> float | None:
    return (metrics or {}).get("score")


def _ranked(scores: dict[int, float | None]) -> list[int]:
    """Steps that have a score, the best first."""
    known = [(score, step) for step, score in scores.items() if score is not None]
    return [step for _, step in sorted(known, reverse=True)]


class CheckpointManager:
    """Saves and restores (arrays, meta) pairs by step under one folder.

    Args:
      keep_last: the newest so many stay; at least 1.
      keep_best: so many with the highest scores stay as well.
    """

    def __init__(self, directory: pathlib.Path, keep_last: int = 2, keep_best: int = 0):
        self.directory = directory.absolute()
        self._manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=KeepLastAndBest(keep_last, keep_best),
                best_fn=lambda metrics: metrics["score"],  # without one Orbax writes no metrics
                create=True,
            ),
            # Named, since a manager that has not saved yet cannot read dtypes of items otherwise.
            item_handlers={
                "arrays": ocp.StandardCheckpointHandler(),
                "meta": ocp.JsonCheckpointHandler(),
            },
        )

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def all_steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def best_step(self) -> int | None:
        """The step with the highest score among the checkpoints that are there."""
        scores = {step: _score(self._manager.metrics(step)) for step in self.all_steps()}
        return next(iter(_ranked(scores)), None)

    def save(
        self, step: int, arrays: Any, meta: dict[str, Any], score: float | None = None
    ) -> None:
        """Saves, then removes what need not be kept.

        A failure raises here or at the next call, so that a run never goes on unsaved.
        On the CPU backend the write is waited for: host and device memory are the same there, and
        the next update donates these buffers.
        """
        if step == self._manager.latest_step():
            return
        self._manager.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(arrays), meta=ocp.args.JsonSave(meta)
            ),
            metrics={"score": score},
        )
        if jax.default_backend() == "cpu":
            self.wait()

    def restore_meta(self, step: int) -> dict[str, Any]:
        restored = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))
        return restored["meta"]

    def restore_arrays(self, step: int, abstract: Any) -> Any:
        """Arrays of a checkpoint, placed as `abstract` says (shapes, dtypes and shardings).

        Raises:
          RestoreError: a parameter is missing, extra, or has another shape or dtype. (Orbax casts
            a wrong dtype silently, so dtypes are compared first.)
        """
        hint = (
            f"checkpoint {self.directory}/{step}: start with another --run_dir, or restore the old "
            "configuration"
        )
        saved = self._manager.item_metadata(step)["arrays"]
        for path, leaf in jax.tree.leaves_with_path(abstract):
            found = _lookup(saved, path)
            if found is not None and found.dtype != leaf.dtype:
                name = jax.tree_util.keystr(path)
                raise RestoreError(f"{name} is {found.dtype} there and {leaf.dtype} here; {hint}")
        try:
            restored = self._manager.restore(
                step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(abstract))
            )
        except (ValueError, KeyError) as error:
            raise RestoreError(f"{error}; {hint}") from error
        return restored["arrays"]

    def wait(self) -> None:
        self._manager.wait_until_finished()
        self._manager.check_for_errors()

    def close(self) -> None:
        self.wait()
        self._manager.close()


def _lookup(tree: Any, path: tuple[Any, ...]) -> Any:
    """The metadata leaf at `path`, or None where the saved tree has another structure."""
    for entry in path:
        key = getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", None)))
        try:
            tree = tree[key]
        except (KeyError, TypeError, IndexError):
            return None
    return tree
