"""Judging. If this breaks, right codes are punished, wrong ones paid, or a fault ends the run."""

import json
from concurrent.futures import Future

import pytest

from codea1_jax.coevo.config import official, paper
from codea1_jax.coevo.golden import golden_tests
from codea1_jax.coevo.judging import Judge, JudgeLimits, JudgeRequest
from codea1_jax.coevo.mistake_book import MistakeBook
from codea1_jax.coevo.oracle import Oracle, OracleLimits
from codea1_jax.coevo.rewards import problem_rewards
from codea1_jax.coevo.testcase import StoredTest, make_test
from codea1_jax.coevo.verdicts import unknown_share
from codea1_jax.data.record import Problem
from codea1_jax.sandbox.verdict import CallStatus, Outcome, RunResult, RunStatus, Verdict

SORT = Problem(
    "sort",
    "f",
    "q",
    "d",
    "def f(xs, reverse=False):\n    return sorted(xs)[::-1 if reverse else 1]",
)
GOOD = "def f(xs, reverse=False):\n    ys = sorted(xs)\n    return ys[::-1] if reverse else ys"
IDENTITY = "def f(xs, reverse=False):\n    return xs"


def block(text):
    return f"```python\n{text}\n```"


def suite(*tests):
    return block("\n".join(f"assert {test}" for test in tests))


FIVE = suite(
    "f([2, 1]) == [1, 2]",
    "f([]) == []",
    "f([1]) == [1]",
    "f([3, 1]) == [1, 3]",
    "f([1, 2]) == [1, 2]",
)


def judge(client, *requests, config=None, **options):
    oracle = Oracle(client)
    return Judge(client, oracle, config or paper(), **options).judge_batch(requests)


def statuses(problem, group=0, index=0):
    return [s.status.value for s in problem.suites[group][index].statements]


def verdicts(problem, m=0, group=0, index=0):
    judgements = problem.codes[m].judgements
    return [judgements[t.key].verdict.value for t in problem.suites[group][index].attacking]


def test_codes_and_suites(client):
    codes = [
        block(GOOD),
        block(IDENTITY),
        "no code",
        block("def g(x): pass"),
        block("import nothing_here"),
    ]
    (problem,) = judge(client, JudgeRequest(SORT, codes, [[FIVE, ""]] * 5))
    assert [code.is_valid for code in problem.codes] == [True, True, False, False, False]
    assert verdicts(problem, 0) == ["pass"] * 5
    assert verdicts(problem, 1, group=1) == ["fail", "pass", "pass", "fail", "pass"]
    assert problem.suites[0][1].statements == ()
    rewards = problem_rewards(problem, paper())
    assert rewards.coder.tolist() == [1.0, 0.6, 0.0, 0.0, 0.0]
    assert rewards.tester[:, 0].tolist() == [0.5, 0.7, 0.0, 0.0, 0.0]
    assert rewards.coder_mask.all()
    assert "nothing_here" in problem.codes[4].reason


def test_statement_statuses(client):
    text = suite(
        "f([1]) == [1]", "f([1]) == [1]", "f([2, 1]) == [2, 1]", "f(5) == 5", "f([1]) > [0]",
        "len([1]) == 1", "f(xs=[1]) == [1]", "f(x) == [1]", "f([2]) == [2]",
    )  # fmt: skip
    request = JudgeRequest(SORT, [block(GOOD)], [[text]])
    expected = [
        "valid", "duplicate", "wrong_answer", "invalid", "invalid", "invalid", "duplicate",
        "invalid", "valid",
    ]  # fmt: skip
    (problem,) = judge(client, request, config=paper(tests_per_suite=9))
    assert statuses(problem) == expected
    assert verdicts(problem) == ["pass"] * 3
    assert all(s.reason for s in problem.suites[0][0].statements if s.status.value != "valid")
    (problem,) = judge(client, request)  # K = 5: the rest is counted, not executed
    assert statuses(problem) == expected[:5] + ["not_executed"] * 4
    (problem,) = judge(client, request, config=official())
    assert statuses(problem) == expected
    assert [s.is_dropped for s in problem.suites[0][0].statements].count(True) == 1


