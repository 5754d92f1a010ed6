"""Known ways to earn reward without earning it. If one opens again, training will find it.

Each case is a loophole or a wrong verdict of systems that run tests as source text in the
candidate's process, stated as what must hold here.
"""

import json

import pytest

from codea1_jax.coevo.config import official, paper
from codea1_jax.coevo.judging import Judge, JudgeLimits, JudgeRequest
from codea1_jax.coevo.mistake_book import MistakeBook
from codea1_jax.coevo.oracle import Oracle, OracleLimits
from codea1_jax.coevo.rewards import problem_rewards
from codea1_jax.data.record import Problem

# Short enough for hanging programs to cost little here, long enough for all others.
QUICK = JudgeLimits(min_call_s=0.3)
PRESETS = pytest.mark.parametrize("config", [paper(), official()], ids=["paper", "official"])


def block(text):
    return f"```python\n{text}\n```"


def suite(*tests):
    return block("\n".join(f"assert {test}" for test in tests))


@pytest.fixture
def judged(client):
    """Judges codes of one question, each attacked by the same suites: (verdicts, rewards)."""

    def judge(reference, codes, suites, config=None, history=(), limits=QUICK):
        config = config or paper()
        problem = Problem("q", "f", "question", "description", reference)
        request = JudgeRequest(
            problem, [block(code) for code in codes], [suites] * len(codes), history
        )
        oracle = Oracle(client, limits=OracleLimits(call_cpu_s=0.5))
        (found,) = Judge(client, oracle, config, limits=limits).judge_batch([request])
        return found, problem_rewards(found, config)

    return judge


def statuses(found, index=0, group=0):
    return [s.status.value for s in found.suites[group][index].statements]


def verdicts(found, m=0, index=0):
    tests = found.suites[m][index].attacking
    return [found.codes[m].judgements[test.key].verdict.value for test in tests]


DOUBLE = "def f(n):\n    return 2 * n"
DOUBLE_SUITE = suite("f(1) == 2", "f(2) == 4", "f(3) == 6", "f(4) == 8", "f(5) == 10")


# Programs that answer nothing right and try to be paid all the same.
ATTACKS = {
    "printed markers": """
def f(n): return 0
import os
for s in range(8):
    for i in range(20):
        print(f'__GEN_PASS__{s}_{i}', flush=True)
print('__CODE_VALID__0', flush=True)
os._exit(0)
""",
    "printed markers and a normal end": """
def f(n):
    print('__PASS__', 'PASS')
    return 0
""",
    "equal to everything": """
class E:
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    def __hash__(self): return 0
def f(n): return E()
""",
    "an int subclass equal to everything": """
class E(int):
    def __eq__(self, o): return True
    __hash__ = int.__hash__
def f(n): return E(0)
""",
    "reads the expected values": """
def f(n):
    import sys
    g = dict(globals())
    for v in [g.get('valid_asserts_list'), g.get('expected'), g.get('results')]:
        if v: return v[0]
    frame = sys._getframe()
    while frame:
        for k, v in list(frame.f_locals.items()) + list(frame.f_globals.items()):
            if k in ('expected', 'answer', 'expectations'): return v
        frame = frame.f_back
    return None
""",
    "patches builtins": """
import builtins
builtins.all = lambda *a: True
builtins.len = lambda *a: 0
builtins.print = lambda *a, **k: None
builtins.isinstance = lambda *a: True
def f(n): return 0
""",
    "patches the comparison": """
import sys
for name in list(sys.modules):
    m = sys.modules[name]
    for attribute in ('equal', '_equal', 'canonical_key'):
        if hasattr(m, attribute): setattr(m, attribute, lambda *a, **k: True)
def f(n): return 0
""",
    "exits in the call": """
import os
def f(n): os._exit(0)
""",
    "raises SystemExit(0)": """
import sys
def f(n): sys.exit(0)
""",
    "writes to every descriptor": """
import os
def f(n):
    for fd in range(3, 64):
        try: os.write(fd, b'\\x01' * 64)
        except OSError: pass
    return 0
""",
}


