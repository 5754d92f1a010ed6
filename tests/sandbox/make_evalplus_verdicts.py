"""Makes `evalplus_verdicts.json`: what EvalPlus itself says about wrong and odd samples.

Needs the two EvalPlus release files in DATA; the middle step runs in an environment of its own with
evalplus==0.3.1:

    python tests/sandbox/make_evalplus_verdicts.py samples DATA WORK
    python tests/sandbox/run_evalplus.py humaneval DATA/HumanEvalPlus.jsonl.gz \
        WORK/humaneval_plus.jsonl WORK/humaneval_plus.verdicts.jsonl
    python tests/sandbox/run_evalplus.py mbpp DATA/MbppPlus.jsonl.gz \
        WORK/mbpp_plus.jsonl WORK/mbpp_plus.verdicts.jsonl
    python tests/sandbox/make_evalplus_verdicts.py collect DATA WORK

A sample is stored as edits of the release's canonical solution, not as a copy of it.
"""

import ast
import difflib
import hashlib
import json
import pathlib
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from codea1_jax.data import evalplus, mutations, sources
from codea1_jax.data.evalplus import EvalProblem
from codea1_jax.eval.samples import EvalSample, write_samples

# Canonical solutions that take over a second: EvalPlus needs minutes for their samples.
SLOW_HUMANEVAL = (15, 36, 59, 83, 94, 130, 139)
SLOW_MBPP = (84, 123, 162, 255, 271, 300, 389, 392, 583, 589, 592, 599, 603, 630)
SLOW = {f"HumanEval/{n}" for n in SLOW_HUMANEVAL} | {f"Mbpp/{n}" for n in SLOW_MBPP}
FIXTURE = pathlib.Path(__file__).with_name("evalplus_verdicts.json")

WRONG_BODIES = (
    "return None",
    "return args[0]",
    "return {0: args}",
    "raise ValueError('no')",
    "return True",
    "return []",
    "return 0",
    "return ''",
    "return 1.5",
    "import sys; sys.exit(0)",
    "return iter([1])",
    "return args",
    "print('x' * 1000); return 'x' * 10",
)
_WRAPPER = "\n_f = {name}\n_n = [0]\ndef {name}(*args):\n"
WRAPPERS = {
    # Right for the first inputs alone: state lives as long as one part's process.
    "fading": "    _n[0] += 1\n    return _f(*args) if _n[0] < 4 else None\n",
    "other types": (
        "    v = _f(*args)\n"
        "    if isinstance(v, list): return tuple(v)\n"
        "    if isinstance(v, tuple): return list(v)\n"
        "    if isinstance(v, bool): return int(v)\n"
        "    if isinstance(v, int): return float(v)\n"
        "    if isinstance(v, float): return v * (1 + 3e-8)\n"
        "    return v\n"
    ),
    "subclasses": (
        "    import collections\n"
        "    v = _f(*args)\n"
        "    if isinstance(v, dict): return collections.OrderedDict(v)\n"
        "    if isinstance(v, float): return v + 2e-6\n"
        "    if isinstance(v, str): return type('S', (str,), {})(v)\n"
        "    return v\n"
    ),
}


def recipes(problem: EvalProblem, number: int) -> Iterator[dict[str, Any]]:
    """Samples of one problem: mostly mutants, and every few problems something stranger."""
    rng = random.Random(problem.task_id)
    mutants = mutations.mutants(problem.program)
    rng.shuffle(mutants)
    unparsed = ast.unparse(ast.parse(problem.program))
    for mutant in mutants[:5]:
        yield {"from": "unparsed", "edits": _edits(unparsed, mutant)}
    if number % 11 == 0 or not mutants:
        yield {"from": "program", "edits": []}
    if number % 13 == 0:
        broken = problem.program.replace("return", "retrun", 1)
        yield {"from": "program", "edits": _edits(problem.program, broken)}
    if number % 4 == 0:
        yield {"from": "wrong", "body": (number // 4) % len(WRONG_BODIES)}
    for name, every in (("fading", 9), ("other types", 7), ("subclasses", 17)):
        if number % every == 0:
            yield {"from": "program", "edits": [], "wrapper": name}


def _edits(before: str, after: str) -> list[list[Any]]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [
        [start, stop, after[first:last]]
        for tag, start, stop, first, last in matcher.get_opcodes()
        if tag != "equal"
    ]


def build(problem: EvalProblem, recipe: dict[str, Any]) -> str:
    """The sample that a recipe stands for."""
    if recipe["from"] == "wrong":
        return f"def {problem.entry_point}(*args):\n    {WRONG_BODIES[recipe['body']]}\n"
    text = problem.program
    if recipe["from"] == "unparsed":
        with warnings.catch_warnings():  # about escapes, which several tasks get wrong
            warnings.simplefilter("ignore", SyntaxWarning)
            text = ast.unparse(ast.parse(text))
    for start, stop, replacement in reversed(recipe["edits"]):
        text = text[:start] + replacement + text[stop:]
    if wrapper := recipe.get("wrapper"):
        text += _WRAPPER.format(name=problem.entry_point) + WRAPPERS[wrapper]
    return text


def digest(solution: str) -> str:
    return hashlib.sha256(solution.encode()).hexdigest()[:16]


def _all(data: pathlib.Path) -> Iterator[tuple[str, EvalProblem, dict[str, Any]]]:
    for name in sources.SUITES:
        files = sources.find_files(name, data)
        rows = (row for file in files for row in sources.rows.read_rows(file))
        for number, problem in enumerate(evalplus.eval_problems(rows, name)):
            if problem.task_id not in SLOW:
                for recipe in recipes(problem, number):
                    yield name, problem, recipe


def main(step: str, data: str, work: str) -> None:
    folder = pathlib.Path(work)
    entries = [
        {"suite": name, "task_id": problem.task_id, "sha256": digest(build(problem, recipe))}
        | recipe
        | {"_solution": build(problem, recipe)}
        for name, problem, recipe in _all(pathlib.Path(data))
    ]
    if step == "samples":
        for name in sources.SUITES:
            found = [e for e in entries if e["suite"] == name]
            samples = [EvalSample(e["task_id"], e["_solution"]) for e in found]
            write_samples(folder / f"{name}.jsonl", samples)
            print(f"{folder / name}.jsonl: {len(samples)} samples")
        return
    verdicts = {}
    for name in sources.SUITES:
        for line in (folder / f"{name}.verdicts.jsonl").read_text().splitlines():
            row = json.loads(line)
            verdicts[row["task_id"], row["sha256"]] = (row["base"], row["plus"])
    # The middle step may have been stopped: what it judged is a fixture too.
    entries = [e for e in entries if (e["task_id"], e["sha256"]) in verdicts]
    for entry in entries:
        entry["base"], entry["plus"] = verdicts[entry["task_id"], entry["sha256"]]
    for entry in entries:
        del entry["_solution"]
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    FIXTURE.write_text(f"[\n{lines}\n]\n")
    print(f"{FIXTURE}: {len(entries)} verdicts, {FIXTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
