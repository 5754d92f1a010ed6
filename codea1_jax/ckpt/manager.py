"""Atomic checkpoints of a whole run, on Orbax.

One checkpoint holds arrays (parameters and optimizer states of every trained role) and one JSON
object (step, Mistake Book, data cursor, policy versions, configuration, fingerprints). Orbax writes
to a temporary folder and renames it: a run killed while saving finds its previous checkpoint.
"""

import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp

from codea1_jax.errors import UserError


class RestoreError(UserError):
    """A checkpoint that does not belong to this configuration; says what differs and what to do."""


class CheckpointManager:
    """Saves and restores (arrays, meta) pairs by step under one folder."""

    def __init__(self, directory: pathlib.Path, keep_last: int = 2):
        self.directory = directory.absolute()
        self._manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(max_to_keep=keep_last, create=True),
            item_names=("arrays", "meta"),
        )

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def all_steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(self, step: int, arrays: Any, meta: dict[str, Any]) -> None:
        """Saves; a failure raises here or at the next call, so that a run never goes on unsaved.

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
