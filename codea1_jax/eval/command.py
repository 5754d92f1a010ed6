"""`codea1 eval`: samples a checkpoint on a suite, judges the samples, writes samples and verdicts.

codea1 eval --suite=humaneval_plus --samples=FILE.jsonl --output=OUT.json
codea1 eval --suite=mbpp_plus --checkpoint=DIR --greedy --output=OUT.json
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from codea1_jax.data import sources
from codea1_jax.data.evalplus import EvalProblem
from codea1_jax.data.record import Problem
from codea1_jax.errors import UserError
from codea1_jax.eval import golden, runner, samples
from codea1_jax.eval.samples import EvalSample
from codea1_jax.obs.progress import duration
from codea1_jax.rollout import arguments

SUITES = ("embedded", *sources.SUITES)
# Above what the slowest canonical solution may take.
_RUN_DEADLINE_S = 1800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `codea1 eval`."""
    add = parser.add_argument
    add("--suite", choices=SUITES, required=True)
    add("--suite_path", default="", help="local file or folder; default: its public home")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--samples", type=pathlib.Path, help="judge this .jsonl(.gz) file")
    what.add_argument("--checkpoint", help="sample this Hugging Face directory or hub id first")
    add("--output", type=pathlib.Path, required=True, help="JSON with verdicts and totals")
    add("--samples_output", type=pathlib.Path, help="default: OUTPUT with .samples.jsonl")
    add("--limit", type=int, default=0, help="only the first LIMIT problems (0: all)")
    add("--greedy", action="store_true", help="temperature 0, one sample")
    add("--num_samples", type=int, default=1, help="samples per problem")
    add("--temperature", type=float, default=0.7)
    add("--top_p", type=float, default=0.95)
    add("--max_new_tokens", type=int, default=768)
    add("--seed", type=int, default=0)
    add("--compute_dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add("--rows", type=int, default=32, help="samples that decode at a time")
    arguments.add_attention(parser)
    add("--sandbox_address", default="", help="HOST:PORT; default: a service of its own")
    add("--num_slots", type=int, default=0, help="of its own service; 0: processors + 2")


def run(options: argparse.Namespace) -> int:
    """Exit code 0; 1 when the sandbox could not judge some samples."""
    _check(options)
    problems = _load(options)
    problems = problems[: options.limit or None]
    if options.samples:
        found, others = _read(options.samples, problems)
        if others:
            _say(f"{len(others)} tasks of {options.samples} are not judged ({others[0]}, ...)")
    else:
        found = _sample(options, problems)
    if not found:
        raise UserError(f"{options.samples}: no sample of a problem of {options.suite}")
    with _client(options) as client:
        result = _judge(options, problems, found, client)
    result["command"] = {
        key: str(value) if isinstance(value, pathlib.Path) else value
        for key, value in vars(options).items()
        if key != "command"
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    _report(options, result)
    return 1 if result["num_unknown"] else 0


def _check(options: argparse.Namespace) -> None:
    if options.greedy:
        options.temperature = 0.0
        if options.num_samples != 1:
            raise UserError(f"--num_samples={options.num_samples}: --greedy gives one sample")
    for key, least in (("num_samples", 1), ("max_new_tokens", 1), ("rows", 1), ("limit", 0)):
        if getattr(options, key) < least:
            raise UserError(f"--{key}={getattr(options, key)}: must be at least {least}")
    if options.temperature < 0 or not 0 < options.top_p <= 1:
        raise UserError("--temperature must not be negative and --top_p must be in (0, 1]")


def _load(options: argparse.Namespace) -> Sequence[Any]:
    if options.suite == "embedded":
        return sources.load_problems(
            "embedded", options.suite_path, "test", path_key="--suite_path"
        )
    return sources.load_suite(options.suite, options.suite_path, path_key="--suite_path")


def _read(
    path: pathlib.Path, problems: Sequence[EvalProblem | Problem]
) -> tuple[list[EvalSample], list[str]]:
    prompts = {
        p.task_id if isinstance(p, EvalProblem) else p.question_id: (
            p.prompt if isinstance(p, EvalProblem) else ""
        )
        for p in problems
    }
    return samples.read_samples(path, prompts)


@contextlib.contextmanager
def _client(options: argparse.Namespace) -> Iterator[Any]:
    from codea1_jax.sandbox.client import SandboxClient
    from codea1_jax.sandbox.local import local_service

    service = (
        contextlib.nullcontext(options.sandbox_address)
        if options.sandbox_address
        else local_service(slots=options.num_slots or None)
    )
    with contextlib.ExitStack() as stack:
        try:
            address = stack.enter_context(service)
            client = stack.enter_context(SandboxClient(address, deadline_s=_RUN_DEADLINE_S))
            client.info()
        except (ConnectionError, RuntimeError) as error:
            raise UserError(f"--sandbox_address={options.sandbox_address}: {error}") from error
        yield client


def _judge(
    options: argparse.Namespace,
    problems: Sequence[Any],
    found: Sequence[EvalSample],
    client: Any,
) -> dict[str, Any]:
    info = client.info()
    if options.suite == "embedded":
        with _Meter("judging") as meter:
            result = golden.evaluate_embedded(found, problems, client, meter.update)
    else:
        needed = {sample.task_id for sample in found}
        suite = [problem for problem in problems if problem.task_id in needed]
        start = time.monotonic()
        with _Meter("canonical solutions") as meter:
            answers = runner.reference_answers(suite, client, progress=meter.update)
        reference_wall_s = round(time.monotonic() - start, 3)
        with _Meter("judging") as meter:
            result = runner.evaluate(found, problems, answers, client, meter.update)
        result["reference_wall_s"] = reference_wall_s
    result["sandbox"] = {key: info[key] for key in ("tier", "python", "slots")}
    return result


# --- sampling ----------------------------------------------------------------------------------


def _sample(options: argparse.Namespace, problems: Sequence[Any]) -> list[EvalSample]:
    """Samples the checkpoint; what the samples file already holds is not sampled again."""
    from codea1_jax.eval.generation import CheckpointSampler
    from codea1_jax.rollout.types import SamplingParams

    file = options.samples_output or options.output.with_suffix(".samples.jsonl")
    sampling = SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p if options.temperature else 1.0,
        max_new_tokens=options.max_new_tokens,
    )
    _claim(file, _provenance(options, sampling))
    done = _complete(file, problems, options.num_samples)
    todo = [p for p in problems if _task_id(p) not in done]
    if todo:
        sampler = CheckpointSampler(
            options.checkpoint,
            sampling,
            compute_dtype=options.compute_dtype,
            attention=options.attention,
            rows=options.rows,
            seed=options.seed,
        )
        start = time.monotonic()
        with _Meter("sampling") as meter, file.open("a", encoding="utf-8") as out:
            finished = samples.generate_samples(todo, sampler, options.num_samples)
            for count, of_problem in enumerate(finished, start=1):
                out.writelines(json.dumps(sample.to_json()) + "\n" for sample in of_problem)
                out.flush()
                meter.update(count, len(todo))
        wall_s = time.monotonic() - start
        _say(
            f"sampled {len(todo)} problems, {sampler.num_tokens} tokens, "
            f"{sampler.num_tokens / wall_s:.0f} tokens/s, {duration(wall_s)}: {file}"
        )
    return _read(file, problems)[0]


def _provenance(options: argparse.Namespace, sampling: Any) -> dict[str, Any]:
    return {
        "checkpoint": os.path.abspath(options.checkpoint)
        if os.path.isdir(options.checkpoint)
        else options.checkpoint,
        "sampling": dataclasses.asdict(sampling) | {"stop_token_ids": []},
        "suite": options.suite,
        "num_samples": options.num_samples,
        "seed": options.seed,
        "compute_dtype": options.compute_dtype,
    }


def _claim(file: pathlib.Path, provenance: dict[str, Any]) -> None:
    """Refuses to continue a samples file that was made in another way."""
    note = file.with_name(file.name + ".meta.json")
    provenance = json.loads(json.dumps(provenance))
    if file.exists():
        before = json.loads(note.read_text()) if note.exists() else None
        if before != provenance:
            raise UserError(
                f"--samples_output={file} exists and was made by another checkpoint or with other "
                "options; remove it or name another file"
            )
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(provenance, indent=1) + "\n")


