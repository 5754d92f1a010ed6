"""Rewards. If this breaks, both roles are trained towards something else than the method says."""

import json
import math

import numpy as np
import pytest

from codea1_jax.coevo.config import official, paper
from codea1_jax.coevo.rewards import problem_rewards
from codea1_jax.coevo.testcase import StoredTest, make_test
from codea1_jax.coevo.verdicts import (
    CodeVerdict,
    Judgement,
    ProblemVerdicts,
    StatementStatus,
    StatementVerdict,
    SuiteVerdict,
)
from codea1_jax.sandbox.verdict import Verdict

P, F, U = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN
OWN = "own doing"
VALID, WRONG = StatementStatus.VALID, StatementStatus.WRONG_ANSWER
DUPLICATE, INVALID = StatementStatus.DUPLICATE, StatementStatus.INVALID


class Builder:
    """Verdicts of one problem, from lists of statuses and verdicts."""

    def __init__(self, history=()):
        self._number = 0
        self.history = tuple(self._stored() for _ in history)
        self._judged = {t.key: self._judgement(v) for t, v in zip(self.history, history)}

    def _stored(self):
        self._number += 1
        return StoredTest(make_test("f", (self._number,)), self._number)

    @staticmethod
    def _judgement(verdict):
        return Judgement(U, "not run", True) if verdict is OWN else Judgement(verdict)

    def suite(self, statements, penalty=0.0, targets=(0,)):
        """`statements`: (status, verdict) of tests that attack, or a status, or "dropped"."""
        rows = []
        for item in statements:
            if isinstance(item, tuple):
                stored = self._stored()
                self._judged[stored.key] = self._judgement(item[1])
                rows.append(StatementVerdict("s", item[0], test=stored, is_attacking=True))
            elif item == "dropped":
                rows.append(StatementVerdict("s", INVALID, "dropped", is_dropped=True))
            else:
                rows.append(StatementVerdict("s", item, "why"))
        return SuiteVerdict(tuple(rows), targets, penalty=penalty)

    def problem(self, *suites, is_valid=True):
        judged = self._judged if is_valid else {}
        return ProblemVerdicts(
            "q", (CodeVerdict("code", is_valid, judgements=judged),), (suites,), self.history
        )


def rewards_of(statements, config, history=(), penalty=0.0, is_valid=True):
    builder = Builder(history)
    problem = builder.problem(builder.suite(statements, penalty), is_valid=is_valid)
    return problem_rewards(problem, config)


def ran(num_passed, num_failed, status=VALID):
    return [(status, P)] * num_passed + [(status, F)] * num_failed


# (statements, history, penalty, R_C, R_T, valid, adversarial), Code-A1 as released, K = 8.
CONFORMANCE = {
    "8 valid, 3 fail": (ran(5, 3), [], 0, 0.625, 0.6875, 1, 0.375),
    "with history 4/8": (ran(5, 3), [P, F] * 4, 0, 0.5625, 0.71875, 1, 0.4375),
    "2 wrong answers": (ran(5, 1) + ran(0, 2, WRONG), [], 0, 0.625, 0.5625, 0.75, 0.375),
    "6 unique, 2 invalid, history 8/8": (
        [*ran(6, 0), DUPLICATE, INVALID], [P] * 8, 0, 1.0, 0.625, 0.75, 0.5,
    ),
    "3 statements, 1 wrong": (ran(1, 1) + ran(1, 0, WRONG), [], 0, 2 / 3, 0.25, 0.375, 0.125),
    "12 valid, the last 4 fail": (ran(8, 4), [], 0, 2 / 3, 0.5, 1, 0),
    "0 valid, 8 invalid": ([INVALID] * 8, [], 0, 0, 0, 0, 0),
    "0 valid, 8 invalid, history 3/8": ([INVALID] * 8, [P] * 3 + [F] * 5, 0, 0.375, 0, 0, 0),
    "non-printable share 0.02": (ran(8, 0), [], 0.02, 1.0, 0.48, 1, 0),
    "dropped statements are free": (ran(5, 3) + ["dropped"] * 4, [], 0, 0.625, 0.6875, 1, 0.375),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFORMANCE)
def test_official_conformance(name):
    statements, history, penalty, coder, tester, valid, adversarial = CONFORMANCE[name]
    rewards = rewards_of(statements, official(), history, penalty)
    assert rewards.coder_mask.all()
    assert rewards.tester_mask.all()
    assert rewards.coder[0] == pytest.approx(coder, abs=1e-12)
    assert rewards.tester[0, 0] == pytest.approx(tester, abs=1e-12)
    assert rewards.valid[0, 0] == pytest.approx(valid, abs=1e-12)
    assert rewards.adversarial[0, 0] == pytest.approx(adversarial, abs=1e-12)


