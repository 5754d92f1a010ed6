"""Samples of a model in EvalPlus' format, and how a chat response becomes one.

A samples file has one JSON object a line (`.jsonl`, or gzipped): `task_id` and either `solution` (a
complete program) or `completion` (to be appended to the task's prompt).
"""

import ast
import dataclasses
import gzip
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from codea1_jax.coevo.extract import extract_code
from codea1_jax.coevo.prompts import Message, coder_messages
from codea1_jax.coevo.syntax import parse_python
from codea1_jax.data import rows
from codea1_jax.data.evalplus import EvalProblem
from codea1_jax.data.location import DataError
from codea1_jax.data.record import Problem


@dataclasses.dataclass(frozen=True)
class EvalSample:
    """One complete program for one task."""

    task_id: str
    solution: str

    def to_json(self) -> dict[str, str]:
        return dataclasses.asdict(self)


# (chat messages of every problem, samples per problem) -> (index of a problem, its responses), in
# any order, each as soon as it is complete. All problems at once, so that an engine can batch them.
SampleFn = Callable[[Sequence[Sequence[Message]], int], Iterable[tuple[int, Sequence[str]]]]


def read_samples(
    path: str | os.PathLike[str], prompts: Mapping[str, str]
) -> tuple[list[EvalSample], list[str]]:
    """The samples of a file for the given tasks, and the ids of tasks it has besides.

    Args:
      prompts: by task id: what a `completion` is appended to.
    """
    found: list[EvalSample] = []
    others: dict[str, None] = {}
    by_lower = {task_id.lower(): task_id for task_id in prompts}  # MBPP/2 is Mbpp/2
    file = pathlib.Path(path)
    if not file.is_file():
        raise DataError(f"--samples={file}: no such file")
    for number, row in enumerate(rows.read_rows(file), start=1):
        where = f"{file}: sample {number}"
        written = rows.field(row, "task_id", str, where)
        task_id = by_lower.get(written.lower(), "")
        if not task_id:
            others[written] = None
        elif "solution" in row:
            found.append(EvalSample(task_id, rows.field(row, "solution", str, where)))
        else:
            completion = rows.field(row, "completion", str, where)
            found.append(EvalSample(task_id, prompts[task_id] + completion))
    return found, list(others)


def write_samples(path: str | os.PathLike[str], samples: Iterable[EvalSample]) -> None:
    """Writes a samples file, gzipped when the name ends in `.gz`."""
    file = pathlib.Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    opened = gzip.open if file.name.endswith(".gz") else open
    with opened(file, "wt", encoding="utf-8") as out:
        for sample in samples:
            out.write(json.dumps(sample.to_json()) + "\n")


def solution_from_response(problem: EvalProblem, response: str) -> str:
    """The program in a chat response, with what it needs of the prompt.

    A model shown imports and helper functions above the function often answers with the function
    alone. What the prompt's top level defines and the answer does not is put in front of it.
    """
    code = extract_code(response, problem.entry_point).text
    context = _prompt_context(problem.prompt, problem.entry_point, code)
    return f"{context}\n\n{code}" if context else code


def _prompt_context(prompt: str, entry_point: str, code: str) -> str:
    tree = parse_python(prompt) or parse_python(prompt + "\n    pass\n")
    answer = parse_python(code)
    if tree is None or answer is None or "__future__" in code:
        return ""  # a future import must stay the first statement
    bound = {name for node in answer.body for name in _bound_names(node)}
    kept = []
    for node in tree.body:
        names = _bound_names(node)
        if names and entry_point not in names and not names <= bound:
            kept.append(ast.unparse(node))
    return "\n\n".join(kept)


def _bound_names(node: ast.stmt) -> set[str]:
    """Names that an import or a definition at the top level binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


def generate_samples(
    problems: Sequence[EvalProblem | Problem], sample_fn: SampleFn, num_samples: int
) -> Iterator[list[EvalSample]]:
    """`num_samples` programs for each problem; problems in the order in which they are finished."""
    records = [p.to_problem() if isinstance(p, EvalProblem) else p for p in problems]
    messages = [coder_messages(record) for record in records]
    for index, responses in sample_fn(messages, num_samples):
        problem, task_id = problems[index], records[index].question_id
        if isinstance(problem, EvalProblem):
            yield [EvalSample(task_id, solution_from_response(problem, r)) for r in responses]
        else:
            yield [
                EvalSample(task_id, extract_code(r, problem.entry_point).text) for r in responses
            ]