def test_wrong_answers_attack_unless_told_otherwise(client):
    """The reference's answer replaces the predicted one."""
    request = JudgeRequest(SORT, [block(IDENTITY)], [[suite("f([2, 1]) == [2, 1]")]])
    (problem,) = judge(client, request)
    assert (statuses(problem), verdicts(problem)) == (["wrong_answer"], ["fail"])
    (problem,) = judge(client, request, config=paper(keep_wrong_answer=False))
    assert (statuses(problem), verdicts(problem)) == (["wrong_answer"], [])


def test_calls_without_predicted_answers(client):
    request = JudgeRequest(SORT, [block(IDENTITY)], [[block("f([2, 1])\nf([1])\nf(3)")]])
    (problem,) = judge(client, request, config=paper(predicted_answer=False))
    assert statuses(problem) == ["valid", "valid", "invalid"]
    assert verdicts(problem) == ["fail", "pass"]


def test_history_goes_first_and_shares_runs_with_equal_tests(client):
    remembered = (
        StoredTest(make_test("f", ([9, 8],)), [8, 9]),
        StoredTest(make_test("f", ([2, 1],)), [1, 2]),
    )
    runs = Recorder(client)
    request = JudgeRequest(SORT, [block(IDENTITY)], [[FIVE, FIVE]], remembered)
    (problem,) = judge(runs, request)
    (run,) = [run for run in runs.runs if run.program == IDENTITY]
    assert [call.args[0] for call in run.calls] == [[9, 8], [2, 1], [], [1], [3, 1], [1, 2]]
    assert [problem.codes[0].judgements[t.key].verdict.value for t in remembered] == ["fail"] * 2
    book = MistakeBook()
    book.update(problem)
    assert len(book) == 3
    assert problem_rewards(problem, paper()).pass_hist.tolist() == [0.0]


def test_suites_against_all_codes(client):
    request = JudgeRequest(SORT, [block(GOOD), block(IDENTITY)], [[FIVE, FIVE]], targets=[(0, 1)])
    (problem,) = judge(client, request)
    assert problem_rewards(problem, paper()).tester.tolist() == [[pytest.approx(0.6)] * 2]


def test_malformed_requests(client):
    with pytest.raises(ValueError, match="groups of suites"):
        judge(client, JudgeRequest(SORT, [block(GOOD)], [[FIVE], [FIVE]]))
    with pytest.raises(ValueError, match="targets"):
        judge(client, JudgeRequest(SORT, [block(GOOD)], [[FIVE]], targets=[(1,)]))


def test_golden_tests(client):
    golden = ("assert f([2, 1]) == [1, 2]", "assert f([1]) == [1]", "assert len(f([])) == 0")
    problem = Problem("g", "f", "q", "d", SORT.reference, golden_tests=golden)
    tests = golden_tests(problem)
    assert [t.expected for t in tests] == [[1, 2], [1]]
    request = JudgeRequest(problem, [block(GOOD), block(IDENTITY), "x y"], history=tests)
    (found,) = judge(client, request)
    assert problem_rewards(found, paper()).coder.tolist() == [1.0, 0.5, 0.0]


def test_rollout_log_is_json_with_short_values(client):
    reference = Problem("big", "f", "q", "d", "def f(n):\n    return [n] * 5000")
    request = JudgeRequest(reference, [block("def f(n): return 'x' * n")], [[suite("f(7) == 0")]])
    (problem,) = judge(client, request)
    text = json.dumps(problem.to_json())
    assert len(text) < 2000
    assert problem.counts()["statements/wrong_answer"] == 1


HOSTILE = [
    "", "```", "\0", "```python\n" + "(" * 3000, "def f(xs): return [" + "[" * 60 + "]" * 61,
    "\ud800",
    "```python\nassert f(" + "9" * 5000 + ") == 1\n```", "x" * 200_000,
    block("assert f(f) == f\nassert f(*[1], **{}) == 1\nassert f('\\ud800') == '\\ud800'"),
    block("assert f([1] * 20000) == 0\nassert f('a' * 65000) == 1\nassert f(10**1000) == 1"),
    block("def f(xs):\n    return '\\ud800\\0'"),
]  # fmt: skip


def test_hostile_text_never_raises(client):
    (problem,) = judge(client, JudgeRequest(SORT, HOSTILE, [HOSTILE] * len(HOSTILE)))
    problem_rewards(problem, paper())
    MistakeBook().update(problem)
    json.dumps(problem.to_json())
    assert problem.counts()["codes/unknown"] == 0