class TestCandidateAgainstJudge:
    """If this breaks, the coder is paid for attacking the judge."""

    @PRESETS
    @pytest.mark.parametrize(
        "attack",
        ATTACKS.items(),
        ids=lambda item: item[0],
    )
    def test_no_reward(self, judged, attack, config):
        found, rewards = judged(DOUBLE, [attack[1]], [DOUBLE_SUITE], config)
        assert rewards.coder.tolist() == [0.0]
        assert "pass" not in [j.verdict.value for j in found.codes[0].judgements.values()]

    def test_one_candidate_does_not_change_the_verdict_of_another(self, judged):
        """Each runs in its own process, and verdicts never come from the order of printed lines."""
        patch = (
            "import builtins\nbuiltins.sorted = lambda x: [0]\ndef f(n): return 0\nprint('PASS')"
        )
        bad_import = "import no_such_module\ndef f(n): return 2 * n"
        leave = "import os\nos._exit(0)"
        uses_global = "total = 0\ndef f(n):\n    global total\n    total = 2 * n\n    return total"
        uses_sorted = "def f(n):\n    return sorted([2 * n])[0]"
        swallow = (
            "def f(n):\n    while True:\n        try:\n            while True: pass\n"
            "        except: pass"
        )
        codes = [patch, bad_import, leave, uses_global, uses_sorted, swallow]
        found, rewards = judged(DOUBLE, codes, [suite("f(3) == 6")])
        assert rewards.coder.tolist() == [0, 0, 0, 1, 1, 0]
        assert [code.is_valid for code in found.codes] == [True, False, False, True, True, True]

    def test_one_candidate_s_import_does_not_rescue_another(self, judged):
        reference = "import math\ndef f(n):\n    return math.floor(n)"
        codes = ["import math\ndef f(n): return math.floor(n)", "def f(n): return math.floor(n)"]
        _, rewards = judged(reference, codes, [suite("f(1.5) == 1", "f(2.5) == 2")])
        assert rewards.coder.tolist() == [1, 0]


class TestReferenceLeaks:
    """If this breaks, an empty program earns what the reference deserves."""

    @PRESETS
    @pytest.mark.parametrize(
        ("reference", "code"),
        [
            ("class f:\n    def __new__(cls, n): return 2 * n", "pass"),
            ("f = lambda n: 2 * n", "pass"),
            ("def helper(n): return 2 * n\nf = helper", "pass"),
            ("def helper(n): return 2 * n\nalias = helper\ndef f(n): return alias(n)",
             "def f(n): return alias(n)"),
            ("TABLE = {n: 2 * n for n in range(9)}\ndef f(n): return TABLE[n]",
             "def f(n): return TABLE[n]"),
            ("import math\ndef f(n): return math.floor(2 * n)",
             "def f(n): return math.floor(2 * n)"),
        ],
    )  # fmt: skip
    def test_nothing_of_the_reference_is_in_reach(self, judged, reference, code, config):
        found, rewards = judged(reference, [code], [DOUBLE_SUITE], config)
        assert statuses(found) == ["valid"] * 5
        assert rewards.coder.tolist() == [0.0]

    def test_names_of_the_reference_are_not_taken_from_the_candidate(self, judged):
        reference = (
            "def gcd(a, b):\n    return gcd(b, a % b) if b else a\n"
            "def f(a, b):\n    return gcd(a, b)"
        )
        code = "from math import gcd\ndef f(a, b): return gcd(a, b)"
        _, rewards = judged(reference, [code], [suite("f(12, 18) == 6", "f(7, 3) == 1")])
        assert rewards.coder.tolist() == [1.0]

    def test_candidate_cannot_mutate_the_answers(self, judged):
        """Results that alias arguments or globals are compared as they were when returned."""
        reference = "def f(xs):\n    return xs"
        code = "def f(xs):\n    xs.clear()\n    return xs"
        found, rewards = judged(reference, [code], [suite("f([1]) == [1]", "f([2]) == [2]")])
        assert (verdicts(found), rewards.coder.tolist()) == (["fail", "fail"], [0.0])