def _task_id(problem: Any) -> str:
    return problem.task_id if isinstance(problem, EvalProblem) else problem.question_id


def _complete(file: pathlib.Path, problems: Sequence[Any], num_samples: int) -> set[str]:
    """Problems with all their samples in the file; a line cut off by a kill is dropped first."""
    if not file.exists():
        return set()
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    counts: dict[str, list[str]] = {}
    for line in whole.splitlines():
        counts.setdefault(json.loads(line)["task_id"], []).append(line)
    wanted = {_task_id(problem) for problem in problems}
    complete = {t for t, lines in counts.items() if len(lines) == num_samples}
    kept = [line for task_id in counts if task_id in complete for line in counts[task_id]]
    part = file.with_name(file.name + ".part")
    part.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    os.replace(part, file)
    return complete & wanted


# --- what a person sees ------------------------------------------------------------------------


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Meter:
    """A progress line with the time left; redrawn on a terminal, else every half minute."""

    def __init__(self, label: str):
        self._label = label
        self._is_terminal = sys.stderr.isatty()
        self._start = self._last = time.monotonic()

    def __enter__(self) -> "_Meter":
        return self

    def __exit__(self, *unused: object) -> None:
        if self._is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def update(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < (0.2 if self._is_terminal else 30.0):
            return
        self._last = now
        left = (now - self._start) / done * (total - done)
        text = f"{self._label} {done}/{total}  left {duration(left)}"
        if self._is_terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        else:
            _say(text)


def _report(options: argparse.Namespace, result: dict[str, Any]) -> None:
    for name, metrics in result["pass_at_k"].items():
        values = {**metrics, **result["avg_at_k"][name]}
        shown = "  ".join(f"{key} {100 * value:.1f}" for key, value in values.items())
        print(f"{options.suite} {name}: {shown}")
    print(
        f"{result['num_samples']} samples of {result['num_problems']} problems judged in "
        f"{duration(result['wall_s'])}: {options.output}"
    )
    if result["missing"]:
        count = len(result["missing"])
        _say(f"warning: {count} problems have no sample and are not counted in the figures above")
    if result["num_unknown"]:
        _say(
            f"warning: the sandbox could not judge {result['num_unknown']} samples; they are left "
            "out of the figures above, run again"
        )
