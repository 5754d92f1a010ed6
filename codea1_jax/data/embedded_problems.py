"""Writes the embedded problem set, and draws more problems of the same kind for the warm start.

The set is small Python functions with one-sentence requirements; every number and rule in a
requirement matters, and each can be missed by a near miss that a small input exposes. Hold-out
problems come from the same families with requirements that occur nowhere in training.

`python -m codea1_jax.data.embedded_problems [PATH]` rewrites the asset; the output is a pure
function of this file, `embedded_families.py` and `mutations.py`.
"""

import argparse
import ast
import dataclasses
import json
import pathlib
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from codea1_jax.data.embedded_families import FAMILIES, Args, Draft
from codea1_jax.data.mutations import mutants
from codea1_jax.data.record import Problem

ASSET = pathlib.Path(__file__).resolve().parent.parent / "assets" / "problems" / "problems.jsonl"
SOURCE = "embedded"
NOUNS = (
    "ash", "bay", "cat", "dew", "elm", "fox", "gem", "hat", "ivy", "jar", "kit", "log",
    "map", "net", "oak", "pin", "ray", "sun", "tin", "urn", "vat", "web", "yak", "zoo",
)  # fmt: skip
# Words of a shared run that make two questions too close; the usual contamination measure.
OVERLAP_WORDS = 13


@dataclasses.dataclass(frozen=True)
class SolvedProblem:
    """A problem with everything the generator knows about it.

    Attributes:
      solutions: right programs in several styles; the first is the problem's reference.
      slips: wrong programs beyond the single mutations of the right ones.
    """

    problem: Problem
    solutions: tuple[str, ...]
    slips: tuple[str, ...] = ()


def load(program: str, entry_point: str) -> Callable[..., Any]:
    """The function of a program of this generator. Only for its own text: no sandbox, no limits."""
    scope: dict[str, Any] = {}
    exec(program, scope)
    return scope[entry_point]


def _outcome(function: Callable[..., Any], args: Args) -> str:
    try:
        return repr(function(*args))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return type(error).__name__


def _program(name: str, params: str, body: str) -> str:
    return ast.unparse(ast.parse(f"def {name}({params}):\n    {body}\n"))


def _assertions(name: str, program: str, arguments: Sequence[Args]) -> tuple[str, ...]:
    function = load(program, name)
    shown = [", ".join(map(repr, args)) for args in arguments]
    return tuple(
        f"assert {name}({text}) == {function(*args)!r}" for text, args in zip(shown, arguments)
    )


def exposing_arguments(draft: Draft, rng: random.Random, least: int = 6) -> list[Args]:
    """Arguments that tell the draft's right solutions from every observable single fault.

    Greedy cover of the faults that any candidate argument exposes, filled up to `least`.
    """
    programs = [_program("f", draft.params, body) for body in draft.bodies]
    wrong = {mutant for program in programs for mutant in mutants(program)}
    wrong |= {_program("f", draft.params, body) for body in draft.slips}
    candidates = list(draft.edges) + [draft.plain(rng) for _ in range(40)]
    right = load(programs[0], "f")
    truth = [_outcome(right, args) for args in candidates]
    missed = [
        {i for i, args in enumerate(candidates) if _outcome(function, args) != truth[i]}
        for function in (load(program, "f") for program in sorted(wrong))
    ]
    missed = [exposers for exposers in missed if exposers]
    chosen: list[int] = []
    while missed:
        counts = [sum(i in exposers for exposers in missed) for i in range(len(candidates))]
        chosen.append(counts.index(max(counts)))
        missed = [exposers for exposers in missed if chosen[-1] not in exposers]
    taken = {repr(candidates[i]) for i in chosen}
    for i, args in enumerate(candidates):
        if len(chosen) >= least:
            break
        if repr(args) not in taken:
            taken.add(repr(args))
            chosen.append(i)
    return [candidates[i] for i in chosen]