class TestWrongVerdicts:
    """If this breaks, honest codes are punished by accident."""

    def test_an_answer_that_cannot_be_evaluated_does_not_shift_the_others(self, judged):
        tests = suite("f(1) == 2", "f(2) == unknown", "f(3) == 6", "f(4) == 1 / 0", "f(5) == 10")
        found, rewards = judged(DOUBLE, [DOUBLE], [tests])
        assert statuses(found) == ["valid", "invalid", "valid", "invalid", "valid"]
        assert verdicts(found) == ["pass"] * 3
        assert rewards.coder.tolist() == [1.0]

    def test_more_than_ten_tests(self, judged):
        """Test 1 must not take the verdict of test 10."""
        code = "def f(n):\n    return 0 if n == 1 else 2 * n"
        tests = suite(*[f"f({n}) == {2 * n}" for n in range(12)])
        found, _ = judged(DOUBLE, [code], [tests], paper(tests_per_suite=12))
        assert verdicts(found) == ["pass", "fail"] + ["pass"] * 10

    @PRESETS
    def test_a_hang_does_not_fail_later_suites(self, judged, config):
        code = "def f(n):\n    while n == 1: pass\n    return 2 * n"
        tests = [suite("f(1) == 2"), suite("f(2) == 4", "f(3) == 6"), suite("f(4) == 8")]
        found, rewards = judged(DOUBLE, [code], tests, config)
        assert [verdicts(found, index=i) for i in range(3)] == [["fail"], ["pass"] * 2, ["pass"]]
        assert rewards.adversarial[0, 1:].tolist() == [0, 0]
        book = MistakeBook.from_config(config)
        book.update(found)
        assert len(book) == 1

    def test_a_call_that_is_too_slow_for_the_reference_harms_nobody(self, judged):
        reference = "def f(n):\n    while n > 10: pass\n    return 2 * n"
        found, rewards = judged(
            reference, [DOUBLE], [suite("f(11) == 22", "f(1) == 2"), DOUBLE_SUITE]
        )
        assert statuses(found) == ["invalid", "valid"]
        assert rewards.coder.tolist() == [1.0]

    def test_a_bad_import_of_the_candidate_does_not_stop_the_reference(self, judged):
        found, rewards = judged(DOUBLE, ["import no_such_module\n" + DOUBLE], [DOUBLE_SUITE])
        assert statuses(found) == ["valid"] * 5
        assert (found.codes[0].is_valid, rewards.coder.tolist()) == (False, [0.0])

    def test_imports_stay_where_the_code_has_them(self, judged):
        code = (
            "try:\n    import no_such_module\nexcept ImportError:\n    import math\n"
            "class A:\n    import re\n" + DOUBLE
        )
        _, rewards = judged(DOUBLE, [code], [DOUBLE_SUITE])
        assert rewards.coder.tolist() == [1.0]

    def test_exit_in_one_call_leaves_the_others(self, judged):
        for leave in ("raise SystemExit", "import os; os._exit(0)", "raise KeyboardInterrupt"):
            code = f"def f(n):\n    if n == 2:\n        {leave}\n    return 2 * n"
            found, rewards = judged(DOUBLE, [code], [DOUBLE_SUITE])
            assert verdicts(found) == ["pass", "fail", "pass", "pass", "pass"], leave
            assert rewards.coder[0] == pytest.approx(0.8)

    def test_main_blocks_do_not_run(self, judged):
        code = DOUBLE + "\nif __name__ == '__main__':\n    print(f(int(input())))"
        _, rewards = judged(DOUBLE, [code], [DOUBLE_SUITE])
        assert rewards.coder.tolist() == [1.0]

    @PRESETS
    def test_code_without_the_entry_point_is_not_valid(self, judged, config):
        for code in ("pass", "def g(n): return 2 * n", "f = 3", "f: int"):
            found, rewards = judged(DOUBLE, [code], [DOUBLE_SUITE], config)
            assert (found.codes[0].is_valid, rewards.coder.tolist()) == (False, [0.0])


class TestEquality:
    """If this breaks, equal values fail or different ones pass."""

    @pytest.mark.parametrize(
        ("reference", "code", "verdict"),
        [
            ("return sum([0.1, 0.2, 0.3])", "return sum([0.3, 0.2, 0.1])", "pass"),
            ("return float('nan')", "return float('nan')", "pass"),
            ("return [float('inf'), float('nan')]", "return [float('inf'), float('nan')]", "pass"),
            ("return 1", "return True", "fail"),
            ("return True", "return 1", "fail"),
            ("return 1", "return 1.0", "pass"),
            ("return [1, 2]", "return (1, 2)", "pass"),
            ("return {'a', 'b', 'c', 'd'}", "return {'d', 'c', 'b', 'a'}", "pass"),
            ("return {'a': 1, 'b': 2}", "return {'b': 2, 'a': 1}", "pass"),
            ("return '1'", "return 1", "fail"),
            ("return None", "pass", "pass"),
            ("return 1.0", "return 1.001", "fail"),
            ("return [1]", "return iter([1])", "fail"),
            ("return [1]", "return map(int, '1')", "fail"),
        ],
    )
    def test_values(self, judged, reference, code, verdict):
        found, _ = judged(
            f"def f(x):\n    {reference}", [f"def f(x):\n    {code}"], [suite("f(0) == 0")]
        )
        assert verdicts(found) == [verdict]

    @pytest.mark.parametrize(
        "body",
        ["return object()", "return (i for i in [1])", "return list(set('abcdefgh'))",
         "import random; return random.random()", "import time; return time.time()", "return f",
         "return id(f)", "return iter([1])"],
    )  # fmt: skip
    def test_answers_that_no_code_could_give_are_no_tests(self, judged, body):
        """Opaque, unordered, random and consumed values would be free attacks."""
        found, rewards = judged(
            f"def f(x):\n    {body}", [DOUBLE], [suite("f(0) == 0", "f(1) == 0")]
        )
        assert statuses(found) == ["invalid"] * 2
        assert rewards.tester.tolist() == [[0.0]]