class TestTime:
    """If this breaks, slowness of the test is charged to the code, or hangs are free."""

    SLOW = (
        "import time\ndef f(n):\n    end = time.process_time() + n\n"
        "    while time.process_time() < end: pass\n    return 0"
    )

    def test_a_hang_fails_its_own_test_only(self, client):
        code = "def f(xs, reverse=False):\n    while not xs: pass\n    return sorted(xs)"
        (problem,) = judge(client, JudgeRequest(SORT, [block(code)], [[FIVE, FIVE]]))
        assert verdicts(problem) == ["pass", "fail", "pass", "pass", "pass"]

    def test_hanging_on_purpose_is_not_excused(self, client):
        """After its restarts are used up, tests that never ran prove nothing and do not pay."""
        code = "def f(xs, reverse=False):\n    while xs != [0]: pass\n    return xs"
        tests = suite(*[f"f([{n}]) == [{n}]" for n in range(7)])
        config = paper(tests_per_suite=7)
        limits = JudgeLimits(min_call_s=0.2)
        request = JudgeRequest(SORT, [block(code)], [[tests]])
        (problem,) = judge(client, request, config=config, limits=limits)
        found = verdicts(problem)
        assert found[0] == "pass"
        assert found.count("fail") >= 1
        assert found[-1] == "unknown"
        rewards = problem_rewards(problem, config)
        assert rewards.coder[0] == pytest.approx(1 / 7)
        assert not rewards.tester_mask.any()
        assert unknown_share([problem]) == 0
        book = MistakeBook()
        book.update(problem)
        assert len(book) == found.count("fail")

    def test_timeouts_are_unknown_where_the_reference_was_slow(self, client):
        problem = Problem("slow", "f", "q", "d", self.SLOW)
        limits = JudgeLimits(min_call_s=0.2, max_call_s=0.4)
        hang = block("def f(n):\n    while True: pass")
        request = JudgeRequest(problem, [hang], [[suite("f(0.1) == 0", "f(0) == 0")]])
        (found,) = judge(client, request, limits=limits)
        assert verdicts(found) == ["unknown", "fail"]

    def test_slow_and_failing_references(self, client):
        problem = Problem("slow", "f", "q", "d", self.SLOW)
        oracle = Oracle(client, limits=OracleLimits(call_cpu_s=0.3))
        tests = [make_test("f", (n,)) for n in (5, 0, 6, "a", 0.0, 7, 8, 9, 10, 0.01)]
        (answers,) = oracle.answers([(problem, tests)])
        found = [answers[t.key].status for t in tests]
        assert found == ["invalid", "valid", "invalid", "invalid", "valid"] + ["invalid"] * 4 + [
            "valid"
        ]


