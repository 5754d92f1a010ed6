"""Judges samples of HumanEval+ and MBPP+ through the sandbox.

    answers = reference_answers(suite, client)
    result = evaluate(samples, suite, answers, client)
    result["pass_at_k"]["plus"]["pass@1"]

Every part (base, plus) of every sample is a run of its own in a fresh process. Runs go out in order
under a bounded window and come back in any order.
"""

import concurrent.futures
import datetime
import hashlib
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from codea1_jax.data.evalplus import EvalProblem, suite_fingerprint
from codea1_jax.data.location import cache_dir
from codea1_jax.eval import passk
from codea1_jax.eval.evalplus import (
    PARTS,
    Answers,
    Part,
    PartVerdict,
    ReferenceFailed,
    answers_from,
    judge_part,
    reference_runs,
    sample_runs,
)
from codea1_jax.eval.samples import EvalSample
from codea1_jax.sandbox.verdict import Run, RunResult, RunStatus, Verdict
from sandbox_service import codec

WINDOW = 64  # runs sent and not yet answered
SuiteAnswers = Mapping[str, Mapping[Part, Answers]]
Progress = Callable[[int, int], None]  # (done, total)


class Client(Protocol):
    """What is needed of `sandbox.client.SandboxClient`."""

    def submit(self, run: Run) -> "concurrent.futures.Future[RunResult]": ...


