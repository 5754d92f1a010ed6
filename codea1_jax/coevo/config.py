"""Every switch of the co-evolution method in one place, and its two presets.

`paper()` follows the text of Code-A1 (arXiv 2603.15611) where it is clear and takes the safer
reading where text and released system disagree. `official()` reproduces the released system's
reward and book arithmetic, K = 8. What neither preset gives up: tests are data, the candidate never
shares a process with an expected value, and a verdict the sandbox could not give is masked out
instead of being paid 0.
"""

import dataclasses
import typing
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class CoEvolutionConfig:
    """How tests are read, executed, paid, selected and remembered.

    Attributes:
      tests_per_suite: K. Drives the tester's prompt, both reward denominators and the number of
        remembered tests a code is replayed on.
      num_solutions: M, codes per question.
      num_suites: N, test suites per code.
      groups_kept: codes per question whose suites train the tester (TopVar, eq. 6).
      alpha: weight of validity against the adversarial term (eq. 4).
      adv_denominator: failing tests are divided by K ("tests_per_suite", so that fewer tests never
        pay more) or by the number of valid tests ("valid", eq. 3 as printed).
      validity: "strict": correct unique tests among the first K over max(K, statements written).
        "official_min": min(valid / K, 1 - invalid / K), clipped to [0, 1].
      empty_suite: a suite without a valid test is left out of the coder's mean ("skip") or counts
        with its history term, or 0 ("zero").
      executed_statements: only the first K statements of a suite are executed ("first_k"), or all
        of them ("all", up to `max_statements`).
      count_dropped: asserts that are not of the accepted form count as produced and invalid.
      keep_wrong_answer: a test whose predicted answer is wrong still attacks, with the reference's
        answer; it never counts as correct.
      accept_bare_asserts: read `assert f(x)` and `assert not f(x)` as answers True and False.
      non_printable_penalty: "off"; "ascii": subtract the share of characters outside printable
        ASCII from the tester's reward; "control": only control characters.
      book_rule: "per_step": +1 if any code failed the test in this step, -1 if all judged codes
        passed it. "official": +1 for each generated failure, -1 for each replayed pass.
      book_cap: most tests remembered per question; 0 for no limit.
      retrieval: the K most frequent remembered tests ("top"), or K drawn without replacement with
        probability proportional to frequency ("sampled").
      use_book, white_box, predicted_answer: False gives the paper's three ablations.
      test_source: "tester", or "golden": no tester, codes are paid the share of the problem's
        golden tests that they pass (the golden-tests baseline; without the book).
      suites_for: "code": N suites for each code, which attack it. "question": N suites for the
        question, written without code, each of which attacks every code (self-play).
      prompt_style: "attack" (the RL prompt) or "simple" (the SFT prompt).
      strip_comments: remove comments and docstrings from the code shown to the tester, so that a
        coder cannot address its opponent in prose.
      filter_zero_variance: drop questions whose codes all earned the same from the coder's update.
      max_extra_batches: with filter_zero_variance, as many further batches of questions are sampled
        at most until the step has its number of questions that are not dropped (DAPO's dynamic
        sampling, arXiv 2503.14476, section 3.2).
      max_unknown_share: share of verdicts the sandbox may fail to give in one step before the
        judge reports the step as broken.
      max_statements: most statements of one suite that are executed, whatever the preset.
    """

    tests_per_suite: int = 5
    num_solutions: int = 8
    num_suites: int = 8
    groups_kept: int = 1
    alpha: float = 0.5
    adv_denominator: Literal["tests_per_suite", "valid"] = "tests_per_suite"
    validity: Literal["strict", "official_min"] = "strict"
    empty_suite: Literal["skip", "zero"] = "skip"
    executed_statements: Literal["first_k", "all"] = "first_k"
    count_dropped: bool = True
    keep_wrong_answer: bool = True
    accept_bare_asserts: bool = False
    non_printable_penalty: Literal["off", "ascii", "control"] = "off"
    book_rule: Literal["per_step", "official"] = "per_step"
    book_cap: int = 64
    retrieval: Literal["top", "sampled"] = "top"
    use_book: bool = True
    white_box: bool = True
    predicted_answer: bool = True
    test_source: Literal["tester", "golden"] = "tester"
    suites_for: Literal["code", "question"] = "code"
    prompt_style: Literal["attack", "simple"] = "attack"
    strip_comments: bool = False
    filter_zero_variance: bool = False
    max_extra_batches: int = 0
    max_unknown_share: float = 0.2
    max_statements: int = 64

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_type(field.name, field.type, getattr(self, field.name))
        for name in ("tests_per_suite", "num_solutions", "num_suites", "groups_kept"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.book_cap < 0:
            raise ValueError(f"book_cap={self.book_cap} must be 0 (no limit) or positive")
        if self.max_extra_batches < 0:
            raise ValueError(f"max_extra_batches={self.max_extra_batches} must be 0 or positive")
        if self.max_extra_batches and not self.filter_zero_variance:
            raise ValueError(
                f"max_extra_batches={self.max_extra_batches} needs filter_zero_variance=True: "
                "extra batches replace the questions that it drops"
            )
        for name in ("alpha", "max_unknown_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)} must lie between 0 and 1")
        if self.groups_kept > self.num_solutions:
            raise ValueError(
                f"groups_kept={self.groups_kept} exceeds num_solutions={self.num_solutions}: "
                "at most one group of suites exists per code; lower groups_kept"
            )
        if self.test_source == "golden" and self.use_book:
            raise ValueError(
                "use_book must be False with test_source='golden': golden tests are not remembered"
            )
        if self.suites_for == "question" and (self.white_box or self.groups_kept != 1):
            raise ValueError(
                "suites_for='question' needs white_box=False and groups_kept=1: there is one group "
                "of suites per question, and it is written without code"
            )
        if self.max_statements < self.tests_per_suite:
            raise ValueError(
                f"max_statements={self.max_statements} is below tests_per_suite="
                f"{self.tests_per_suite}; raise max_statements"
            )

    @property
    def targets(self) -> tuple[tuple[int, ...], ...] | None:
        """Codes that each group of suites attacks; None: group m attacks code m."""
        return None if self.suites_for == "code" else (tuple(range(self.num_solutions)),)

    @property
    def num_executed(self) -> int:
        """Statements of one suite that are executed at most."""
        if self.executed_statements == "first_k":
            return self.tests_per_suite
        return self.max_statements


def _check_type(name: str, annotation: Any, value: Any) -> None:
    if typing.get_origin(annotation) is Literal:
        choices = typing.get_args(annotation)
        if value not in choices:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")
        return
    is_bool = isinstance(value, bool)
    if annotation is bool and not is_bool:
        raise ValueError(f"{name}={value!r} must be True or False")
    if annotation is int and (is_bool or not isinstance(value, int)):
        raise ValueError(f"{name}={value!r} must be a whole number")
    if annotation is float and (is_bool or not isinstance(value, int | float)):
        raise ValueError(f"{name}={value!r} must be a number")


def paper(**overrides: Any) -> CoEvolutionConfig:
    """The paper's method, K = 5. `overrides` replace single values."""
    return dataclasses.replace(CoEvolutionConfig(), **overrides)


def official(**overrides: Any) -> CoEvolutionConfig:
    """The released system's arithmetic, K = 8. `overrides` replace single values."""
    base = CoEvolutionConfig(
        tests_per_suite=8,
        validity="official_min",
        empty_suite="zero",
        executed_statements="all",
        count_dropped=False,
        non_printable_penalty="ascii",
        book_rule="official",
        book_cap=0,
    )
    return dataclasses.replace(base, **overrides)