@pytest.mark.parametrize("config", [official(), paper()])
def test_invalid_code(config):
    rewards = rewards_of(ran(5, 3), config, [P], penalty=0.0, is_valid=False)
    assert (rewards.coder[0], rewards.coder_mask[0]) == (0, True)
    assert (rewards.tester[0, 0], rewards.tester_mask[0, 0]) == (0, True)


@pytest.mark.parametrize(("num_failed", "reward"), [(1, 0.708), (2, 0.792)])
def test_official_figure_6(num_failed, reward):
    """Code-A1 figure 6: K = 3, half of the remembered tests passed."""
    config = official(tests_per_suite=3)
    rewards = rewards_of(ran(3 - num_failed, num_failed), config, [P, F])
    assert rewards.tester[0, 0] == pytest.approx(reward, abs=5e-4)
    assert rewards.adversarial[0, 0] == pytest.approx((num_failed / 3 + 0.5) / 2)


class TestPaperPreset:
    """If this breaks, fewer, repeated or missing tests pay again."""

    def test_k_correct_tests_equal_the_printed_formula(self):
        rewards = rewards_of(ran(3, 2), paper())
        assert rewards.coder[0] == pytest.approx(0.6)
        assert rewards.valid[0, 0] == 1
        assert rewards.adversarial[0, 0] == pytest.approx(0.4)
        assert rewards.tester[0, 0] == pytest.approx(0.7)

    def test_with_history(self):
        rewards = rewards_of(ran(3, 2), paper(), [P, P, F, F])
        assert rewards.coder[0] == pytest.approx((0.5 + 0.6) / 2)
        assert rewards.adversarial[0, 0] == pytest.approx((0.5 - 0.6 + 1) / 2)

    def test_fewer_tests_do_not_pay(self):
        rewards = rewards_of(ran(0, 1), paper())
        assert rewards.valid[0, 0] == pytest.approx(0.2)
        assert rewards.adversarial[0, 0] == pytest.approx(0.2)
        printed = rewards_of(ran(0, 1), paper(adv_denominator="valid"))
        assert printed.adversarial[0, 0] == 1

    def test_more_than_k_statements_cost_validity(self):
        extra = [StatementStatus.NOT_EXECUTED] * 5
        assert rewards_of(ran(5, 0) + extra, paper()).valid[0, 0] == pytest.approx(0.5)

    def test_dropped_statements_count(self):
        statements = ran(3, 0) + ["dropped"] * 2
        assert rewards_of(statements, paper()).valid[0, 0] == pytest.approx(0.6)
        free = paper(count_dropped=False)
        assert rewards_of([*ran(5, 0), "dropped"], free).valid[0, 0] == 1

    def test_wrong_answers_attack_but_are_not_valid(self):
        rewards = rewards_of(ran(3, 0) + ran(0, 2, WRONG), paper())
        assert rewards.valid[0, 0] == pytest.approx(0.6)
        assert rewards.adversarial[0, 0] == pytest.approx(0.4)
        assert rewards.coder[0] == pytest.approx(0.6)

    def test_alpha_weighs_validity(self):
        for alpha, reward in [(0.0, 0.4), (0.25, 0.55), (1.0, 1.0)]:
            rewards = rewards_of(ran(3, 2), paper(alpha=alpha))
            assert rewards.tester[0, 0] == pytest.approx(reward)


def coder_of(builder, config, *suites):
    rewards = problem_rewards(builder.problem(*suites), config)
    return rewards.coder[0] if rewards.coder_mask[0] else None


def test_empty_suites_are_skipped_or_zero():
    """A coder punished for its opponent's empty answers learns nothing from it."""
    builder = Builder()
    suites = builder.suite(ran(4, 1)), builder.suite([INVALID] * 5)
    assert coder_of(builder, paper(), *suites) == pytest.approx(0.8)
    assert coder_of(builder, paper(empty_suite="zero"), *suites) == pytest.approx(0.4)
    builder = Builder([P, F])
    suites = builder.suite(ran(4, 1)), builder.suite([])
    assert coder_of(builder, paper(), *suites) == pytest.approx(0.65)
    assert coder_of(builder, paper(empty_suite="zero"), *suites) == pytest.approx((0.65 + 0.5) / 2)


