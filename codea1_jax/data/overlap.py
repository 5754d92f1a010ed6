"""Training problems that the evaluation set already holds: found, and refused unless allowed.

Three signs, each enough: the same question id (case aside), the same function name, or a shared run
of 13 words in the description (the n-gram length usual since GPT-3's decontamination).
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from codea1_jax.data.record import Problem
from codea1_jax.errors import UserError

NGRAM = 13
_WORD = re.compile(r"[a-z0-9]+")


@dataclasses.dataclass(frozen=True)
class Overlap:
    """One training problem that meets one evaluation problem."""

    train_id: str
    eval_id: str
    sign: Literal["id", "function name", "n-gram"]
    detail: str

    def __str__(self) -> str:
        return f"{self.train_id} ~ {self.eval_id} ({self.sign}: {self.detail})"


class OverlapError(UserError):
    """Training data overlaps the evaluation data; `overlaps` lists every case."""

    def __init__(self, overlaps: Sequence[Overlap], policy_key: str):
        self.overlaps = tuple(overlaps)
        offenders = len({o.train_id for o in overlaps})
        shown = "\n  ".join(str(overlap) for overlap in overlaps[:20])
        rest = f"\n  ... and {len(overlaps) - 20} more" if len(overlaps) > 20 else ""
        super().__init__(
            f"{offenders} training problems overlap the evaluation problems; set {policy_key} to "
            f"'drop' to leave them out or to 'allow' to train on them:\n  {shown}{rest}"
        )


def _ngrams(text: str, size: int) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def _text(problem: Problem) -> str:
    # The prose alone: signatures and instructions repeat from problem to problem.
    return problem.description or problem.question


def find_overlaps(
    train: Iterable[Problem], evaluation: Iterable[Problem], *, ngram: int = NGRAM
) -> list[Overlap]:
    """At most one overlap per training problem and sign, in training order."""
    by_id: dict[str, str] = {}
    by_name: dict[str, str] = {}
    by_ngram: dict[tuple[str, ...], str] = {}
    for problem in evaluation:
        by_id.setdefault(problem.question_id.lower(), problem.question_id)
        by_name.setdefault(problem.entry_point, problem.question_id)
        for gram in _ngrams(_text(problem), ngram):
            by_ngram.setdefault(gram, problem.question_id)
    found = []
    for problem in train:
        train_id = problem.question_id
        if (eval_id := by_id.get(train_id.lower())) is not None:
            found.append(Overlap(train_id, eval_id, "id", train_id))
        if (eval_id := by_name.get(problem.entry_point)) is not None:
            found.append(Overlap(train_id, eval_id, "function name", problem.entry_point))
        shared = _ngrams(_text(problem), ngram) & by_ngram.keys()
        if shared:
            gram = min(shared)  # any would do; the smallest is the same in every process
            found.append(Overlap(train_id, by_ngram[gram], "n-gram", " ".join(gram)))
    return found


def check_overlap(
    train: Iterable[Problem],
    evaluation: Iterable[Problem],
    *,
    is_allowed: bool = False,
    policy_key: str = "DataConfig.overlap",
) -> list[Overlap]:
    """Raises OverlapError when there is any overlap, unless it is allowed; returns what there is.

    Args:
      policy_key: the configuration key that says what to do, named in the error.
    """
    overlaps = find_overlaps(train, evaluation)
    if overlaps and not is_allowed:
        raise OverlapError(overlaps, policy_key)
    return overlaps


def without_overlap(
    train: Sequence[Problem], evaluation: Iterable[Problem]
) -> tuple[list[Problem], list[Overlap]]:
    """The training problems that do not overlap, and why the others were left out."""
    overlaps = find_overlaps(train, evaluation)
    offenders = {overlap.train_id for overlap in overlaps}
    return [p for p in train if p.question_id not in offenders], overlaps
