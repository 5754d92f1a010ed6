"""Which setting to change when a phase does not fit, from what it is to what would do.

The new value is worked out from what the phase needs, taking what shrinks with the setting to be
proportional to it. It is a next try, not a promise: plan again with it.
"""

import dataclasses
from collections.abc import Sequence

from codea1_jax.plan.chips import SLICES, Chip
from codea1_jax.plan.estimate import Estimate
from codea1_jax.plan.phases import Plan

_ROLLOUT = ("weight sync", "prefill", "insert", "decode", "shrink")
_SCORING = ("log-probs", "reference", "gradients")
_LEAST_CHUNK = 128  # tokens; below it the head's products get too small


@dataclasses.dataclass(frozen=True)
class Advice:
    """`key` from `current` to `proposed`, because of `phase`."""

    key: str
    current: str
    proposed: str
    phase: str

    def __str__(self) -> str:
        return f"{self.key}: from {self.current} to {self.proposed} ({self.phase})"


def advise(plan: Plan, estimates: Sequence[Estimate], chip: Chip) -> list[Advice]:
    """One piece of advice a setting, for the phases that do not fit, the neediest first."""
    chosen: dict[str, Advice] = {}
    for one in sorted(estimates, key=lambda e: -e.total_bytes):
        if not one.fits:
            advice = _advise(plan, one, chip)
            chosen.setdefault(advice.key, advice)
    return list(chosen.values())


def _advise(plan: Plan, one: Estimate, chip: Chip) -> Advice:
    excess = one.total_bytes - one.limit_bytes
    name = one.phase.name
    # Where what idles is the larger part it goes first: no result changes, nothing gets slower but
    # by the time of its way over PCIe.
    is_mostly_idle = sum(one.phase.resident.values()) > one.program_bytes
    found = _offload(plan, one, excess) if is_mostly_idle else None
    if found is None and one.phase.kind in _SCORING:
        found = _smaller_micro_batch(plan, one, excess)
    elif found is None and one.phase.kind in _ROLLOUT:
        found = _smaller_rollout(plan, one, excess)
    if found is None:
        found = _smaller_state(plan, one, excess, chip)
    return Advice(*found, phase=name)


def _smaller_micro_batch(plan: Plan, one: Estimate, excess: int) -> tuple[str, str, str] | None:
    role = plan.role(one.phase.role)
    learner, (rows, length) = role.config.learner, role.micro_batch
    shards = role.row_shards
    temporary = one.compiled.num_temporary_bytes
    most = int(rows * max(temporary - excess, 0) / max(temporary, 1)) // shards * shards
    if rows > shards and most >= shards:
        return (
            "LearnerConfig.micro_batch_tokens",
            f"{learner.micro_batch_tokens}",
            f"{most * length}",
        )
    if role.config.remat != "full":
        return "RoleConfig.remat", repr(role.config.remat), "'full'"
    if rows > shards:
        return (
            "LearnerConfig.micro_batch_tokens",
            f"{learner.micro_batch_tokens}",
            f"{shards * length}",
        )
    if learner.tokens_per_chunk > _LEAST_CHUNK:
        proposed = max(learner.tokens_per_chunk // 4, _LEAST_CHUNK)
        return "LearnerConfig.tokens_per_chunk", f"{learner.tokens_per_chunk}", f"{proposed}"
    return None


def _smaller_rollout(plan: Plan, one: Estimate, excess: int) -> tuple[str, str, str] | None:
    role = plan.role(one.phase.role)
    rollout, shards = role.config.rollout, role.row_shards
    buckets = role.engine.buckets
    prompts = buckets.prefill[-1]
    if one.phase.kind == "prefill" and prompts > shards:
        key, proposed = f"{role.name}/RolloutConfig.prefill_rows", max(prompts // 2, shards)
        if one.compiled.num_temporary_bytes > excess:
            return key, f"{rollout.prefill_rows}", f"{proposed}"
    # What grows with the rows: the cache, and the program's temporaries beside it.
    cache = role.cache_bytes(buckets.slots[-1], role.engine.cache_lengths(role.config.sampling)[-1])
    if one.phase.kind != "weight sync" and cache > excess:
        most = int(rollout.rows * (cache - excess) / cache) // shards * shards
        if most >= shards and most < rollout.rows:
            return f"{role.name}/RolloutConfig.rows", f"{rollout.rows}", f"{most}"
    tensor = plan.mesh.shape["tensor"]
    heads = role.model.config.num_key_value_heads
    if tensor * 2 <= heads and plan.mesh.shape["fsdp"] % 2 == 0:
        fsdp = plan.mesh.shape["fsdp"] // 2
        return "MeshConfig.tensor", f"{tensor}", f"{tensor * 2} (and MeshConfig.fsdp = {fsdp})"
    return None


def _smaller_state(plan: Plan, one: Estimate, excess: int, chip: Chip) -> tuple[str, str, str]:
    data = plan.mesh.shape["data"]
    if data > 1:
        return "MeshConfig.data", f"{data}", "1 (and MeshConfig.fsdp = -1)"
    found = _offload(plan, one, excess)
    if found is not None:
        return found
    trained = [role for role in plan.roles if role.owns_state and role.config.is_trained]
    # A first moment in bfloat16 is a quarter less of both moments.
    saved = sum(size // 4 for size in _moments(plan, one).values())
    if all(role.config.optimizer.mu_dtype == "float32" for role in trained) and saved >= excess:
        return "OptimizerConfig.mu_dtype", "'float32'", "'bfloat16'"
    least = plan.mesh.size * one.total_bytes / one.limit_bytes
    fitting = [
        slice_
        for slice_ in SLICES.values()
        if slice_.chip == chip and slice_.num_chips >= max(least, plan.mesh.size + 1)
    ]
    larger = min(fitting, key=lambda slice_: slice_.num_chips, default=None)
    proposed = larger.name if larger else "a chip with more memory"
    return "--topology", f"{plan.mesh.size} chips", proposed


def _offload(plan: Plan, one: Estimate, excess: int) -> tuple[str, str, str] | None:
    """Moments, then references, that wait on the host, if both together would do."""
    moments = _moments(plan, one)
    if one.phase.kind == "optimizer":
        moments.pop(one.phase.role)  # this program's arguments
    saved = {
        "offload_optimizer": sum(moments.values()),
        "offload_reference": plan.held["reference"] if one.phase.kind != "reference" else 0,
    }
    if sum(saved.values()) < excess:
        return None
    enough = [key for key, size in saved.items() if size >= excess]
    key = enough[0] if enough else "offload_optimizer"
    return f"RoleConfig.{key}", "False", "True"


def _moments(plan: Plan, one: Estimate) -> dict[str, int]:
    """Bytes of the moments on a device in this phase, by role."""
    return {
        role.name: role.moment_bytes
        for role in plan.roles
        if role.owns_state and role.config.is_trained
        if not role.offloads_moments
        or (one.phase.kind == "optimizer" and one.phase.role == role.name)
    }
