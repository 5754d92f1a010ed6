"""The Mistake Book. If this breaks, codes are replayed on wrong tests, or stale ones for ever."""

import json

import numpy as np
import pytest

from codea1_jax.coevo.config import official, paper
from codea1_jax.coevo.mistake_book import MistakeBook
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


def stored(*args, expected=0):
    return StoredTest(make_test("f", args), expected, 0.25)


T1, T2, T3, T9 = (stored(i) for i in (1, 2, 3, 9))


def contents(book, question_id="q"):
    return list(book.frequencies(question_id).items())


def test_official_conformance():
    book = MistakeBook("official", cap=0)
    book.update_official("q", [T1, T1, T2], [])
    assert contents(book) == [(T1.key, 2), (T2.key, 1)]
    book.update_official("q", [T1, T3], [T1.key, T2.key, T9.key])
    assert contents(book) == [(T1.key, 2), (T3.key, 1)]
    assert book.retrieve("q", 2) == (T1, T3)
    book.update_official("q", [], [T1.key, T1.key, T1.key, T3.key])
    assert contents(book) == []
    assert (len(book), book.num_questions, book.num_added, book.num_removed) == (0, 0, 3, 3)


def test_per_step_rule():
    book = MistakeBook("per_step")
    book.update_per_step("q", [(T1, [F, F, P]), (T2, [P, P]), (T3, [U]), (T9, [])])
    assert contents(book) == [(T1.key, 1)]
    book.update_per_step("q", [(T1, [F, P]), (T2, [F])])  # a replayed failure counts
    assert contents(book) == [(T1.key, 2), (T2.key, 1)]
    book.update_per_step("q", [(T1, [P, P]), (T2, [P, F])])  # one lucky code deletes nothing
    assert contents(book) == [(T1.key, 1), (T2.key, 2)]
    book.update_per_step("q", [(T1, [P, U]), (T2, [U, U])])
    book.update_per_step("q", [(T2, [])])
    assert contents(book) == [(T2.key, 2)]


def problem(histories, verdicts, is_valid=(True, True, False)):
    """Three codes, one suite each with the same test T1; `histories` is remembered."""
    codes = tuple(
        CodeVerdict("c", valid, judgements={k: Judgement(v) for k, v in judged.items()})
        for valid, judged in zip(is_valid, verdicts)
    )
    statement = StatementVerdict("s", StatementStatus.VALID, test=T1, is_attacking=True)
    skipped = StatementVerdict("s", StatementStatus.WRONG_ANSWER, "wrong", test=T3)
    suites = tuple((SuiteVerdict((statement, skipped), (m,)),) * 2 for m in range(3))
    return ProblemVerdicts("q", codes, suites, histories)


def test_update_from_verdicts_official():
    book = MistakeBook.from_config(official())
    judged = {T1.key: F, T2.key: P}
    book.update_official("q", [T2, T2, T2], [])
    book.update(problem((T2,), [judged, judged, judged]))
    # T1: 2 valid codes x 2 suites; T2: two replayed passes; the invalid code changes nothing.
    assert contents(book) == [(T2.key, 1), (T1.key, 4)]


def test_update_from_verdicts_per_step():
    book = MistakeBook.from_config(paper())
    judged = {T1.key: F, T2.key: P}
    book.update_per_step("q", [(T2, [F])] * 3)
    book.update(problem((T2,), [judged, {T1.key: P, T2.key: F}, judged]))
    assert contents(book) == [(T2.key, 4), (T1.key, 1)]
    book.update(problem((T2,), [{T1.key: P, T2.key: U}, {T1.key: P, T2.key: P}, judged]))
    assert contents(book) == [(T2.key, 3)]
    assert T3.key not in book.frequencies("q")


@pytest.mark.parametrize("config", [paper(), official()])
def test_unknown_and_invalid_change_nothing(config):
    book = MistakeBook.from_config(config)
    book.update(problem((), [{T1.key: U}] * 3))
    book.update(problem((), [{T1.key: F}] * 3, is_valid=(False, None, False)))
    assert len(book) == 0


