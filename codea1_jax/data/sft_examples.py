"""Examples for supervised fine-tuning: what each role is asked, and an answer worth imitating.

The coder's answers are solutions, a share of them with one fault; the tester's are suites of right
tests on ordinary inputs, for a solution with or without a fault. With `wrong_share` 0 this is the
plain supervised baseline of Code-A1 (arXiv 2603.15611, section 4); a tiny model gets wrong answers
too, so that adversarial training has something to put right.

Example `i` of step `s` is a pure function of (seed, s, i).
Left out: chain of thought, several turns.
"""

import ast
import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Literal

from codea1_jax.coevo.prompts import Message, coder_messages, tester_messages
from codea1_jax.data.embedded_problems import SolvedProblem
from codea1_jax.data.mutations import KINDS, Fault, faults
from codea1_jax.models.tokenizer import ChatTokenizer


@dataclasses.dataclass(frozen=True)
class ExampleMix:
    """What is in the mix.

    Attributes:
      tester_share: share of examples for the tester; the rest is for the coder.
      wrong_share: share of the coder's answers that have a fault, in steps after `wrong_after`:
        a small model first learns what a right answer is.
      buggy_share: share of the tester's prompts whose code has a fault.
      boundary_weight: how much likelier a moved boundary is than each other kind of fault.
      num_tests: K, tests in a suite.
      tester_style: the tester's prompt; see `coevo.prompts.tester_messages`.
      black_box_share, no_answer_share: of the tester's conversations, those that do not show the
        code, and those that ask for calls without the expected answer; the rest is ordinary.
    """

    tester_share: float = 0.5
    wrong_share: float = 0.0
    wrong_after: int = 0
    buggy_share: float = 0.5
    boundary_weight: float = 4.0
    num_tests: int = 5
    tester_style: Literal["attack", "simple"] = "simple"
    black_box_share: float = 0.0
    no_answer_share: float = 0.0

    def __post_init__(self) -> None:
        shares = (
            "tester_share",
            "wrong_share",
            "buggy_share",
            "black_box_share",
            "no_answer_share",
        )
        for name in shares:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)} must be between 0 and 1")
        if self.black_box_share + self.no_answer_share > 1.0:
            raise ValueError(
                f"black_box_share={self.black_box_share} and no_answer_share="
                f"{self.no_answer_share} must not exceed 1 together"
            )
        if self.num_tests < 1 or self.boundary_weight < 0 or self.wrong_after < 0:
            raise ValueError(
                f"num_tests={self.num_tests} must be at least 1, boundary_weight="
                f"{self.boundary_weight} and wrong_after={self.wrong_after} at least 0"
            )


@dataclasses.dataclass(frozen=True)
class SftExample:
    """One conversation: the messages and the answer to learn."""

    role: Literal["coder", "tester"]
    messages: list[Message]
    response: str


@functools.cache
def _faults(program: str) -> dict[str, list[Fault]]:
    """The faults that fit a program, by kind."""
    by_kind: dict[str, list[Fault]] = {}
    for fault in faults(program):
        by_kind.setdefault(fault.kind, []).append(fault)
    return by_kind


def faulty_version(
    row: SolvedProblem, program: str, boundary_weight: float, rng: random.Random
) -> str:
    """`program` with one fault, or the program itself when no fault fits it."""
    by_kind = _faults(program)
    kinds = [kind for kind in KINDS if kind in by_kind] + ["slip"] * bool(row.slips)
    if not kinds:
        return program
    weights = [boundary_weight if kind == "boundary" else 1.0 for kind in kinds]
    kind = rng.choices(kinds, weights)[0]
    return rng.choice(row.slips) if kind == "slip" else rng.choice(by_kind[kind]).program()


class SftExamples:
    """An endless, indexable supply of examples."""

    def __init__(self, rows: Sequence[SolvedProblem], mix: ExampleMix, seed: int = 0):
        """Raises ValueError: no problems, or none with tests although the tester gets a share."""
        self._coder_rows = list(rows)
        self._tester_rows = [row for row in rows if row.problem.golden_tests]
        self._mix, self._seed = mix, seed
        if not self._coder_rows:
            raise ValueError("supervised fine-tuning needs at least one problem")
        if mix.tester_share > 0 and not self._tester_rows:
            raise ValueError(
                "no problem has golden tests to learn from: set ExampleMix.tester_share=0, or use "
                "another data set"
            )

    def __getitem__(self, key: tuple[int, int]) -> SftExample:
        """Example number `key[1]` of step `key[0]`."""
        rng = random.Random(f"sft {self._seed} {key[0]} {key[1]}")
        if rng.random() < self._mix.tester_share:
            return self._tester_example(rng)
        wrong_share = self._mix.wrong_share if key[0] > self._mix.wrong_after else 0.0
        return self._coder_example(rng, wrong_share)

    def _coder_example(self, rng: random.Random, wrong_share: float) -> SftExample:
        row = rng.choice(self._coder_rows)
        program = rng.choice(row.solutions)
        if rng.random() < wrong_share:
            program = faulty_version(row, program, self._mix.boundary_weight, rng)
        return SftExample("coder", coder_messages(row.problem), fenced_answer(program))

    def _tester_example(self, rng: random.Random) -> SftExample:
        mix, row = self._mix, rng.choice(self._tester_rows)
        program = rng.choice(row.solutions)
        if rng.random() < mix.buggy_share:
            program = faulty_version(row, program, mix.boundary_weight, rng)
        tests = list(row.problem.golden_tests)
        suite = rng.sample(tests, min(mix.num_tests, len(tests)))
        form = rng.random()  # the last draw: mixes of ordinary prompts stay what they were
        shown = None if form < mix.black_box_share else program
        has_answers = not 0 <= form - mix.black_box_share < mix.no_answer_share
        if not has_answers:
            suite = [_call(test) for test in suite]
        messages = tester_messages(
            row.problem, shown, mix.num_tests, mix.tester_style, predicted_answer=has_answers
        )
        return SftExample("tester", messages, fenced_answer("\n".join(suite)))


def _call(test: str) -> str:
    """The call in `assert call == answer`."""
    (statement,) = ast.parse(test).body
    assert isinstance(statement, ast.Assert)
    assert isinstance(statement.test, ast.Compare)
    return ast.unparse(statement.test.left)


def fenced_answer(text: str) -> str:
    return f"```python\n{text}\n```"


@dataclasses.dataclass(frozen=True)
class TokenizedExample:
    """Ids of a conversation; the answer (end of turn included) starts at `prompt_length`."""

    tokens: tuple[int, ...]
    prompt_length: int


def tokenize(example: SftExample, tokenizer: ChatTokenizer) -> TokenizedExample:
    """Prompt as in rollouts, then the answer and the token that ends a turn.

    The answer is tokenised by itself: a sampled answer never merges with its prompt either.
    """
    prompt = tokenizer.encode_chat(example.messages)
    ends = [token for token in prompt if token in tokenizer.stop_token_ids]
    end = ends[-1] if ends else tokenizer.stop_token_ids[0]
    return TokenizedExample((*prompt, *tokenizer.encode(example.response), end), len(prompt))
