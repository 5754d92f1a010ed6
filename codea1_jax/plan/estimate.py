"""What a phase needs and at least takes on a chip: what the compiler said, and counting."""

import dataclasses

from codea1_jax.plan.chips import Chip
from codea1_jax.plan.collectives import Collective
from codea1_jax.plan.compilation import Compiled
from codea1_jax.plan.phases import Phase, Plan, device_bytes

# Python, JAX, the compiled programs and the tokenizer, before anything of the run.
_HOST_BASE_BYTES = 4 * 10**9
# A sampled token on the host: id, log-prob and kept mass.
_SAMPLE_TOKEN_BYTES = 12
# A token of a training batch and of its packed rows: 8 and 12 arrays of 4 bytes (rl/batching.py,
# rl/packing.py).
_BATCH_TOKEN_BYTES = 80


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A phase on a chip.

    Attributes:
      compute_s, hbm_s, ici_s: least time of one call by arithmetic, by reading arguments and
        writing results, and by sending what its collectives send; each at the chip's peak.
    """

    phase: Phase
    compiled: Compiled
    limit_bytes: int
    compute_s: float
    hbm_s: float
    ici_s: float

    @property
    def program_bytes(self) -> int:
        """Of the program and its arguments, those included that jit drops as unused."""
        if self.compiled.is_refused:
            return self.phase.argument_bytes + self.compiled.num_temporary_bytes
        unused = max(self.phase.argument_bytes - self.compiled.num_argument_bytes, 0)
        return self.compiled.peak_bytes + unused

    @property
    def total_bytes(self) -> int:
        return self.program_bytes + sum(self.phase.resident.values())

    @property
    def fits(self) -> bool:
        return not self.compiled.is_refused and self.total_bytes <= self.limit_bytes

    @property
    def seconds(self) -> float:
        """Roofline time of one call."""
        return max(self.compute_s, self.hbm_s, self.ici_s)

    @property
    def bound(self) -> str:
        times = {"compute": self.compute_s, "HBM": self.hbm_s, "ICI": self.ici_s}
        return max(times, key=lambda name: times[name])

    @property
    def step_s(self) -> float:
        """Roofline time in a training step whose prompts and answers have the longest lengths."""
        return self.seconds * self.phase.calls

    @property
    def largest_collective(self) -> Collective | None:
        return max(self.compiled.collectives, key=lambda one: one.num_bytes, default=None)


def estimate(phase: Phase, compiled: Compiled, chip: Chip, num_devices: int) -> Estimate:
    results = compiled.num_output_bytes - compiled.num_aliased_bytes
    moved = phase.reads * compiled.num_argument_bytes + results
    return Estimate(
        phase=phase,
        compiled=compiled,
        limit_bytes=chip.hbm_bytes,
        compute_s=phase.work / num_devices / chip.peak_flops,
        hbm_s=moved / chip.hbm_bandwidth,
        ici_s=sum(one.sent_bytes for one in compiled.collectives) / chip.ici_bandwidth,
    )


def host_bytes(plan: Plan, num_hosts: int) -> dict[str, int]:
    """Memory of one host by what it is for; one process runs on each."""
    num_devices = plan.mesh.size // num_hosts
    states = sum(device_bytes(role.state) for role in plan.roles if role.owns_state)
    batches = plan.config.coevolution.max_extra_batches + 1
    sampled = trained = 0
    for role in plan.roles:
        samples = batches * role.groups * role.group_size
        sampled += samples * role.config.sampling.max_new_tokens
        trained += role.trained_samples * max(role.config.learner.length_buckets)
    return {
        "base": _HOST_BASE_BYTES,
        "checkpoint": states * num_devices // plan.mesh.shape["data"],
        "offloaded": sum(plan.offloaded.values()) * num_devices,
        "samples": sampled * _SAMPLE_TOKEN_BYTES,
        "batches": trained * _BATCH_TOKEN_BYTES,
    }
