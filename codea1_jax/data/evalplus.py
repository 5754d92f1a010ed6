"""HumanEval+ and MBPP+ in EvalPlus' release format (Apache-2.0): structured inputs, no asserts.

Row schema: task_id, prompt, entry_point, canonical_solution, base_input and plus_input (one list of
positional arguments per call), atol, contract. JSON has no tuples, sets or complex numbers, so
MBPP+ arguments of some tasks are turned back into them by task number (`restore_arguments`; the
numbers are those of EvalPlus v0.3.1, `data/mbpp.py`).

The expected values are not part of a release: they are what the canonical solution returns.
"""

import ast
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from codea1_jax.data import python_text
from codea1_jax.data.location import DataError
from codea1_jax.data.record import Problem
from codea1_jax.data.rows import field

SuiteName = str  # "humaneval_plus" or "mbpp_plus"
_RELEASES = "https://github.com/evalplus"
URLS: Mapping[SuiteName, str] = {
    "humaneval_plus": f"{_RELEASES}/humanevalplus_release/releases/download/v0.1.10/"
    "HumanEvalPlus.jsonl.gz",
    "mbpp_plus": f"{_RELEASES}/mbppplus_release/releases/download/v0.2.0/MbppPlus.jsonl.gz",
}
FILE_NAMES: Mapping[SuiteName, tuple[str, ...]] = {
    "humaneval_plus": ("HumanEvalPlus.jsonl.gz", "HumanEvalPlus.jsonl"),
    "mbpp_plus": ("MbppPlus.jsonl.gz", "MbppPlus.jsonl"),
}


@dataclasses.dataclass(frozen=True)
class EvalProblem:
    """One problem of HumanEval+ or MBPP+.

    Attributes:
      task_id: `HumanEval/0`, `Mbpp/2`.
      suite: which data set; MBPP+ has comparison rules of its own.
      prompt: HumanEval+: imports, signature and docstring. MBPP+: a docstring with one assert.
      canonical_solution: to be appended to the prompt (HumanEval+: the body alone).
      base_input, plus_input: positional arguments, one tuple per call.
      atol: absolute tolerance of float comparison, 0 for the default.
      contract: asserts on the arguments; the inputs of a release all satisfy it.
    """

    task_id: str
    suite: SuiteName
    prompt: str
    entry_point: str
    canonical_solution: str
    base_input: tuple[tuple[Any, ...], ...]
    plus_input: tuple[tuple[Any, ...], ...]
    atol: float = 0.0
    contract: str = ""

    @property
    def program(self) -> str:
        """The complete canonical solution."""
        return self.prompt + self.canonical_solution

    def to_problem(self) -> Problem:
        """The problem as a model sees it (for prompts and for the overlap check)."""
        function = python_text.find_function(self.program, self.entry_point)
        if function is None:
            raise DataError(f"{self.task_id}: the solution does not define {self.entry_point!r}")
        signature = python_text.signature_line(function)
        if self.suite == "mbpp_plus":
            # Code-A1's validation prompt: the signature, then EvalPlus' text as it is.
            question = f"{signature}\n{self.prompt}"
            description = self.prompt.strip().strip('"').strip()
        else:
            question = self.prompt
            description = _docstring(self.prompt, self.entry_point)
        return Problem(
            question_id=self.task_id,
            entry_point=self.entry_point,
            question=question,
            description=description,
            signature=signature,
            reference=self.program,
            source=self.suite,
            split="test",
        )


def _docstring(prompt: str, entry_point: str) -> str:
    function = python_text.find_function(prompt, entry_point)
    if function is None:
        function = python_text.find_function(prompt + "\n    pass\n", entry_point)
    return (ast.get_docstring(function) if function else None) or prompt


def eval_problems(rows: Iterable[dict[str, Any]], suite: SuiteName) -> Iterator[EvalProblem]:
    for row in rows:
        yield to_eval_problem(row, suite)