def run_groups(
    groups: Iterable[Sequence[Run]], client: Client, window: int = WINDOW
) -> Iterator[tuple[int, list[RunResult]]]:
    """Yields (group index, its results in order) as groups finish; a group may be empty."""
    waiting: dict[concurrent.futures.Future[RunResult], tuple[int, int]] = {}
    open_groups: dict[int, list[RunResult | None]] = {}

    def collect(is_full: bool) -> Iterator[tuple[int, list[RunResult]]]:
        while waiting and (is_full is False or len(waiting) >= window):
            done, _ = concurrent.futures.wait(
                waiting, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                group, position = waiting.pop(future)
                results = open_groups[group]
                results[position] = future.result()
                complete = [result for result in results if result is not None]
                if len(complete) == len(results):
                    del open_groups[group]
                    yield group, complete

    for index, runs in enumerate(groups):
        if not runs:
            yield index, []
            continue
        open_groups[index] = [None] * len(runs)
        for position, run in enumerate(runs):
            waiting[client.submit(run)] = (index, position)
            yield from collect(is_full=True)
    yield from collect(is_full=False)


def reference_answers(
    suite: Sequence[EvalProblem],
    client: Client,
    *,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, dict[Part, Answers]]:
    """What the canonical solutions return, from a cache file or by running them once.

    Args:
      folder: where the cache file lies, by default under `location.cache_dir()`. The file belongs
        to this machine, because it also holds times.

    Raises:
      ReferenceFailed: a canonical solution has no value for one of its inputs.
    """
    parent = pathlib.Path(folder) if folder else cache_dir() / "answers"
    key = f"{os.uname().nodename}-{codec.VERSION}-{suite_fingerprint(suite)}"
    file = parent / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.bin"
    if (cached := _read_answers(file)) is not None:
        return cached
    answers: dict[str, dict[Part, Answers]] = {problem.task_id: {} for problem in suite}
    keys = [(problem, part) for problem in suite for part in PARTS]
    groups = (reference_runs(problem, part) for problem, part in keys)
    for done, (index, results) in enumerate(run_groups(groups, client), start=1):
        problem, part = keys[index]
        if any(result.status is RunStatus.INTERNAL for result in results):
            why = "; ".join(sorted({r.message for r in results if r.message}))
            raise ReferenceFailed(
                f"{problem.task_id}: the sandbox failed on the canonical solution ({why}); check "
                "the sandbox service and run again"
            )
        answers[problem.task_id][part] = answers_from(problem, part, results)
        if progress:
            progress(done, len(keys))
    # Runs come back in any order; the result must not show in which.
    ordered = {
        task_id: {part: parts[part] for part in PARTS if part in parts}
        for task_id, parts in answers.items()
    }
    _write_answers(file, ordered)
    return ordered


_MAX_CACHE: dict[str, Any] = {"max_bytes": 1 << 30, "max_nodes": 1 << 28}


def _read_answers(file: pathlib.Path) -> dict[str, dict[Part, Answers]] | None:
    try:
        table = codec.decode(file.read_bytes(), **_MAX_CACHE)
    except (OSError, codec.CodecError):
        return None  # missing or damaged: made anew
    return {
        task_id: {part: Answers(values, cpu_s) for part, (values, cpu_s) in parts.items()}
        for task_id, parts in table.items()
    }


def _write_answers(file: pathlib.Path, answers: SuiteAnswers) -> None:
    table = {
        task_id: {part: (a.values, a.cpu_s) for part, a in parts.items()}
        for task_id, parts in answers.items()
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(codec.encode(table, **_MAX_CACHE))
    os.replace(part, file)


def judge_samples(
    samples: Sequence[EvalSample],
    suite: Sequence[EvalProblem],
    answers: SuiteAnswers,
    client: Client,
    progress: Progress | None = None,
) -> list[dict[Part, PartVerdict]]:
    """Verdicts of each sample on each part, in sample order."""
    by_id = {problem.task_id: problem for problem in suite}
    keys = [(number, part) for number in range(len(samples)) for part in PARTS]

    def groups() -> Iterator[list[Run]]:
        for number, part in keys:
            sample = samples[number]
            problem = by_id[sample.task_id]
            yield sample_runs(problem, part, sample.solution, answers[sample.task_id][part])

    verdicts: list[dict[Part, PartVerdict]] = [{} for _ in samples]
    for done, (index, results) in enumerate(run_groups(groups(), client), start=1):
        number, part = keys[index]
        problem = by_id[samples[number].task_id]
        part_answers = answers[problem.task_id][part]
        verdicts[number][part] = judge_part(problem, part, part_answers, results)
        if progress and done % len(PARTS) == 0:
            progress(done // len(PARTS), len(samples))
    return verdicts


def is_correct(verdicts: Mapping[Part, PartVerdict], parts: Sequence[Part]) -> bool | None:
    """Whether a sample passes all the parts; None when the sandbox could not tell."""
    found = [verdicts[part].verdict for part in parts]
    if Verdict.FAIL in found:
        return False
    return None if Verdict.UNKNOWN in found else True


def evaluate(
    samples: Sequence[EvalSample],
    suite: Sequence[EvalProblem],
    answers: SuiteAnswers,
    client: Client,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Judges samples and sums up; the result is JSON in the shape of EvalPlus' result files.

    "base" counts samples that pass the original inputs, "plus" those that pass both parts.
    """
    start = time.monotonic()
    verdicts = judge_samples(samples, suite, answers, client, progress)
    by_task: dict[str, list[dict[str, Any]]] = {}
    correct: dict[str, dict[str, list[bool | None]]] = {"base": {}, "plus": {}}
    for sample, of_sample in zip(samples, verdicts):
        by_task.setdefault(sample.task_id, []).append(_row(sample, of_sample))
        for name, parts in (("base", ("base",)), ("plus", PARTS)):
            found = is_correct(of_sample, parts)  # type: ignore[arg-type]
            correct[name].setdefault(sample.task_id, []).append(found)
    order = [problem.task_id for problem in suite if problem.task_id in by_task]
    missing = [problem.task_id for problem in suite if problem.task_id not in by_task]
    summaries = {name: passk.summarize(table) for name, table in correct.items()}
    return {
        "suite": suite[0].suite if suite else "",
        "suite_sha256": suite_fingerprint(suite),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "num_problems": len(order),
        "num_samples": len(samples),
        "num_unknown": sum(v is None for of_task in correct["plus"].values() for v in of_task),
        "missing": missing,
        "wall_s": round(time.monotonic() - start, 3),
        "pass_at_k": {name: _named(found, "pass@") for name, found in summaries.items()},
        "avg_at_k": {name: _named(found, "avg@") for name, found in summaries.items()},
        "eval": {task_id: by_task[task_id] for task_id in order},
    }


def _row(sample: EvalSample, verdicts: Mapping[Part, PartVerdict]) -> dict[str, Any]:
    row: dict[str, Any] = sample.to_json()
    for part in PARTS:
        row[f"{part}_status"] = verdicts[part].status
    for part in PARTS:
        if verdicts[part].reason:
            row[f"{part}_reason"] = verdicts[part].reason
            row[f"{part}_failed_input"] = verdicts[part].failed_input
    return row


def _named(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith(prefix)}
