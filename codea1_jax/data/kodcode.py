"""KodCode-V1 rows to problems, and the hard subset that Code-A1 trains on.

Row schema (KodCode-AI/KodCode-V1): style, subset, question_id (`<Subset>_<n>_I|_C`), question,
solution, test (pytest text), test_info (docstring, function_declaration, function_name,
parameter_list), gpt_difficulty (by GPT pass rate: easy >= 2/3, hard < 1/3, else medium). Some
releases call the test text `test_code`. The data set is CC BY-NC 4.0.

The 9,688 questions of Code-A1 (arXiv 2603.15611, section 4.1) are not published with their filters;
`is_usable` and `prefer_complete` are this project's reconstruction: hard rows about one plain
function. Rows whose reference fails its own tests are dropped by `verify.verified_problems`.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from codea1_jax.data import python_text
from codea1_jax.data.location import DataError
from codea1_jax.data.record import Problem
from codea1_jax.data.rows import field

HUB_ID = "KodCode/KodCode-V1"
HUB_PATTERN = "data/train-*.parquet"

_FENCE = re.compile(r"```.*?```", re.DOTALL)
_SIGNATURE_LINE = re.compile(r"^.*\bdef\s+\w+\s*\(.*$", re.MULTILINE)


def problems(
    rows: Iterable[dict[str, Any]],
    *,
    difficulties: Sequence[str] = ("hard",),
    split: Literal["train", "test"] = "train",
) -> Iterator[Problem]:
    """The usable rows of the given difficulties, in order; `complete` wins over `instruct`."""
    chosen = prefer_complete([row for row in rows if is_usable(row, difficulties)])
    for row in chosen:
        yield to_problem(row, split)


def is_usable(row: dict[str, Any], difficulties: Sequence[str]) -> bool:
    """Whether a row is of a wanted difficulty and asks for exactly one plain function."""
    where = f"KodCode row {row.get('question_id', '?')!r}"
    if field(row, "gpt_difficulty", str, where) not in difficulties:
        return False
    info = row.get("test_info")
    if not isinstance(info, list) or len(info) != 1:
        return False
    tree = python_text.parse(field(row, "solution", str, where))
    if tree is None:
        return False
    functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    has_class = any(isinstance(n, ast.ClassDef) for n in ast.walk(tree))
    return functions == [info[0].get("function_name")] and not has_class


def prefer_complete(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per question: `<Subset>_<n>_C` (signature and docstring) before `<Subset>_<n>_I`."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        stem = re.sub(r"_[A-Z]$", "", row["question_id"])
        if stem not in best or (
            row.get("style") == "complete" and best[stem].get("style") != "complete"
        ):
            best[stem] = row
    return list(best.values())


def to_problem(row: dict[str, Any], split: Literal["train", "test"] = "train") -> Problem:
    where = f"KodCode row {row.get('question_id', '?')!r}"
    question = python_text.normal_newlines(field(row, "question", str, where)).strip()
    solution = python_text.normal_newlines(field(row, "solution", str, where))
    entry_point = field(row["test_info"][0], "function_name", str, where)
    function = python_text.find_function(solution, entry_point)
    if function is None:
        raise DataError(f"{where}: the solution does not define {entry_point!r}")
    signature = python_text.signature_line(function)
    test = row.get("test", row.get("test_code"))
    if not isinstance(test, str):
        raise DataError(f"{where}: the field 'test' is missing")
    shown = question
    if not re.search(rf"\bdef\s+{re.escape(entry_point)}\b", question):
        shown += f"\n\nThe function to write:\n```python\n{signature}\n```"
    return Problem(
        question_id=field(row, "question_id", str, where),
        entry_point=entry_point,
        question=shown,
        description=_description(question, entry_point),
        signature=signature,
        reference=solution,
        golden_tests=tuple(python_text.plain_asserts(test, entry_point)),
        source="kodcode",
        split=split,
    )


def _description(question: str, entry_point: str) -> str:
    """The docstring of a `complete` question; the prose of an `instruct` one without signature."""
    function = python_text.find_function(question, entry_point)
    if function is None and "def " in question:
        # A complete question may stop after the docstring, which alone is no function body.
        function = python_text.find_function(question + "\n    pass\n", entry_point)
    if function is not None and (docstring := ast.get_docstring(function)):
        return docstring
    without_code = _FENCE.sub("", question)
    without_signature = _SIGNATURE_LINE.sub("", without_code)
    prose = re.sub(r"\n{3,}", "\n\n", without_signature).strip()
    return prose or question
