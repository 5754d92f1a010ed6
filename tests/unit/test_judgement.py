"""Judging in the background. If this breaks, verdicts go to the wrong questions or a run hangs."""

import functools
import random
import threading
import time

import jax
import pytest

from codea1_jax import distributed, judgement
from codea1_jax.coevo.verdicts import ProblemVerdicts
from codea1_jax.judgement import Judging

HANG_S = 30.0


def verdicts_of(q: int) -> ProblemVerdicts:
    return ProblemVerdicts(f"question {q}", (), (), ())


def judge_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("judge")]


class FakeSandbox:
    """Judges that wait until they are let go, by `close` at the latest."""

    def __init__(self):
        self.is_over = threading.Event()

    def judge(self, q: int) -> ProblemVerdicts:
        assert self.is_over.wait(HANG_S)
        return verdicts_of(q)

    def close(self) -> None:
        self.is_over.set()


@pytest.fixture
def sandbox():
    return FakeSandbox()


def test_verdicts_come_in_the_order_of_the_questions(sandbox):
    """Whatever the order of finishing samples, and however long a question takes."""
    rng = random.Random(0)
    num = 12

    def judge(q: int, delay_s: float) -> ProblemVerdicts:
        time.sleep(delay_s)
        return verdicts_of(q)

    with Judging(num, sandbox.close) as judging:
        for q in rng.sample(range(num), num):
            judging.start(q, functools.partial(judge, q, rng.uniform(0, 0.05)))
        told = []
        found = judging.verdicts(lambda: told.append(1))
    assert found == [verdicts_of(q) for q in range(num)]
    assert len(told) == judging.num_own == num
    assert not sandbox.is_over.is_set()
    assert not judge_threads()


def test_questions_do_not_wait_for_each_other(sandbox):
    """Each is sent at once, or the sandbox's deadlines would add up when it is dead."""
    together = threading.Barrier(8, timeout=HANG_S)

    def judge(q: int) -> ProblemVerdicts:
        together.wait()
        return verdicts_of(q)

    with Judging(8, sandbox.close) as judging:
        for q in range(8):
            judging.start(q, functools.partial(judge, q))
        assert len(judging.verdicts()) == 8


def broken() -> ProblemVerdicts:
    raise ZeroDivisionError("a bug of ours")


def test_what_a_judge_raises_ends_the_wait_at_once(sandbox):
    def judge_all() -> None:
        with Judging(3, sandbox.close) as judging:
            judging.start(0, lambda: sandbox.judge(0))
            judging.start(2, broken)
            judging.start(1, lambda: sandbox.judge(1))
            judging.verdicts()

    start = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="of ours"):
        judge_all()
    assert time.monotonic() - start < HANG_S / 2
    assert not judge_threads()


def test_what_a_judge_raises_shows_while_others_are_sampled(sandbox):
    def sample() -> None:
        with Judging(2, sandbox.close) as judging:
            judging.check()  # nothing has been judged, so nothing is wrong
            judging.start(0, lambda: sandbox.judge(0))
            judging.start(1, broken)
            deadline = time.monotonic() + HANG_S
            while time.monotonic() < deadline:
                judging.check()

    with pytest.raises(ZeroDivisionError, match="of ours"):
        sample()
    assert not judge_threads()


def test_an_interrupt_leaves_no_thread(sandbox):
    """The sandbox is given up, so that nobody waits for runs whose verdicts are not wanted."""

    def sample() -> None:
        with Judging(2, sandbox.close) as judging:
            judging.start(0, lambda: sandbox.judge(0))
            assert judge_threads()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample()
    assert sandbox.is_over.is_set()
    assert not judge_threads()


def test_the_sandbox_is_busy_while_any_question_is_judged(sandbox, monkeypatch):
    """Questions at the same time count once, gaps between them not at all."""
    now = 0.0
    monkeypatch.setattr(judgement, "monotonic", lambda: now)
    first, second = FakeSandbox(), FakeSandbox()
    with Judging(3, sandbox.close) as judging:
        judging.start(0, lambda: first.judge(0))
        now = 1.0
        judging.start(1, lambda: second.judge(1))
        now = 3.0
        first.close()
        second.close()
        wait_until(lambda: judging.busy_s == 3.0)
        now = 10.0
        sandbox.close()
        judging.start(2, lambda: sandbox.judge(2))
        judging.verdicts()
    assert judging.busy_s == 3.0


def wait_until(is_true) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_process_judges_its_share(sandbox, monkeypatch):
    """Two processes that both judge everything would be no faster than one."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    others = [verdicts_of(0), verdicts_of(2), verdicts_of(4)]
    monkeypatch.setattr(distributed, "exchange", lambda own: [others, own])
    judged = []

    def judge(q: int) -> ProblemVerdicts:
        judged.append(q)
        return verdicts_of(q)

    with Judging(5, sandbox.close) as judging:
        for q in (3, 4, 0, 1, 2):
            judging.start(q, functools.partial(judge, q))
        found = judging.verdicts()
    assert sorted(judged) == [1, 3]
    assert judging.num_own == 2
    assert found == [verdicts_of(q) for q in range(5)]
