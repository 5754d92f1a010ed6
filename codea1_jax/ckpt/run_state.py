"""What a checkpoint of a run holds, and whether it belongs to this run."""

import dataclasses
import difflib
from typing import Any

from codea1_jax.ckpt.manager import RestoreError


@dataclasses.dataclass(frozen=True)
class RunState:
    """The whole state of a run after a step.

    Attributes:
      arrays: TrainState of each trained role.
      policy_versions: version of each role's parameters; part of every sample's random key.
      book, cursor: states of the Mistake Book and the data cursor.
      dataset: fingerprint of the training problems, in order.
      config: the gin text that the run was started with.
    """

    step: int
    arrays: dict[str, Any]
    policy_versions: dict[str, int]
    book: dict[str, Any]
    cursor: dict[str, Any]
    dataset: str
    config: str

    def meta(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "arrays"
        } | {"trained_roles": sorted(self.arrays)}


def check_same_run(
    meta: dict[str, Any], *, dataset: str, config: str, is_change_allowed: bool
) -> None:
    """Refuses to continue a run with other data or another configuration.

    Raises:
      RestoreError: says what differs and how to go on.
    """
    if meta["dataset"] != dataset:
        raise RestoreError(
            f"the checkpoint of step {meta['step']} was trained on other problems "
            f"(fingerprint {meta['dataset'][:12]}, now {dataset[:12]}); restore the data or start "
            "with another --run_dir"
        )
    if meta["config"] == config or is_change_allowed:
        return
    changed = [
        line
        for line in difflib.unified_diff(
            meta["config"].splitlines(), config.splitlines(), lineterm="", n=0
        )
        if line[:1] in "+-" and line[:3] not in ("+++", "---") and line[1:].strip()
    ]
    shown = "; ".join(changed[:6]) + ("; ..." if len(changed) > 6 else "")
    raise RestoreError(
        f"the configuration changed since the checkpoint of step {meta['step']}: {shown}. Restore "
        "it, start with another --run_dir, or set TrainConfig.allow_changed_config = True"
    )
