"""Rewards of both roles from verdicts. Pure arithmetic, in float64.

Code-A1 (arXiv 2603.15611), eq. 2-4, with K = tests_per_suite and alpha as configured:

    coder:   R_C = mean over suites of  pass_new                      without remembered tests
                                        (pass_hist + pass_new) / 2    with them
    tester:  R_T = alpha * valid + (1 - alpha) * adversarial
             adversarial = fails / K                                  without remembered tests
                           (fails / K - (1 - pass_hist) + 1) / 2      with them

Worked example, K = 8: eight valid tests of which the code fails three, no remembered tests, gives
R_C = 5/8 and R_T = 0.5 * 1 + 0.5 * 3/8 = 0.6875.

Verdicts the sandbox could not give take part in nothing: a test is left out of pass rates, a suite
that has one is masked, and a code without any known verdict is masked.
"""

import dataclasses
from typing import Any

import numpy as np

from codea1_jax.coevo.config import CoEvolutionConfig
from codea1_jax.coevo.verdicts import (
    CodeVerdict,
    ProblemVerdicts,
    StatementStatus,
    SuiteVerdict,
)
from codea1_jax.sandbox.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class SuiteCounts:
    """A suite against one code, counted.

    Attributes:
      num_statements: statements that count as written.
      num_invalid: of these, neither valid nor unknown nor unexecuted; wrong answers included.
      num_correct: valid tests with the right answer (or none asked for) among the first K
        statements.
      num_valid: tests run against the code.
      num_first_fails: failed ones among the first K of these.
      num_fails: failed ones among all of these.
      num_passed: passed ones among all of these.
      num_judged: tests that count in the coder's pass rate.
      has_unknown: some statement or verdict is unknown.
    """

    num_statements: int
    num_invalid: int
    num_correct: int
    num_valid: int
    num_first_fails: int
    num_fails: int
    num_passed: int
    num_judged: int
    has_unknown: bool


@dataclasses.dataclass(frozen=True)
class SuiteTerms:
    """Reward terms of one suite against one code. `pass_new` is NaN without judged tests."""

    valid: float
    adversarial: float
    pass_new: float