def test_cap_pushes_out_the_rarest_then_the_oldest():
    book = MistakeBook("per_step", cap=2)
    book.update_per_step("q", [(T1, [F]), (T2, [F])])
    book.update_per_step("q", [(T2, [F]), (T3, [F])])
    assert contents(book) == [(T2.key, 2), (T3.key, 1)]
    assert (book.num_added, book.num_evicted) == (3, 1)


def test_questions_are_apart():
    book = MistakeBook()
    book.update_per_step("a", [(T1, [F])])
    assert book.retrieve("b", 5) == ()
    assert book.retrieve("a", 5) == (T1,)


def test_sampled_retrieval():
    book = MistakeBook("official", cap=0)
    book.update_official("q", [T1] * 90 + [T2] * 9 + [T3], [])
    draws = [book.retrieve("q", 1, "sampled", np.random.default_rng(i))[0] for i in range(300)]
    assert 0.8 < draws.count(T1) / 300 < 0.97
    assert set(book.retrieve("q", 8, "sampled", np.random.default_rng(0))) == {T1, T2, T3}
    same = [book.retrieve("q", 2, "sampled", np.random.default_rng(7)) for _ in range(2)]
    assert same[0] == same[1]
    assert book.retrieve("other", 2, "sampled", np.random.default_rng(0)) == ()
    with pytest.raises(ValueError, match="random generator"):
        book.retrieve("q", 1, "sampled")


VALUES = [
    "a\\nb'\"\\", "\ud800é", float("inf"), -0.0, {1: {2.0, 3.5}}, (1, [True, None]), b"\x00",
    10**80, {"k": frozenset({1})}, 1j,
]  # fmt: skip


def test_state_round_trip_through_json():
    """Values survive storage exactly: escapes, infinities, sets, tuples, large integers."""
    book = MistakeBook("per_step", cap=32)
    tests = [stored(value, expected=value) for value in VALUES]
    tests.append(StoredTest(make_test("f", (1,), {"key": [1]}), float("nan")))
    book.update_per_step("q", [(test, [F]) for test in tests])
    book.update_per_step("p", [(T1, [F])])
    state = json.loads(json.dumps(book.to_state()))
    copy = MistakeBook.from_state(state, "per_step", cap=32)
    assert copy.to_state() == state == book.to_state()
    assert (copy.num_added, len(copy)) == (12, 12)
    for before, after in zip(book.retrieve("q", 20), copy.retrieve("q", 20)):
        assert before.test.args == after.test.args
        assert repr(before.test.kwargs) == repr(after.test.kwargs)
        assert repr(before.expected) == repr(after.expected)
        assert after.reference_cpu_s == before.reference_cpu_s


def test_damaged_state_is_refused():
    book = MistakeBook()
    book.update_per_step("q", [(T1, [F])])
    state = json.loads(json.dumps(book.to_state()))
    state["questions"]["q"][0][2] = 5
    with pytest.raises(ValueError, match="checksum"):
        MistakeBook.from_state(state)
    with pytest.raises(ValueError, match="format"):
        MistakeBook.from_state({"format": 0})


def test_remove_invalid():
    book = MistakeBook()
    book.update_per_step("q", [(T1, [F]), (T2, [F])])
    book.update_per_step("p", [(T1, [F]), (T3, [F])])
    answers = {T1.key: True, T2.key: False, T3.key: None}
    assert book.remove_invalid(lambda question, test: answers[test.key]) == 1
    assert book.stored_tests() == {"q": (T1,), "p": (T1, T3)}
    assert book.num_removed == 1


def test_a_hundred_thousand_questions():
    """Retrieval and update must not depend on the size of the book."""
    book = MistakeBook()
    for i in range(100_000):
        book.update_per_step(str(i), [(T1, [F])])
    assert (len(book), book.num_questions) == (100_000, 100_000)