class TestBookOfText:
    """If this breaks, one odd value poisons every later code of its question."""

    TESTS = (
        r"f('a\\b') == 0", r"f('\n\t\x00') == 0", '''f("it's \\"quoted\\"") == 0''',
        "f(float('nan')) == 0", "f(float('inf')) == 0", "f('\\ud800') == 0", "f({'b', 'a'}) == 0",
        "f({1: (2, [3.5])}) == 0", "f(b'\\x00\\xff') == 0", "f(10**40) == 0", "f(None) == 0",
    )  # fmt: skip

    @PRESETS
    def test_values_survive_storage_and_leave_when_passed(self, judged, config):
        """Backslashes, both kinds of quotes, nan, inf, sets: the same test after a round trip."""
        reference = "def f(x):\n    return [x, repr(x) if not isinstance(x, (set, dict)) else 0]"
        wrong = "def f(x):\n    return 0"
        config = type(config)(**{**vars(config), "tests_per_suite": len(self.TESTS)})
        found, _ = judged(reference, [wrong], [suite(*self.TESTS)], config)
        assert statuses(found) == ["wrong_answer"] * len(self.TESTS)
        book = MistakeBook.from_config(config)
        book.update(found)
        assert len(book) == len(self.TESTS)
        book = MistakeBook.from_state(
            json.loads(json.dumps(book.to_state())), config.book_rule, config.book_cap
        )
        history = book.retrieve("q", len(self.TESTS))
        found, rewards = judged(reference, [reference, wrong], [""], config, history)
        assert rewards.pass_hist.tolist() == [1.0, 0.0]
        found, _ = judged(reference, [reference], [""], config, history)
        book.update(found)
        assert (len(book), book.num_removed) == (0, len(self.TESTS))

    def test_values_without_a_plain_form_never_enter(self, judged):
        reference = (
            "import collections\nclass Node: pass\ndef f(n):\n"
            "    return [Node(), (i for i in []), lambda: 0, collections][n]"
        )
        tests = suite("f(0) == 1", "f(1) == 1", "f(2) == 1", "f(3) == 1")
        found, _ = judged(reference, [DOUBLE], [tests])
        assert statuses(found) == ["invalid"] * 4

    def test_subclasses_become_what_they_hold(self, judged):
        """defaultdict, Counter and named tuples are compared and stored by their content."""
        reference = (
            "from collections import Counter, defaultdict\ndef f(s):\n"
            "    d = defaultdict(int)\n    d.update(Counter(s))\n    return d"
        )
        code = "def f(s):\n    return {c: s.count(c) for c in s}"
        found, rewards = judged(reference, [code], [suite("f('aab') == {'a': 2, 'b': 1}")])
        assert (statuses(found), rewards.coder.tolist()) == (["valid"], [1.0])

    def test_one_test_is_one_entry_whatever_its_spelling(self, judged):
        tests = [
            suite("f({'a', 'b', 'c'}) == 3"),
            suite("f(set(['c', 'b', 'a'])) == 3"),
            block("x = {'b', 'a', 'c'}\nassert f(x) == 3"),
        ]
        found, _ = judged("def f(x):\n    return len(x)", ["def f(x): return 0"], tests)
        book = MistakeBook()
        book.update(found)
        assert list(book.frequencies("q").values()) == [1]

    def test_unexecuted_tests_never_enter(self, judged):
        code = "def f(n):\n    while True: pass"
        tests = [suite(*[f"f({5 * s + n}) == 0" for n in range(5)]) for s in range(2)]
        found, rewards = judged(DOUBLE, [code], tests)
        num_failed = verdicts(found, index=0).count("fail") + verdicts(found, index=1).count("fail")
        book = MistakeBook()
        book.update(found)
        assert 0 < len(book) == num_failed < 10
        assert rewards.tester[0, 1] == 0
        assert not rewards.tester_mask[0, 1]