def test_only_empty_suites():
    builder = Builder([P, F])
    assert coder_of(builder, paper(), builder.suite([INVALID])) == pytest.approx(0.5)
    builder = Builder()
    assert coder_of(builder, paper(), builder.suite([])) is None
    assert coder_of(builder, official(), builder.suite([])) == 0


def test_golden_tests_are_history_without_suites():
    builder = Builder([P, P, P, F])
    rewards = problem_rewards(builder.problem(), paper())
    assert rewards.coder.tolist() == [0.75]
    assert rewards.tester.shape == (1, 0)
    assert coder_of(Builder(), paper()) is None  # no golden tests: masked, not 0


class TestUnknown:
    """If this breaks, sandbox trouble is paid as if it were the model's doing."""

    @pytest.mark.parametrize("config", [paper(), official()])
    def test_unknown_code_masks_everything(self, config):
        rewards = rewards_of(ran(5, 3), config, is_valid=None)
        assert not rewards.coder_mask.any()
        assert not rewards.tester_mask.any()

    @pytest.mark.parametrize("config", [paper(), official()])
    def test_unknown_verdicts_leave_pass_rates_and_mask_the_suite(self, config):
        rewards = rewards_of([*ran(2, 1), (VALID, U)], config, [P, U, F])
        assert not rewards.tester_mask.any()
        assert rewards.coder[0] == pytest.approx((0.5 + 2 / 3) / 2)

    @pytest.mark.parametrize("config", [paper(), official()])
    def test_unknown_statements_mask_the_suite(self, config):
        rewards = rewards_of([*ran(2, 2), StatementStatus.UNKNOWN], config)
        assert not rewards.tester_mask.any()
        assert rewards.coder[0] == pytest.approx(0.5)
        rewards = rewards_of([StatementStatus.UNKNOWN] * 5, config)
        assert not rewards.coder_mask.any()

    def test_a_code_that_hangs_does_not_get_the_rest_excused(self):
        """Hanging after the first pass must not turn a pass rate of 1/5 into 1."""
        rewards = rewards_of([(VALID, P), (VALID, F), *[(VALID, OWN)] * 3], paper())
        assert rewards.coder[0] == pytest.approx(0.2)
        assert not rewards.tester_mask.any()

    def test_masked_entries_are_zero(self):
        rewards = rewards_of([(VALID, U)], paper(), [U], penalty=0.3)
        assert rewards.tester[0, 0] == 0
        assert math.isnan(rewards.pass_hist[0])
        assert math.isnan(rewards.pass_new[0, 0])


def test_suites_shared_by_all_codes():
    """Self-play: one group of suites against every code; a suite earns its mean over codes."""
    builder = Builder()
    suites = tuple(builder.suite([(VALID, P)] * 5, targets=(0, 1, 2)) for _ in range(2))
    keys = [t.key for suite in suites for t in suite.attacking]
    codes = (
        CodeVerdict("a", True, judgements={k: Judgement(P) for k in keys}),
        CodeVerdict("b", True, judgements={k: Judgement(F) for k in keys}),
        CodeVerdict("c", False),
    )
    rewards = problem_rewards(ProblemVerdicts("q", codes, (suites,)), paper())
    assert rewards.coder.tolist() == [1, 0, 0]
    assert rewards.tester.tolist() == [[0.5, 0.5]]  # (0.5 + 1.0 + 0.0) / 3
    assert rewards.adversarial.tolist() == [[0.5, 0.5]]


def test_shapes_and_dtype():
    builder = Builder()
    group = tuple(builder.suite(ran(1, 1)) for _ in range(3))
    problem = builder.problem(*group)
    rewards = problem_rewards(problem, paper())
    assert rewards.coder.shape == (1,)
    assert rewards.tester.shape == rewards.tester_mask.shape == (1, 3)
    assert rewards.coder.dtype == rewards.tester.dtype == np.float64
    uneven = ProblemVerdicts("q", problem.codes, (group, group[:1]))
    with pytest.raises(ValueError, match="differ in size"):
        problem_rewards(uneven, paper())


def test_logged_rewards_are_json():
    builder = Builder()
    problem = builder.problem(builder.suite(ran(1, 2)), builder.suite([]))
    row = json.loads(json.dumps(problem_rewards(problem, paper()).to_json()))
    assert row["coder"] == [0.333333]
    assert row["pass_new"] == [[0.333333, None]]
    assert row["pass_hist"] == [None]
    assert row["tester_mask"] == [[True, True]]