@dataclasses.dataclass(frozen=True)
class ProblemRewards:
    """Rewards of one problem. Masked entries hold 0 and must not be used.

    Attributes:
      coder: float64[M].
      coder_mask: bool[M].
      tester: float64[groups, N].
      tester_mask: bool[groups, N].
      valid, adversarial: float64[groups, N], the tester's terms (mean over its targets).
      pass_new: float64[groups, N], pass rate of the suite's tests; NaN where nothing was judged.
      pass_hist: float64[M], pass rate of remembered tests; NaN where there are none.
    """

    coder: np.ndarray
    coder_mask: np.ndarray
    tester: np.ndarray
    tester_mask: np.ndarray
    valid: np.ndarray
    adversarial: np.ndarray
    pass_new: np.ndarray
    pass_hist: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """For the rollout log: nested lists, None where there is no number."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _plain(values: np.ndarray) -> list[Any]:
    if values.dtype == bool:
        return list(values.tolist())
    # Six digits are plenty to read, and keep the log small.
    rounded = np.round(values, 6).astype(object)
    rounded[np.isnan(values)] = None
    return list(rounded.tolist())


def problem_rewards(verdicts: ProblemVerdicts, config: CoEvolutionConfig) -> ProblemRewards:
    """Rewards of every code and suite of one problem.

    Raises:
      ValueError: the groups of suites differ in size.
    """
    num_codes, num_groups = len(verdicts.codes), len(verdicts.suites)
    sizes = {len(group) for group in verdicts.suites}
    if len(sizes) > 1:
        raise ValueError(f"{verdicts.question_id}: groups of suites differ in size: {sizes}")
    shape = (num_groups, sizes.pop() if sizes else 0)
    tester, tester_mask = np.zeros(shape), np.zeros(shape, bool)
    valid, adversarial = np.zeros(shape), np.zeros(shape)
    pass_new = np.full(shape, np.nan)
    pass_hist = np.array([history_pass_rate(verdicts, m) for m in range(num_codes)])
    code_terms: list[list[float]] = [[] for _ in range(num_codes)]

    for index in np.ndindex(shape):
        suite = verdicts.suites[index[0]][index[1]]
        rewards: list[float] = []
        terms: list[SuiteTerms] = []
        for m in suite.targets:
            code = verdicts.codes[m]
            if code.is_valid is None:
                continue
            if not code.is_valid:
                rewards.append(0.0)
                continue
            counts = suite_counts(suite, code, config)
            term = suite_terms(counts, float(pass_hist[m]), config)
            if not counts.has_unknown:
                terms.append(term)
                rewards.append(config.alpha * term.valid + (1 - config.alpha) * term.adversarial)
            code_term = coder_term(counts, term, float(pass_hist[m]), config)
            if code_term is not None:
                code_terms[m].append(code_term)
        if rewards:
            tester[index] = np.mean(rewards) - suite.penalty
            tester_mask[index] = True
        if terms:
            valid[index] = np.mean([t.valid for t in terms])
            adversarial[index] = np.mean([t.adversarial for t in terms])
            rates = [t.pass_new for t in terms if not np.isnan(t.pass_new)]
            pass_new[index] = np.mean(rates) if rates else np.nan

    coder, coder_mask = _coder_rewards(verdicts, code_terms, pass_hist)
    return ProblemRewards(
        coder, coder_mask, tester, tester_mask, valid, adversarial, pass_new, pass_hist
    )


def _coder_rewards(
    verdicts: ProblemVerdicts, code_terms: list[list[float]], pass_hist: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    coder, mask = np.zeros(len(verdicts.codes)), np.zeros(len(verdicts.codes), bool)
    for m, code in enumerate(verdicts.codes):
        if code.is_valid is None:
            continue
        if not code.is_valid:
            mask[m] = True  # a program that does not load earns 0, and that is a fact about it
        elif code_terms[m]:
            coder[m], mask[m] = np.mean(code_terms[m]), True
        elif not np.isnan(pass_hist[m]):  # every suite empty: remembered tests alone
            coder[m], mask[m] = pass_hist[m], True
    return coder, mask


def suite_counts(suite: SuiteVerdict, code: CodeVerdict, config: CoEvolutionConfig) -> SuiteCounts:
    """Counts `suite` against a valid `code`."""
    k = config.tests_per_suite
    counted = [s for s in suite.statements if config.count_dropped or not s.is_dropped]
    statuses = [s.status for s in counted]
    judgements = [code.judgements[test.key] for test in suite.attacking]
    is_fail = [j.verdict is Verdict.FAIL for j in judgements]
    has_unknown = StatementStatus.UNKNOWN in statuses
    has_unknown |= any(j.verdict is Verdict.UNKNOWN for j in judgements)
    settled = (StatementStatus.VALID, StatementStatus.NOT_EXECUTED, StatementStatus.UNKNOWN)
    return SuiteCounts(
        num_statements=len(counted),
        num_invalid=sum(status not in settled for status in statuses),
        num_correct=sum(status is StatementStatus.VALID for status in statuses[:k]),
        num_valid=len(judgements),
        num_first_fails=sum(is_fail[:k]),
        num_fails=sum(is_fail),
        num_passed=sum(j.verdict is Verdict.PASS for j in judgements),
        num_judged=sum(j.verdict is not Verdict.UNKNOWN or j.is_own_doing for j in judgements),
        has_unknown=has_unknown,
    )


def suite_terms(counts: SuiteCounts, pass_hist: float, config: CoEvolutionConfig) -> SuiteTerms:
    """Terms of eq. 3 and 4. `pass_hist` is NaN without remembered tests."""
    k = config.tests_per_suite
    if config.validity == "strict":
        # Both fewer and more statements than K cost validity; equal to the paper's share at K.
        valid = counts.num_correct / max(k, counts.num_statements)
    else:
        valid = min(counts.num_valid / k, 1 - counts.num_invalid / k)
        valid = min(max(valid, 0.0), 1.0)
    if counts.num_valid == 0:
        adversarial = 0.0
    else:
        if config.adv_denominator == "tests_per_suite":
            adversarial = counts.num_first_fails / k
        else:
            adversarial = counts.num_fails / counts.num_valid
        if not np.isnan(pass_hist):
            adversarial = (adversarial - (1 - pass_hist) + 1) / 2
    pass_new = counts.num_passed / counts.num_judged if counts.num_judged else np.nan
    return SuiteTerms(valid, adversarial, pass_new)


def coder_term(
    counts: SuiteCounts, terms: SuiteTerms, pass_hist: float, config: CoEvolutionConfig
) -> float | None:
    """What one suite adds to the coder's mean (eq. 2); None when it is left out of it."""
    has_history = not np.isnan(pass_hist)
    if counts.num_judged:
        return (pass_hist + terms.pass_new) / 2 if has_history else terms.pass_new
    if counts.has_unknown or config.empty_suite == "skip":
        return None
    return pass_hist if has_history else 0.0


def history_pass_rate(verdicts: ProblemVerdicts, code_index: int) -> float:
    """Pass rate of code `code_index` on the remembered tests; NaN when none has a verdict."""
    code = verdicts.codes[code_index]
    if not code.is_valid:
        return 0.0 if code.is_valid is False and verdicts.history else np.nan
    judgements = [code.judgements[test.key] for test in verdicts.history]
    judged = [j for j in judgements if j.verdict is not Verdict.UNKNOWN or j.is_own_doing]
    if not judged:
        return np.nan
    return sum(j.verdict is Verdict.PASS for j in judged) / len(judged)
