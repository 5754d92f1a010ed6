"""EvalPlus' judgement of one sample, without EvalPlus' shared process.

The canonical solution and the sample run in separate sandboxed processes; what each call returned
comes back as plain data and is compared here (`comparison.py`). Time limits are those of EvalPlus
v0.3.1 (Apache-2.0; Liu et al., arXiv 2305.01210): an input may take max(1 s, 4 x the canonical
solution's time), all inputs together at most 60 s.

Differences, all on purpose: times are CPU times, so that a busy machine turns no right answer into
a time-out; on a machine so slow that the canonical solution needs over 30 s in all, a sample may
take twice as long as it does; every input is built afresh, so that what a call does to its
arguments cannot leak into the next. `comparison.py` lists two more.
"""

import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from codea1_jax.data.evalplus import EvalProblem
from codea1_jax.errors import UserError
from codea1_jax.eval.comparison import NOT_NONE_TASKS, SET_EQUAL_TASKS, Comparison
from codea1_jax.eval.large_values import alike, large_to_digest
from codea1_jax.sandbox.verdict import (
    Call,
    CallStatus,
    Limits,
    Outcome,
    Run,
    RunResult,
    RunStatus,
    Verdict,
)
from sandbox_service import codec

MIN_INPUT_S = 1.0
TIME_FACTOR = 4.0
MAX_PART_S = 60.0
REFERENCE_S = 240.0  # CPU time of a canonical solution for all inputs of one part
WALL_FACTOR = 3.0  # the wall clock is a backstop behind CPU time
MEMORY_BYTES = 4 << 30  # EvalPlus' default
OUTPUT_BYTES = 64 << 20  # EvalPlus throws output away; here only a flood ends the run
VALUE_BYTES = 8 << 20  # what is not digested
MAX_RUN_BYTES = 8 << 20  # encoded arguments of one run; larger suites are split
MAX_RUN_CALLS = 5_000

Part = Literal["base", "plus"]
PARTS: tuple[Part, Part] = ("base", "plus")

_ADAPTER_NAME = "_codea1_adapter"
# Appended to a program. The leading `pass` keeps an unfinished program (`@decorator` at its end)
# from taking the adapter in. Returns whether the value is of a plain type itself (EvalPlus compares
# types, and the codec sends a subclass by its base value), and the value.
_ADAPTER = """
pass
def {name}(*args, _function={entry_point}):
    from typing import Any
{large_to_digest}
    value = large_to_digest(_function(*args))
    return {projection}
"""
_LARGE_TO_DIGEST = textwrap.indent(inspect.getsource(large_to_digest), "    ")
_PLAIN = 'type(value).__module__ == "builtins", value'
_NOT_NONE = "True, value if isinstance(value, bool) else value is not None"
_REFERENCE_NOT_NONE = "True, value is not None"
# Iterators and views become lists: the comparison is one of sets.
_SET = (
    'type(value).__module__ == "builtins", '
    "value if isinstance(value, (list, tuple, set, frozenset, str, bytes, dict)) else list(value)"
)