def to_eval_problem(row: dict[str, Any], suite: SuiteName) -> EvalProblem:
    task_id = field(row, "task_id", str, f"{suite} row")
    where = f"{suite} row {task_id!r}"
    prefix = "HumanEval/" if suite == "humaneval_plus" else "Mbpp/"
    if not task_id.startswith(prefix):
        raise DataError(f"{where}: task ids of this suite start with {prefix!r}")
    # The release spells "no inputs" of one task as an empty object.
    base, plus = (
        field({name: row.get(name) or []}, name, list, where)
        for name in ("base_input", "plus_input")
    )
    if suite == "mbpp_plus":
        number = int(task_id.removeprefix(prefix))
        base, plus = restore_arguments(number, base), restore_arguments(number, plus)
    return EvalProblem(
        task_id=task_id,
        suite=suite,
        prompt=field(row, "prompt", str, where),
        entry_point=field(row, "entry_point", str, where),
        canonical_solution=field(row, "canonical_solution", str, where),
        base_input=tuple(tuple(args) for args in base),
        plus_input=tuple(tuple(args) for args in plus),
        atol=float(row.get("atol") or 0.0),
        contract=row.get("contract") or "",
    )


# --- what JSON lost, by MBPP task number ------------------------------------------------------


def _tuples(value: list[Any]) -> list[tuple[Any, ...]]:
    return [tuple(item) for item in value]


def _deep_tuple(value: Any) -> Any:
    return tuple(_deep_tuple(item) for item in value) if isinstance(value, list) else value


def _set_or_empty_dict(item: Any) -> Any:
    # EvalPlus turns an empty list into {}: the only spelling of "empty" that task 115 is asked.
    return set(item) if isinstance(item, list) and item else {}


def _first(convert: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda args: [convert(args[0]), *args[1:]]


def _each(convert: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda args: [convert(arg) for arg in args]


_RESTORE: tuple[tuple[str, Callable[[list[Any]], list[Any]]], ...] = (
    (
        "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809",
        _each(tuple),
    ),
    ("63 64 70 94 120 237 272 299 400 409 417 438 473 614 780", _each(_tuples)),
    ("75 413 444 753", _first(_tuples)),
    ("106 750", lambda args: [args[0], tuple(args[1])]),
    ("115", _first(lambda items: [_set_or_empty_dict(item) for item in items])),
    ("124", lambda args: [float(args[0]), complex(args[1])]),
    ("250 307 405 446 617 720 763 808", _first(tuple)),
    ("252", _first(complex)),
    ("259 401 445", _each(lambda arg: tuple(_tuples(arg)))),
    ("278", _first(lambda items: tuple(tuple(i) if isinstance(i, list) else i for i in items))),
    ("580 615 791", _each(_deep_tuple)),
    ("722", _first(lambda table: {key: tuple(value) for key, value in table.items()})),
)
_RESTORE_BY_NUMBER = {
    int(word): convert for numbers, convert in _RESTORE for word in numbers.split()
}


def restore_arguments(number: int, calls: list[list[Any]]) -> list[list[Any]]:
    """The arguments of MBPP+ task `number` with their tuples, sets and complex numbers."""
    convert = _RESTORE_BY_NUMBER.get(number)
    return calls if convert is None else [convert(args) for args in calls]


# --- one row of text per problem, for the prepared data set ------------------------------------


def to_text_row(row: dict[str, Any]) -> dict[str, str]:
    """A release row as flat text fields (inputs stay JSON: they have no common type)."""
    return {
        "task_id": row["task_id"],
        "prompt": row["prompt"],
        "entry_point": row["entry_point"],
        "canonical_solution": row["canonical_solution"],
        "base_input": json.dumps(row["base_input"]),
        "plus_input": json.dumps(row["plus_input"]),
        "atol": repr(float(row.get("atol") or 0.0)),  # a stored float would lose its last digits
        "contract": row.get("contract") or "",
    }


def from_text_row(row: dict[str, Any], suite: SuiteName) -> EvalProblem:
    inputs = {name: json.loads(row[name]) for name in ("base_input", "plus_input")}
    return to_eval_problem({**row, **inputs}, suite)


def suite_fingerprint(problems: Iterable[EvalProblem]) -> str:
    """sha256 over everything a verdict depends on."""
    digest = hashlib.sha256()
    for p in problems:
        parts = (p.task_id, p.suite, p.program, p.entry_point, p.base_input, p.plus_input, p.atol)
        digest.update(repr(parts).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
