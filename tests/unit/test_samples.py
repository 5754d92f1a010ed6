"""Samples files and extraction for evaluation: a lost import fails a correct answer."""

import argparse
import gzip
import json

import pytest

from codea1_jax.coevo.prompts import coder_messages
from codea1_jax.data.evalplus import EvalProblem
from codea1_jax.data.location import DataError
from codea1_jax.errors import UserError
from codea1_jax.eval import command
from codea1_jax.eval.samples import (
    EvalSample,
    generate_samples,
    read_samples,
    solution_from_response,
    write_samples,
)

PROMPT = (
    "import math\nfrom typing import List\n\n\ndef poly(xs: list, x: float):\n"
    '    """Evaluates."""\n    return sum(c * math.pow(x, i) for i, c in enumerate(xs))\n\n\n'
    'def find_zero(xs: List[float]):\n    """Finds a zero.\n    >>> 1\n    """\n'
)
PROBLEM = EvalProblem(
    "HumanEval/32", "humaneval_plus", PROMPT, "find_zero", "    return 0.0\n", (), ()
)
PROMPTS = {"HumanEval/32": PROMPT, "HumanEval/33": "def g():\n"}


@pytest.mark.parametrize("name", ["samples.jsonl", "samples.jsonl.gz"])
def test_written_samples_come_back(tmp_path, name):
    """EvalPlus reads the same file; a changed program would get another verdict."""
    samples = [EvalSample("HumanEval/32", "x = 'é\\n'\n"), EvalSample("HumanEval/33", "")]
    write_samples(tmp_path / name, samples)
    assert read_samples(tmp_path / name, PROMPTS) == (samples, [])


def test_completions_follow_their_prompt(tmp_path):
    """HumanEval's own format has completions; alone they are no program."""
    rows = [
        {"task_id": "HumanEval/33", "completion": "    return 1\n"},
        {"task_id": "HumanEval/33", "solution": "whole", "completion": "ignored"},
        {"task_id": "HUMANEVAL/33", "solution": "upper case"},
        {"task_id": "HumanEval/99", "solution": "another suite"},
    ]
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    found, others = read_samples(tmp_path / "x.jsonl.gz", PROMPTS)
    assert [s.solution for s in found] == ["def g():\n    return 1\n", "whole", "upper case"]
    assert {s.task_id for s in found} == {"HumanEval/33"}
    assert others == ["HumanEval/99"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"solution": "x"}, "sample 1: the field 'task_id' is missing"),
        ({"task_id": "HumanEval/33"}, "sample 1: the field 'completion' is missing"),
        ({"task_id": "HumanEval/33", "solution": ["x"]}, "'solution' is list, expected str"),
    ],
)
def test_bad_samples_are_named(tmp_path, row, message):
    """A skipped sample would change pass@1 without a word."""
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError, match=message):
        read_samples(tmp_path / "x.jsonl", PROMPTS)
    with pytest.raises(DataError, match="no such file"):
        read_samples(tmp_path / "y.jsonl", PROMPTS)


def _namespace(solution: str) -> dict:
    namespace: dict = {}
    exec(solution, namespace)
    return namespace


def test_context_of_the_prompt_is_put_back():
    """Models answer with the function alone; its helpers and imports were in the prompt."""
    response = (
        "Sure:\n```python\ndef find_zero(xs: List[float]):\n    return poly(xs, math.pi)\n```"
    )
    solution = solution_from_response(PROBLEM, response)
    assert _namespace(solution)["find_zero"]([1.0]) == 1.0


def test_answer_wins_over_the_prompt():
    """An answer that repeats or changes the helper must be judged as written."""
    response = (
        "```python\nfrom __future__ import annotations\ndef find_zero(xs: List[float]):\n"
        "    return 5\n```"
    )
    assert _namespace(solution_from_response(PROBLEM, response))["find_zero"]([]) == 5
    response = (
        "```python\ndef poly(a, b):\n    return 7\ndef find_zero(xs):\n    return poly(1, 2)\n```"
    )
    assert _namespace(solution_from_response(PROBLEM, response))["find_zero"]([]) == 7


@pytest.mark.parametrize(
    "response", ["", "no code at all", "```python\ndef find_zero(:\n```", "\0"]
)
def test_hopeless_responses_do_not_raise(response):
    """One absurd answer must not end the evaluation of 542 problems."""
    assert isinstance(solution_from_response(PROBLEM, response), str)


def _options(tmp_path, **changes) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = parser.parse_args(
        ["--suite=humaneval_plus", "--checkpoint=c", f"--output={tmp_path / 'out.json'}"]
    )
    for name, value in changes.items():
        setattr(options, name, value)
    return options


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"greedy": True, "num_samples": 4}, "--greedy gives one sample"),
        ({"num_samples": 0}, "--num_samples=0"),
        ({"temperature": -1.0}, "--temperature"),
        ({"top_p": 0.0}, "--top_p"),
    ],
)
def test_impossible_options_are_refused(tmp_path, changes, message):
    """Checked before the checkpoint is loaded, which takes a minute."""
    with pytest.raises(UserError, match=message):
        command.run(_options(tmp_path, **changes))


class _FakeSampler:
    """Answers with the question's length; counts what it was asked."""

    num_tokens = 1
    asked = 0

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, messages, num_samples):
        for index in reversed(range(len(messages))):  # any order is allowed
            type(self).asked += 1
            size = len(messages[index][-1]["content"])
            yield (
                index,
                [f"```python\ndef g():\n    return {size + n}\n```" for n in range(num_samples)],
            )


PROBLEMS = [
    EvalProblem(
        f"HumanEval/{i}", "humaneval_plus", f"def g():\n    {'#' * i}\n", "g", "    1", (), ()
    )
    for i in range(5)
]


def test_generation_keeps_problem_and_sample_order():
    """Responses given to the wrong problem would all fail."""
    found = {s[0].task_id: s for s in generate_samples(PROBLEMS, _FakeSampler(), 2)}
    assert list(found) == [p.task_id for p in reversed(PROBLEMS)]
    values = [
        [_namespace(s.solution)["g"]() for s in found[problem.task_id]] for problem in PROBLEMS
    ]
    sizes = [len(coder_messages(p.to_problem())[-1]["content"]) for p in PROBLEMS]
    assert len(set(sizes)) == 5
    assert values == [[size, size + 1] for size in sizes]


def test_interrupted_sampling_continues(tmp_path, monkeypatch):
    """Sampling 542 problems takes long; a kill must not cost what was sampled."""
    from codea1_jax.eval import generation

    monkeypatch.setattr(generation, "CheckpointSampler", _FakeSampler)
    monkeypatch.setattr(_FakeSampler, "asked", 0)
    options = _options(tmp_path, num_samples=2)
    whole = command._sample(options, PROBLEMS)
    assert len(whole) == 10
    assert _FakeSampler.asked == 5
    file = tmp_path / "out.samples.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:5]) + lines[5][:20])  # two problems, half a third
    again = command._sample(options, PROBLEMS)
    assert sorted(map(repr, again)) == sorted(map(repr, whole))
    assert _FakeSampler.asked == 5 + 3
    with pytest.raises(UserError, match="made by another checkpoint or with other options"):
        command._sample(_options(tmp_path, num_samples=2, temperature=0.1), PROBLEMS)