class TestTesterLoopholes:
    """If this breaks, the tester earns reward without testing the function."""

    @PRESETS
    def test_calls_of_something_else(self, judged, config):
        tests = suite(*["abs(-3) == 3"] * 4, "isinstance(f(1), int) == True", "len([f(1)]) == 1")
        found, rewards = judged(DOUBLE, [DOUBLE], [tests], config)
        assert set(statuses(found)) <= {"invalid", "not_executed"}
        assert rewards.tester.tolist() == [[0.0]]

    @PRESETS
    @pytest.mark.parametrize(
        "argument",
        ["random()", "__import__('random').random()", "len(valid_asserts_list) + 1", "globals()",
         "f.__code__.co_code", "f.__code__.co_argcount", "exec('f = None')", "(f := 3)", "id(f)",
         "[n for n in [1]][0]", "open('/etc/passwd').read()", "__name__", "f(1)", "print(1)",
         "lambda: 0", "input()"],
    )  # fmt: skip
    def test_arguments_that_can_tell_reference_and_candidate_apart(self, judged, argument, config):
        """Arguments are data: both see the same values, or there is no test."""
        tests = suite(f"f({argument}) == 2", f"f(n={argument}) == 2")
        found, rewards = judged(DOUBLE, [DOUBLE], [tests], config)
        assert set(statuses(found)) == {"invalid"}
        assert rewards.tester.tolist() == [[0.0]]
        assert not found.codes[0].judgements

    def test_wrong_answers_can_be_kept_from_attacking(self, judged):
        broken = "def f(n): return -1"
        guesses = suite(*[f"f({n}) == 99" for n in range(5)])
        _, rewards = judged(DOUBLE, [broken], [guesses])
        assert rewards.tester[0, 0] == pytest.approx(0.5)  # the paper's rule
        _, rewards = judged(DOUBLE, [broken], [guesses], paper(keep_wrong_answer=False))
        assert rewards.tester[0, 0] == 0

    def test_dropped_and_missing_statements_cost_validity(self, judged):
        whole = suite(*[f"f({n}) == {2 * n}" for n in range(5)])
        short = suite("f(0) == 0", "f(1) == 2", "f(2) == 99")
        dropped = suite("f(0) == 0", "f(1) == 2", "f(2) > 0", "f(3) > 0", "f(4) > 0")
        padded = suite(*[f"f({n}) == {2 * n}" for n in range(10)])
        _, rewards = judged(DOUBLE, [DOUBLE], [whole, short, dropped, padded])
        assert rewards.valid[0].tolist() == pytest.approx([1.0, 0.4, 0.4, 0.5])

    def test_repeats_do_not_pay(self, judged):
        tests = suite("f(1) == 2", "f(1) == 2", "f(n=1) == 2", "f(*[1]) == 2", "f(1) == 3")
        found, rewards = judged(DOUBLE, ["def f(n): return 0"], [tests])
        assert statuses(found) == ["valid"] + ["duplicate"] * 4
        assert rewards.valid[0, 0] == pytest.approx(0.2)
        assert rewards.adversarial[0, 0] == pytest.approx(0.2)

    def test_non_ascii_tests_are_legitimate(self, judged):
        tests = suite("f('é') == 'éé'", "f('日本') == '日本日本'")
        _, rewards = judged(DOUBLE, [DOUBLE], [tests])
        assert rewards.tester[0, 0] == pytest.approx(0.2)
        _, rewards = judged(DOUBLE, [DOUBLE], [tests], official())
        assert (
            rewards.tester[0, 0] < 0.125
        )  # as released: the share of such characters is taken off

    def test_identical_codes_on_identical_tests_earn_the_same(self, judged):
        _, rewards = judged(DOUBLE, ["def f(n): return n"] * 3, [DOUBLE_SUITE, suite("f(0) == 0")])
        assert len(set(rewards.coder.tolist())) == 1


class TestCoderText:
    """If this breaks, formatting decides what a program is worth."""

    @pytest.mark.parametrize(
        "response",
        [
            f"```py\n{DOUBLE}\n```",
            f"```\n{DOUBLE}\n```",
            f"```Python\n{DOUBLE}\n```",
            f"```python\n{DOUBLE}",
            DOUBLE,
            f"First:\n```python\ndef f(n): return 0\n```\nBetter:\n```python\n{DOUBLE}\n```",
            f"```python\n{DOUBLE}\n```\nExample:\n```python\nprint(f(2))\n```",
        ],
    )
    def test_fences(self, client, response):
        problem = Problem("q", "f", "question", "description", DOUBLE)
        judge = Judge(client, Oracle(client), paper())
        found = judge.judge_problem(JudgeRequest(problem, [response], [[DOUBLE_SUITE]]))
        assert problem_rewards(found, paper()).coder.tolist() == [1.0]