class TestOracle:
    """If this breaks, accidents of one process become facts."""

    @pytest.mark.parametrize(
        "body",
        [
            "return list({'a', 'b', 'c', 'd', 'e'})",
            "import random; return random.random()",
            "import time; return time.time()",
            "return id(object())",
            "global n; n += 1; return n",
            "return object()",
            "return (i for i in range(3))",
            "return lambda: 0",
            "return 'x' * 70_000",
            "raise ValueError",
            "import os; os._exit(0)",
            "import sys; sys.exit()",
        ],
    )
    def test_no_stable_plain_answer(self, client, body):
        problem = Problem("q", "f", "q", "d", f"n = 0\ndef f(x):\n    {body}")
        tests = [make_test("f", (n,)) for n in range(2)]
        (answers,) = Oracle(client).answers([(problem, tests)])
        assert [answers[t.key].status for t in tests] == ["invalid"] * 2
        assert all(answers[t.key].reason for t in tests)

    def test_sets_and_nan_are_stable(self, client):
        problem = Problem("q", "f", "q", "d", "def f(x):\n    return {x, 'a', 'b'}, float('nan')")
        test = make_test("f", ("c",))
        (answers,) = Oracle(client).answers([(problem, [test])])
        assert answers[test.key].expected[0] == {"a", "b", "c"}

    def test_known_answers_are_free(self, client):
        runs = Recorder(client)
        oracle = Oracle(runs)
        tests = [make_test("f", ([n],)) for n in range(3)]
        first = oracle.answers([(SORT, tests)])
        assert len(runs.runs) == 2
        assert runs.runs[0].seed % 2 != runs.runs[1].seed % 2
        assert oracle.answers([(SORT, tests[:2]), (SORT, tests[1:])])[0].keys() <= first[0].keys()
        assert len(runs.runs) == 2
        assert (oracle.num_hits, oracle.num_misses) == (4, 3)
        oracle.answers([(Problem("sort", "f", "", "", "def f(x): return 1"), tests)])
        assert len(runs.runs) == 4  # the same id with another reference is another question

    def test_cache_is_bounded(self, client):
        oracle = Oracle(client, cache_bytes=2000)
        tests = [make_test("f", ([n],)) for n in range(20)]
        oracle.answers([(SORT, tests)])
        oracle.answers([(SORT, tests[-3:])])
        assert oracle.num_hits == 3
        oracle.answers([(SORT, tests[:3])])
        assert oracle.num_misses == 23

    def test_check(self, client):
        oracle = Oracle(client)
        right = StoredTest(make_test("f", ([2, 1],)), [1, 2])
        wrong = StoredTest(make_test("f", ([3, 1],)), [3, 1])
        broken = Problem("b", "f", "", "", "import nothing_here")
        found = oracle.check([(SORT, [right, wrong]), (broken, [right])])
        assert found == [{right.key: True, wrong.key: False}, {right.key: None}]
        book = MistakeBook()
        book.update_per_step("sort", [(right, [Verdict.FAIL]), (wrong, [Verdict.FAIL])])
        assert book.remove_invalid(lambda question, test: found[0][test.key]) == 1
        assert book.stored_tests() == {"sort": (right,)}

    def test_timed(self, client):
        """Golden tests the reference needs long for must not fail codes that are as slow."""
        problem = Problem("slow", "f", "q", "d", TestTime.SLOW)
        tests = [StoredTest(make_test("f", (n,)), answer) for n, answer in [(0.2, 0), (0, 1)]]
        (timed,) = Oracle(client).timed([(problem, tests)])
        assert [t.key for t in timed] == [tests[0].key]
        assert 0.2 <= timed[0].reference_cpu_s < 2


class Recorder:
    """Passes runs on and remembers them."""

    def __init__(self, client):
        self._client = client
        self.runs = []

    def submit(self, run):
        self.runs.append(run)
        return self._client.submit(run)


class FailingSandbox:
    """Answers INTERNAL to runs of the given programs, passes the others on."""

    def __init__(self, client, programs):
        self._client = client
        self._programs = programs

    def submit(self, run):
        if run.program not in self._programs:
            return self._client.submit(run)
        outcomes = tuple(Outcome(CallStatus.UNKNOWN) for _ in run.calls)
        future = Future()
        future.set_result(RunResult(RunStatus.INTERNAL, outcomes, "sandbox on fire"))
        return future


class TestSandboxTrouble:
    """If this breaks, a broken sandbox trains the models: its failures are paid as theirs."""

    def test_candidate_runs(self, client):
        client = FailingSandbox(client, [IDENTITY])
        request = JudgeRequest(SORT, [block(GOOD), block(IDENTITY)], [[FIVE]] * 2)
        (problem,) = judge(client, request)
        rewards = problem_rewards(problem, paper())
        assert rewards.coder_mask.tolist() == [True, False]
        assert rewards.tester_mask.tolist() == [[True], [False]]
        assert "fire" in problem.codes[1].reason
        assert unknown_share([problem]) == 0.5
        book = MistakeBook()
        book.update(problem)
        assert len(book) == 0

    def test_reference_runs(self, client):
        client = FailingSandbox(client, [SORT.reference])
        oracle = Oracle(client)
        judge_ = Judge(client, oracle, paper())
        request = JudgeRequest(SORT, [block(GOOD)], [[FIVE]])
        problem = judge_.judge_problem(request)
        assert statuses(problem) == ["unknown"] * 5
        rewards = problem_rewards(problem, paper())
        assert not rewards.coder_mask.any()
        assert not rewards.tester_mask.any()
        assert unknown_share([problem]) > 0
        client._programs = []  # the sandbox is well again: nothing of it was remembered
        assert statuses(judge_.judge_problem(request)) == ["valid"] * 5

    def test_a_reference_that_does_not_load_blames_nobody(self, client):
        broken = Problem("b", "f", "q", "d", "import nothing_here\ndef f(x): return x")
        (problem,) = judge(client, JudgeRequest(broken, [block(GOOD)], [[FIVE]]))
        assert statuses(problem) == ["unknown"] * 5
        assert "nothing_here" in problem.suites[0][0].statements[0].reason