class ReferenceFailed(UserError):
    """A canonical solution has no value for one of its own inputs."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """What the canonical solution returned for the inputs of one part.

    Attributes:
      values: one per input.
      cpu_s: CPU seconds of each call.
    """

    values: tuple[Any, ...]
    cpu_s: tuple[float, ...]

    @property
    def input_limits_s(self) -> tuple[float, ...]:
        return tuple(max(MIN_INPUT_S, TIME_FACTOR * s) for s in self.cpu_s)

    @property
    def part_limit_s(self) -> float:
        # EvalPlus waits two seconds longer than the limit itself.
        limit = min(MAX_PART_S, sum(self.input_limits_s)) + 2.0
        return max(limit, 2.0 * sum(self.cpu_s))


@dataclasses.dataclass(frozen=True)
class PartVerdict:
    """One sample on one part.

    Attributes:
      status: EvalPlus' words, and "unknown" where the sandbox could not tell.
      failed_input: index of the first input that failed, -1 if none or not tied to one.
    """

    status: Literal["pass", "fail", "timeout", "unknown"]
    reason: str = ""
    failed_input: int = -1

    @property
    def verdict(self) -> Verdict:
        if self.status == "unknown":
            return Verdict.UNKNOWN
        return Verdict.PASS if self.status == "pass" else Verdict.FAIL


def inputs_of(problem: EvalProblem, part: Part) -> tuple[tuple[Any, ...], ...]:
    return problem.base_input if part == "base" else problem.plus_input


def _adapted(problem: EvalProblem, program: str, is_reference: bool) -> str:
    name = problem.entry_point
    projection = _PLAIN
    if problem.suite == "mbpp_plus" and name in NOT_NONE_TASKS:
        projection = _REFERENCE_NOT_NONE if is_reference else _NOT_NONE
    elif problem.suite == "mbpp_plus" and name in SET_EQUAL_TASKS:
        projection = _SET
    return program + _ADAPTER.format(
        name=_ADAPTER_NAME,
        entry_point=name,
        large_to_digest=_LARGE_TO_DIGEST,
        projection=projection,
    )


def _runs(program: str, inputs: Sequence[tuple[Any, ...]], limits: Limits) -> list[Run]:
    """One run, or several where the arguments exceed what one request may hold."""
    chunks: list[list[Call]] = [[]]
    size = 0
    for args in inputs:
        num_bytes = len(codec.encode(args, max_bytes=MAX_RUN_BYTES))
        if chunks[-1] and (size + num_bytes > MAX_RUN_BYTES or len(chunks[-1]) >= MAX_RUN_CALLS):
            chunks.append([])
            size = 0
        chunks[-1].append(Call(_ADAPTER_NAME, args))
        size += num_bytes
    return [
        Run(program=program, calls=tuple(chunk), limits=limits, entry_point=_ADAPTER_NAME)
        for chunk in chunks
        if chunk
    ]


def reference_runs(problem: EvalProblem, part: Part) -> list[Run]:
    """Runs of the canonical solution; empty when the part has no inputs."""
    limits = Limits(
        cpu_s=REFERENCE_S,
        call_cpu_s=REFERENCE_S,
        wall_s=WALL_FACTOR * REFERENCE_S,
        memory_bytes=MEMORY_BYTES,
        output_bytes=OUTPUT_BYTES,
        value_bytes=VALUE_BYTES,
    )
    program = _adapted(problem, problem.program, is_reference=True)
    return _runs(program, inputs_of(problem, part), limits)


def answers_from(problem: EvalProblem, part: Part, results: Sequence[RunResult]) -> Answers:
    """Raises ReferenceFailed when an input has no value."""
    values, cpu_s = [], []
    for index, (result, outcome) in enumerate(_outcomes(results)):
        if outcome.status is not CallStatus.VALUE:
            why = f"{outcome.error_type}: {outcome.message}".strip(": ") or result.message
            raise ReferenceFailed(
                f"{problem.task_id}: the canonical solution gives no value for {part} input "
                f"{index} ({result.status.value}, {outcome.status.value}: {why})"
            )
        _, value = outcome.value
        values.append(value)
        cpu_s.append(outcome.cpu_s)
    return Answers(tuple(values), tuple(cpu_s))


def _outcomes(results: Sequence[RunResult]) -> Iterator[tuple[RunResult, Outcome]]:
    for result in results:
        for outcome in result.outcomes:
            yield result, outcome


def sample_runs(problem: EvalProblem, part: Part, solution: str, answers: Answers) -> list[Run]:
    """Runs of a sample; empty when the part has no inputs."""
    if not answers.values:
        return []
    limits = Limits(
        cpu_s=answers.part_limit_s,
        call_cpu_s=max(answers.input_limits_s),
        wall_s=WALL_FACTOR * answers.part_limit_s,
        memory_bytes=MEMORY_BYTES,
        output_bytes=OUTPUT_BYTES,
        value_bytes=VALUE_BYTES,
    )
    program = _adapted(problem, solution, is_reference=False)
    return _runs(program, inputs_of(problem, part), limits)


def judge_part(
    problem: EvalProblem, part: Part, answers: Answers, results: Sequence[RunResult]
) -> PartVerdict:
    """The verdict of a sample on one part from the results of `sample_runs`."""
    for result in results:
        if result.status is RunStatus.INTERNAL:
            return PartVerdict("unknown", result.message)
        if result.status is RunStatus.LOAD_ERROR:
            return PartVerdict("fail", f"does not load: {result.message}")
    comparison = Comparison(problem)
    inputs, limits_s = inputs_of(problem, part), answers.input_limits_s
    for index, (result, outcome) in enumerate(_outcomes(results)):
        failed = _call_failure(result, outcome, limits_s[index])
        if failed is None:
            is_plain, value = _unwrap(outcome.value)
            value, expected = alike(value, answers.values[index])
            if comparison.accepts(inputs[index], is_plain, value, expected):
                continue
            failed = ("fail", f"returned {_short(value)}, expected {_short(expected)}")
        status, reason = failed
        return PartVerdict(status, reason, index)  # type: ignore[arg-type]
    for result in results:
        if result.status is not RunStatus.OK:  # every call had its value, the end was not clean
            status = "timeout" if result.status is RunStatus.TIMEOUT else "fail"
            return PartVerdict(status, result.message or result.status.value)  # type: ignore[arg-type]
    return PartVerdict("pass")


def _call_failure(result: RunResult, outcome: Outcome, limit_s: float) -> tuple[str, str] | None:
    """(status, reason) of a call that failed before any comparison; None when it has a value."""
    match outcome.status:
        case CallStatus.VALUE:
            if outcome.cpu_s > limit_s:
                return "timeout", f"took {outcome.cpu_s:.2f} s of CPU, {limit_s:.2f} s allowed"
            return None
        case CallStatus.UNKNOWN:
            return "unknown", outcome.message
        case CallStatus.TIMEOUT:
            return "timeout", f"over {limit_s:.2f} s of CPU"
        case CallStatus.NOT_RUN:
            status = "timeout" if result.status is RunStatus.TIMEOUT else "fail"
            return status, f"not run: {result.message or result.status.value}"
    return "fail", f"{outcome.error_type or outcome.status.value}: {outcome.message}"


def _unwrap(value: Any) -> tuple[bool, Any]:
    """What the adapter returned. A program can replace the adapter: then the value is its own."""
    if type(value) is tuple and len(value) == 2 and type(value[0]) is bool:
        return value
    return False, value


_MAX_SHORT = 200


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python converts
        text = "<large integer>"
    return text if len(text) <= _MAX_SHORT else f"{text[: _MAX_SHORT - 3]}..."
