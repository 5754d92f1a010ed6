"""A plan as a table for a person and as JSON for a program."""

import dataclasses
from typing import Any

from codea1_jax.plan.advice import Advice
from codea1_jax.plan.chips import Slice
from codea1_jax.plan.estimate import Estimate
from codea1_jax.plan.phases import Plan

_GIB = 2**30
_COLUMNS = (
    "phase", "shapes", "args", "results", "temp", "others", "total", "of HBM",
    "TFLOP", "ms", "bound", "calls", "s/step", "largest collective",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything a plan found.

    Attributes:
      host: bytes of one host by what they are for.
      compiler: its name and version.
    """

    plan: Plan
    slice: Slice
    compiler: str
    estimates: tuple[Estimate, ...]
    host: dict[str, int]
    advice: tuple[Advice, ...]

    @property
    def host_total(self) -> int:
        return sum(self.host.values())

    @property
    def transfer_s(self) -> float:
        """Least seconds of a step between devices and their hosts, all devices at once."""
        return self.plan.transfer_bytes / self.slice.chip.host_bandwidth

    @property
    def fits(self) -> bool:
        return self.host_total <= self.slice.host_bytes and all(one.fits for one in self.estimates)


def table(report: Report) -> str:
    """Markdown: a row a phase, then what is held, the host, and the verdict."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *(_row(one) for one in report.estimates)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
        for row in rows
    ]
    return "\n".join([_heading(report), "", *lines, "", *_footer(report)])


def as_json(report: Report) -> dict[str, Any]:
    """Bytes are per device unless the key says host."""
    return {
        "topology": report.slice.name,
        "compiler": report.compiler,
        "mesh": dict(report.plan.mesh.shape),
        "hbm_limit_bytes": report.slice.chip.hbm_bytes,
        "attention": {role.name: role.attention for role in report.plan.roles},
        "held_bytes": report.plan.held,
        "offloaded_bytes": report.plan.offloaded,
        "transfer_bytes": report.plan.transfer_bytes,
        "transfer_s": report.transfer_s,
        "host_bytes": report.host,
        "host_limit_bytes": report.slice.host_bytes,
        "fits": report.fits,
        "advice": [dataclasses.asdict(one) for one in report.advice],
        "step_s": sum(one.step_s for one in report.estimates),
        "phases": [_phase_json(one) for one in report.estimates],
    }


def _phase_json(one: Estimate) -> dict[str, Any]:
    compiled = dataclasses.asdict(one.compiled)
    collectives = [
        dataclasses.asdict(collective) | {"sent_bytes": collective.sent_bytes}
        for collective in one.compiled.collectives
    ]
    return {
        "phase": one.phase.name,
        "shapes": one.phase.shape,
        **compiled,
        "collectives": collectives,
        "resident_bytes": dict(one.phase.resident),
        "program_bytes": one.program_bytes,
        "total_bytes": one.total_bytes,
        "fits": one.fits,
        "flops": one.phase.flops,
        "compute_s": one.compute_s,
        "hbm_s": one.hbm_s,
        "ici_s": one.ici_s,
        "roofline_s": one.seconds,
        "calls_per_step": one.phase.calls,
    }


def _heading(report: Report) -> str:
    chip, mesh = report.slice.chip, report.plan.mesh.shape
    sizes = ", ".join(f"{axis}={size}" for axis, size in mesh.items())
    return (
        f"{report.slice.name}: {report.slice.num_chips} chips on {report.slice.num_hosts} host(s), "
        f"{chip.hbm_bytes / _GIB:.2f} GiB each; mesh {sizes}; {report.compiler}.\n"
        "Memory in GiB per device; ms is the roofline time of one call; calls and s/step are for a "
        "step whose prompts and answers all have their longest length."
    )


def _row(one: Estimate) -> tuple[str, ...]:
    compiled = one.compiled
    results = compiled.num_output_bytes - compiled.num_aliased_bytes
    refused = compiled.is_refused
    collective = one.largest_collective
    return (
        one.phase.name,
        one.phase.shape,
        _gib(one.phase.argument_bytes if refused else compiled.num_argument_bytes),
        "?" if refused else _gib(results),
        _gib(compiled.num_temporary_bytes + compiled.num_code_bytes),
        _gib(sum(one.phase.resident.values())),
        _gib(one.total_bytes),
        f"{100 * one.total_bytes / one.limit_bytes:.0f} %" + ("" if one.fits else " TOO LARGE"),
        f"{one.phase.flops / 1e12:.1f}" if one.phase.flops else "-",
        "?" if refused else f"{1e3 * one.seconds:.2f}",
        "?" if refused else one.bound,
        f"{one.phase.calls}",
        "?" if refused else f"{one.step_s:.2f}",
        f"{collective.kind} {collective.shape} x{collective.count}" if collective else "-",
    )


def _footer(report: Report) -> list[str]:
    held = ", ".join(f"{name} {_gib(size)}" for name, size in report.plan.held.items())
    host = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in report.host.items())
    attention = "; ".join(
        f"{role.name} {', '.join(f'{kind} {who}' for kind, who in role.attention.items())}"
        for role in report.plan.roles
    )
    lines = [f"Attention: {attention}.", f"Held through the step (GiB per device): {held}."]
    if report.plan.offloaded:
        waiting = ", ".join(f"{name} {_gib(n)}" for name, n in report.plan.offloaded.items())
        lines.append(
            f"Waiting on the host (GiB per device): {waiting}; "
            f"{_gib(report.plan.transfer_bytes)} moved in a step, at least "
            f"{report.transfer_s:.2f} s beside the roofline time."
        )
    lines += [
        f"Host memory (GB per host, limit {report.slice.host_bytes / 1e9:.0f}): {host}; "
        f"{report.host_total / 1e9:.1f} in all.",
        f"Roofline time of a step: {sum(one.step_s for one in report.estimates):.0f} s.",
    ]
    if report.fits:
        return [*lines, "It fits."]
    lines.append("It does not fit. Change")
    lines += [f"  {advice}" for advice in report.advice]
    if report.host_total > report.slice.host_bytes:
        largest = max(report.host, key=lambda name: report.host[name])
        lines.append(f"  --topology to one with more hosts: most of a host's memory is {largest}")
    return lines


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f}"
