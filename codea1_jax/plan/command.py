"""`codea1 plan`: compiles every program of a run's step for a TPU slice, on any machine.

    codea1 plan --gin_file=gin/runs/a1_1_5b.gin --topology=v6e-8 --json=plan.json

No weights, data or TPU are needed. Exit code 1: it does not fit, and the last lines say what to
change.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from codea1_jax.config import TrainConfig, validate
from codea1_jax.gin_io import build, flag_bindings
from codea1_jax.obs.progress import duration
from codea1_jax.plan import report as report_lib
from codea1_jax.plan.advice import advise
from codea1_jax.plan.chips import Slice, slice_named
from codea1_jax.plan.compilation import compile_cached, is_cached, program_hash
from codea1_jax.plan.estimate import estimate, host_bytes
from codea1_jax.plan.phases import Phase, Plan
from codea1_jax.plan.topology import compiler_version, devices_of

# Compile times against each other, for the time left.
_WEIGHTS = {"gradients": 12.0, "log-probs": 4.0, "reference": 4.0, "prefill": 3.0, "decode": 3.0}


def run(options: argparse.Namespace, flags: Sequence[str]) -> int:
    """Prints the plan's table. Returns 1 if the run does not fit.

    Raises:
      UserError: bad configuration, unknown slice, or no libtpu.
    """
    slice_ = slice_named(options.topology)
    jax.config.update("jax_platforms", "cpu")
    config = build(TrainConfig, options.gin_file, flag_bindings(flags))
    devices, compiler = devices_of(slice_), compiler_version()
    result = make_report(config, slice_, devices, compiler, _say)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report_lib.as_json(result), indent=1) + "\n")
    print(report_lib.table(result), flush=True)
    return 0 if result.fits else 1


def make_report(
    config: TrainConfig,
    slice_: Slice,
    devices: Sequence[Any],
    compiler: str,
    say: Callable[[str], None],
) -> report_lib.Report:
    """Compiles what is not cached, one program after the other, and adds up.

    Args:
      devices: the slice's; only compiled for.
      say: takes a line of progress.

    Raises:
      UserError: the configuration does not fit together, or not on so many devices.
    """
    # A plan reads no data; its paths may lie on the machine that will train.
    without_paths = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, path=""),
        evaluation=dataclasses.replace(config.evaluation, path=""),
        wandb_project="",
    )
    validate(without_paths, len(devices))
    plan = Plan(config, list(devices))
    timer, estimates = _Timer(plan.phases), []
    for number, phase in enumerate(plan.phases, 1):
        start = time.perf_counter()
        lowered = phase.lower()
        where = (slice_.name, sorted(plan.mesh.shape.items()), phase.unknown_trips)
        key = program_hash(lowered, compiler, *where)
        was_cached = is_cached(key)
        compiled = compile_cached(lowered, key, len(devices), phase.unknown_trips)
        one = estimate(phase, compiled, slice_.chip, len(devices))
        estimates.append(one)
        left_s = timer.finished(phase, 0.0 if was_cached else time.perf_counter() - start)
        say(
            f"[{number}/{len(plan.phases)}] {phase.name} ({phase.shape}): "
            f"{one.total_bytes / 2**30:.2f} GiB of {slice_.chip.hbm_bytes / 2**30:.2f}, "
            + ("cached" if was_cached else f"compiled in {duration(compiled.compile_s)}")
            + (f"; at most {duration(left_s)} left" if left_s else "")
        )
    return report_lib.Report(
        plan=plan,
        slice=slice_,
        compiler=compiler,
        estimates=tuple(estimates),
        host=host_bytes(plan, slice_.num_hosts),
        advice=tuple(advise(plan, estimates, slice_.chip)),
    )


class _Timer:
    """Estimates the time left from the compile times so far, weighted by the kind of program."""

    def __init__(self, phases: Sequence[Phase]):
        self._left = sum(self._weight(phase) for phase in phases)
        self._done = self._spent_s = 0.0

    def finished(self, phase: Phase, seconds: float) -> float:
        """Seconds left at most (some programs may be cached), after `phase` took `seconds`."""
        self._left -= self._weight(phase)
        if seconds:
            self._done += self._weight(phase)
            self._spent_s += seconds
        return self._spent_s / self._done * self._left if self._done else 0.0

    @staticmethod
    def _weight(phase: Phase) -> float:
        return _WEIGHTS.get(phase.kind, 1.0)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
