"""What a checkpoint of a run holds, and whether it belongs to this run."""

import dataclasses
import difflib
from typing import Any

from codea1_jax.ckpt.manager import RestoreError

# Where a run is computed and shown, not what: a restart may find another slice or sandbox.
_PLACES = (
    "MeshConfig.",
    "SandboxConfig.",
    "TrainConfig.wandb_project",
    "RoleConfig.offload_",
)


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

    Another mesh or sandbox is no other configuration: arrays are laid out anew and the run goes on
    up to rounding.

    Raises:
      RestoreError: says what differs and how to go on.
    """
    if meta["dataset"] != dataset:
        raise RestoreError(
            f"the checkpoint of step {meta['step']} was trained on other problems "
            f"(fingerprint {meta['dataset'][:12]}, now {dataset[:12]}); restore the data or start "
            "with another --run_dir"
        )
    before, now = _bindings(meta["config"]), _bindings(config)
    if before == now or is_change_allowed:
        return
    diff = difflib.unified_diff(before, now, lineterm="", n=0)
    changed = [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    shown = "; ".join(changed[:6]) + ("; ..." if len(changed) > 6 else "")
    raise RestoreError(
        f"the configuration changed since the checkpoint of step {meta['step']}: {shown}. Restore "
        "it, start with another --run_dir, or set TrainConfig.allow_changed_config = True"
    )


def _bindings(config: str) -> list[str]:
    """What a gin text binds, line by line, except where the run is computed."""
    lines = (line.strip() for line in config.splitlines())
    return [line for line in lines if line and not line.startswith("#") and not _is_place(line)]


def _is_place(line: str) -> bool:
    """`line` binds one of `_PLACES`, in whatever gin scope (`coder/RoleConfig...`)."""
    key = line.partition("=")[0]
    return key.rpartition("/")[2].startswith(_PLACES)