def plain_arguments(draft: Draft, rng: random.Random, num: int) -> list[Args]:
    """`num` different ordinary arguments, fewer where the family has fewer."""
    found: dict[str, Args] = {}
    for _ in range(20 * num):
        args = draft.plain(rng)
        found.setdefault(repr(args), args)
        if len(found) == num:
            break
    return list(found.values())


def name_problem(
    draft: Draft,
    name: str,
    arguments: Sequence[Args],
    question_id: str,
    split: Literal["train", "test"],
) -> SolvedProblem:
    """Gives a draft its entry point and writes out its tests."""
    solutions = tuple(_program(name, draft.params, body) for body in draft.bodies)
    signature = f"def {name}({draft.params}):"
    problem = Problem(
        question_id=question_id,
        entry_point=name,
        question=f'{signature}\n    """{draft.text}"""',
        description=draft.text,
        reference=solutions[0],
        signature=signature,
        golden_tests=_assertions(name, solutions[0], arguments),
        source=SOURCE,
        split=split,
    )
    slips = tuple(_program(name, draft.params, body) for body in draft.slips)
    return SolvedProblem(problem, solutions, slips)


def word_runs(text: str, num_words: int = OVERLAP_WORDS) -> set[tuple[str, ...]]:
    """Runs of `num_words` words of a text; the whole text when it is shorter."""
    words = text.lower().split()
    return {tuple(words[i : i + num_words]) for i in range(max(1, len(words) - num_words + 1))}


def embedded_set(num_train: int = 300, num_test: int = 80, seed: int = 0) -> list[SolvedProblem]:
    """The embedded set: hold-out first drawn, then training problems that share no text with it."""
    rng = random.Random(seed)
    texts: set[str] = set()
    held_runs: set[tuple[str, ...]] = set()
    names: set[str] = set()
    rows: list[SolvedProblem] = []
    splits: tuple[tuple[Literal["test", "train"], int], ...] = (
        ("test", num_test),
        ("train", num_train),
    )
    for split, num in splits:
        made = 0
        while made < num:
            draft = FAMILIES[made % len(FAMILIES)](rng)
            runs = word_runs(draft.text)
            if draft.text in texts or (split == "train" and runs & held_runs):
                continue
            free = [noun for noun in NOUNS if f"{draft.verb}_{noun}" not in names]
            name = f"{draft.verb}_{rng.choice(free)}"
            if split == "test":
                held_runs |= runs
            texts.add(draft.text)
            names.add(name)
            arguments = exposing_arguments(draft, rng)
            rows.append(name_problem(draft, name, arguments, f"embedded/{split}/{made}", split))
            made += 1
    return sorted(rows, key=lambda row: row.problem.split == "test")


def warm_up_set(
    num: int, seed: int, num_tests: int, held_out: Collection[Problem]
) -> list[SolvedProblem]:
    """`num` more problems for supervised fine-tuning, none of them a held-out one.

    Tests are ordinary inputs, not exposing ones: what a tester learns from them leaves it room to
    learn to attack.
    """
    rng = random.Random(f"warm-up {seed}")
    held_texts = {problem.description for problem in held_out}
    held_names = {problem.entry_point for problem in held_out}
    rows: list[SolvedProblem] = []
    while len(rows) < num:
        draft = FAMILIES[len(rows) % len(FAMILIES)](rng)
        name = f"{draft.verb}_{rng.choice(NOUNS)}"
        if draft.text in held_texts or name in held_names:
            continue
        arguments = plain_arguments(draft, rng, num_tests)
        rows.append(name_problem(draft, name, arguments, f"warm-up/{len(rows)}", "train"))
    return rows


def load_embedded(path: pathlib.Path = ASSET) -> list[Problem]:
    """The rows of the asset, training problems first."""
    return [Problem.from_json(json.loads(line)) for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", type=pathlib.Path, default=ASSET)
    path = parser.parse_args().path
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps(row.problem.to_json()) for row in embedded_set()]
    path.write_text("\n".join(rows) + "\n")
    print(f"{path}: {len(rows)} problems")


if __name__ == "__main__":
    main()
