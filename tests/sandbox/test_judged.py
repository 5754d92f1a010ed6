"""JUDGED evidence. If this breaks, tests that do not lower pay wrong programs, or hang a slot."""

import pytest
from evidence_helpers import picture, run_tests, source, verdict

from sandbox_service import packages
from sandbox_service.proto import sandbox_pb2 as pb

STACK = """
class Stack:
    limit = 3
    def __init__(self, items=()):
        self.items = list(items)
    def push(self, item):
        if len(self.items) >= self.limit:
            raise OverflowError("full", self.limit)
        self.items.append(item)
        return self
    def __len__(self):
        return len(self.items)
    def __iter__(self):
        return iter(self.items)
    def __eq__(self, other):
        return isinstance(other, Stack) and self.items == other.items
    def __getitem__(self, i):
        return self.items[i]
    def __add__(self, other):
        return Stack(self.items + list(other))
"""


def judged(stub, program, tests, **fields):
    return run_tests(stub, pb.MODE_JUDGED, program, tests, **fields)


def test_right_and_wrong_programs(stub):
    """The plainest use: every kind of test that a source may hold."""
    tests = """
import math
assert add(1, 2) == 3
for i in range(3):
    assert add(i, -i) == 0
def test_floats():
    assert math.isclose(add(0.1, 0.2), 0.3)
class TestMore:
    def test_text(self):
        assert add("a", b="b") == "ab"
try:
    add(1, None)
    raise AssertionError("no error")
except TypeError as error:
    assert "unsupported operand" in str(error)
"""
    reply = judged(stub, "def add(a, b): return a + b", tests, entry_point="add")
    assert (verdict(reply), picture(reply), reply.evidence) == ("PASS", ["pass"] * 5, pb.JUDGED)
    reply = judged(stub, "def add(a, b): return 3", tests, entry_point="add")
    assert verdict(reply) == "FAIL"
    assert picture(reply)[:2] == ["pass", "AssertionError"]
    assert b"line 5: assert add(i, -i) == 0" in reply.outcomes[1].error_message
    reply = judged(stub, "def add(a, b): raise AssertionError", tests, entry_point="add")
    assert verdict(reply) == "ERROR"  # not a failed assertion of the tests


def test_objects_are_handles(stub):
    tests = """
from solution import Stack
s = Stack([1])
assert s.push(2) == s and len(s) == 2 and list(s) == [1, 2] and s[0] == 1
assert Stack([1]) == Stack([1]) and Stack() != Stack([1])
assert isinstance(s, Stack) and not isinstance(3, Stack)
assert list(s + Stack([5])) == [1, 2, 5]
assert s.limit == 3 and bool(s) and 2 in s and 7 not in s
s.limit = 2
try:
    s.push(1)
    assert False
except OverflowError as error:
    assert error.args == ("full", 2)
"""
    assert picture(judged(stub, STACK, tests)) == ["pass"] * 6


def test_the_forms_of_suites(stub):
    program = "def f(x):\n    print(x)\n    return 6 // x"
    humaneval = "def check(candidate):\n    assert candidate(2) == 3\ncheck(f)"
    assert picture(judged(stub, program, humaneval, entry_point="f")) == ["pass"]
    plain = "f(3)\nf(0)"
    reply = judged(stub, program, plain, entry_point="f")
    assert picture(reply) == ["pass", "ZeroDivisionError"]
    assert reply.stdout == b"3\n0\n"
    guard = "import unittest\nif __name__ == '__main__':\n    assert f(2) == 3"
    reply = judged(stub, program, guard, entry_point="f")
    assert (verdict(reply), picture(reply)) == ("NO_RESULT", [])
    reply = run_tests(stub, pb.MODE_IN_PROCESS, program, guard)
    assert (verdict(reply), picture(reply)) == ("NO_RESULT", [])
    module = "assert f(1) == 6\nresult = f(0)\nassert result == 1\nassert f(1) == 6"
    reply = judged(stub, program, module, entry_point="f")
    assert picture(reply) == ["pass", "ZeroDivisionError", "ZeroDivisionError"]
    assert verdict(reply) == "ERROR"
    names = "assert math.isclose(half(3), 1.5)\nassert limit == 7 and os.sep"
    program = "import math, os\nlimit = 7\ndef half(x): return x / 2"
    assert picture(judged(stub, program, names)) == ["pass"] * 2


def test_many_at_once_and_cancelled(stub):
    """Each pair needs two slots: pairs that wait for each other would stop the service."""
    program = "def f(x):\n    while x == 9: pass\n    return x"
    hang = pb.RunRequest(
        program=source(program), tests=source("assert f(9) == 9"), mode=pb.MODE_JUDGED
    )
    dying = [stub.Run.future(hang, timeout=0.3) for _ in range(4)]
    right = pb.RunRequest(
        program=source(program), tests=source("assert f(1) == 1"), mode=pb.MODE_JUDGED
    )
    waiting = [stub.Run.future(right, timeout=60) for _ in range(24)]
    assert [verdict(call.result()) for call in waiting] == ["PASS"] * 24
    assert all(call.exception() is not None for call in dying)


@pytest.mark.skipif(not packages.find().folder, reason="no numpy beside the service")
def test_arguments_that_a_call_changes(stub):
    program = """
import numpy
def change(xs, d, s, nested, a):
    xs.sort(); d["new"] = xs; s.add(9); nested[0].append(1); a *= 2
"""
    tests = """
import numpy
xs, d, s, nested, a = [3, 1, 2], {"old": 1}, {1}, [[0], [5]], numpy.array([1.0, 2.0])
inner, alias = nested[0], xs
change(xs, d, s, nested, a)
assert xs == [1, 2, 3] and alias is xs and d == {"old": 1, "new": [1, 2, 3]}
assert s == {1, 9} and inner == [0, 1] and inner is nested[0] and a.tolist() == [2.0, 4.0]
"""
    assert picture(judged(stub, program, tests, entry_point="change")) == ["pass"] * 2


def test_objects_of_the_tests(stub):
    """A linked list that the tests build is the program's argument, and its result."""
    program = """
def reverse(node):
    last = None
    while node is not None:
        node.next, last, node = last, node, node.next
    return last
def total(node): return node.value + total(node.next) if node else 0
def grow(kind, n): return kind(n, kind(n + 1))
"""
    tests = """
from solution import *
import threading
class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next
first = Node(1, Node(2, Node(3)))
assert total(first) == 6
last = reverse(first)
assert type(last) is Node and last.value == 3 and last.next.next is first and first.next is None
assert grow(Node, 5).next.value == 6
def test_threads():
    found = []
    threads = [threading.Thread(target=lambda: found.append(total(first))) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == [1] * 8
"""
    assert picture(judged(stub, program, tests)) == ["pass"] * 4


def test_what_crosses_is_bounded(stub):
    program = "def f(n): return 'x' * n\ndef g(n): return g(n)\ndef h(n):\n    while n: print(n)"
    tests = """
assert len(f(10)) == 10
assert f(10**7)
def test_argument(): f("x" * 10**7)
def test_recursion(): g(1)
def test_callback(): f(lambda: 1)
def test_print(): h(10**7)
def test_after(): assert f(1) == "x"
"""
    reply = judged(stub, program, tests)
    assert picture(reply) == [
        "pass", "ProgramError", "BudgetError", "RecursionError", "TypeError", "OutputLimit",
        "NOT_RUN",
    ]  # fmt: skip
    assert verdict(reply) == "OUTPUT_LIMIT"


def test_callbacks_and_generators(stub):
    program = """
def apply(f, xs): return [f(x) for x in xs]
def count(n):
    for i in range(n):
        yield i
def make(): return lambda x: x + 1
def safe(f):
    try: return f()
    except ValueError as error: return str(error)
"""
    tests = """
assert apply(lambda x: x * 2, [1, 2]) == [2, 4]
assert list(count(3)) == [0, 1, 2] and next(count(1)) == 0
assert make()(1) == 2
def boom(): raise ValueError("b")
assert safe(boom) == "b"
"""
    assert picture(judged(stub, program, tests)) == ["pass"] * 4


ALWAYS = """
class Always(TYPE):
    def __eq__(self, other): return True
    __ne__ = __lt__ = __gt__ = __le__ = __ge__ = lambda self, other: True
    __contains__ = lambda self, item: True
    __hash__ = lambda self: 1
    __len__ = lambda self: 0
    __sub__ = __rsub__ = __mod__ = __rmod__ = __round__ = __abs__ = lambda self, *others: 0
def f(*args): return RESULT
"""


@pytest.mark.parametrize("base", ["object", "int", "list", "str"])
@pytest.mark.parametrize("result", ["Always()", "[Always()]", "Always", "{1: Always()}"])
def test_objects_that_equal_everything(stub, base, result):
    """Dunders of the program are not trusted against literals."""
    program = ALWAYS.replace("TYPE", base).replace("RESULT", result)
    tests = "\n".join(
        f"assert {test}"
        for test in (
            "f() == 3", "3 == f()", "f() == [3]", "f() == {1: 3}", "not f() != [3, 4]", "f() > 5",
            "5 < f()", "3 in f()", "f() == 'abc'", "f() in ([3], 4)", "[f()] == [3]",
            "abs(f() - 3) < 1e-6", "abs(3 - f()) == 0", "f() % 5 == 3", "(f() - 5) == 0",
        )
    )  # fmt: skip
    reply = judged(stub, program, tests, entry_point="f")
    assert "pass" not in picture(reply)


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ("assert f(2) == 4 or __import__('os')._exit(0)", ["pass"]),
        ("assert f(2) == 5 or __import__('os')._exit(0)\nassert f(1) == 2", ["TestExit", "pass"]),
        ("assert True\nassert f(1) == 2", ["VacuousTest", "pass"]),
        ("def test_a():\n    try:\n        f(1)\n    except Exception: pass", ["VacuousTest"]),
        (
            "def test_a():\n    while True: pass\ndef test_b(): assert f(1) == 2",
            ["TestTimeout", "pass"],
        ),
        ("import os\nassert f(1) == 2\nassert os.kill(os.getpid(), 9)", ["pass", "TestCrash"]),
        ("def test_a(x): pass\nasync def test_b(): pass", ["TypeError", "TypeError"]),
    ],
)
def test_hostile_tests(stub, tests, expected):
    """A test model is trained: what its tests do to themselves is no evidence on the program."""
    limits = pb.Limits(cpu_s=1, call_cpu_s=0.3, wall_s=5)
    program = "def f(x): return 2 * x"
    reply = judged(stub, program, tests, entry_point="f", limits=limits)
    assert picture(reply) == expected
    if any(word.startswith("Test") for word in expected):
        assert verdict(reply) == "NO_RESULT"
    if expected == ["VacuousTest"]:
        assert verdict(reply) == "UNSPECIFIED"


def test_tests_do_not_read_the_program(stub):
    """Showing the tests the program would let a tester attack the text instead of the behaviour."""
    program = "SECRET = 'hidden' + '-word'\ndef f():\n    'doc'\n    yield 1\ndef g(): return 0"
    tests = """
import gc, os, sys
def test_attributes():
    for name in ("__globals__", "__code__", "__dict__", "__closure__", "__func__", "__class__"):
        try:
            getattr(g, name).anything
        except AttributeError:
            continue
        assert name == "__class__"
def test_frames():
    try:
        f().gi_frame
        assert False
    except AttributeError:
        pass
def test_files():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("mem", "environ", "fd"):
            path = f"/proc/{pid}/{name}"
            try:
                text = open(path, "rb").read() if name != "fd" else b""
            except OSError:
                continue
            assert b"hidden-word" not in text
    g()
def test_memory():
    found = [x for x in gc.get_objects() if isinstance(x, dict) and "SECRET" in x]
    assert not found and g() == 0
"""
    reply = judged(stub, program, tests)
    assert not [o.error_message for o in reply.outcomes if not o.passed]


def test_the_program_does_not_read_the_tests(stub):
    """A program that finds what is expected of it passes without solving anything."""
    program = """
import gc, os, sys
def f(callback):
    words = []
    for name in ("__globals__", "__code__", "__defaults__", "expected"):
        try:
            words.append(getattr(callback, name))
        except BaseException as error:
            words.append(None)
    texts = [x for x in gc.get_objects() if type(x) is dict and "expected_answer" in x]
    return words, len(texts)
"""
    tests = """
def callback(x, expected=4711): return x
expected_answer = 4711
assert f(callback) == ([None] * 4, 0)
"""
    reply = judged(stub, program, tests, entry_point="f", limits=pb.Limits(cpu_s=2, wall_s=4))
    assert "4711" not in str(reply.stdout)
    assert picture(reply) == ["pass"]


# What tests may hand to a program, and what a program would make of it.
LENT = {
    "the test case": (
        "def f(case):\n    case.assertEqual = lambda *a: None\n    return 0",
        "self",
    ),
    "the class of test cases": (
        "def f(kind):\n    for k in kind.mro(): k.assertEqual = lambda *a: None\n    return 0",
        "Test",
    ),
    "a module": ("def f(m):\n    m.isclose = lambda *a: True\n    return 0", "math"),
    "all modules": (
        "def f(m):\n    for k in m.modules.values(): k.isclose = lambda *a: True\n    return 0",
        "sys",
    ),
    "a tracer": (
        "def f(m):\n    m.settrace(lambda frame, *a: frame.f_globals['expected'])\n    return 0",
        "sys",
    ),
    "getattr": (
        "def f(get, of):\n    return get(of, '__globals__')['expected']",
        "getattr, helper",
    ),
    "eval": ('def f(run):\n    return run(\'__import__("os").write(1, b"out") and 0\')', "eval"),
    "open": ("def f(open):\n    return open('/proc/self/maps').read()", "open"),
    "a class": ("def f(kind):\n    kind.check = lambda *a: True\n    return 0", "Checker"),
    "an object": ("def f(obj):\n    obj.check = lambda *a: True\n    return 0", "checker"),
    "getattr through a helper": (
        "def f(call, get, of):\n    return call(get, of, '__globals__')['expected']",
        "lambda run, *args: run(*args), getattr, helper",
    ),
}


@pytest.mark.parametrize("name", LENT)
def test_what_tests_lend_does_not_betray_them(stub, name):
    program, lent = LENT[name]
    tests = f"""
import math, sys, unittest
expected = 7
def helper(): pass
class Checker:
    def check(self, got): return got == expected
checker = Checker()
class Test(unittest.TestCase):
    def test_a(self):
        got = f({lent})
        self.assertEqual(got, expected)
    def test_b(self):
        got = f({lent})
        assert checker.check(got)
    def test_c(self):
        got = f({lent})
        assert math.isclose(got, expected)
"""
    limits = pb.Limits(cpu_s=2, call_cpu_s=1, wall_s=4)
    reply = judged(stub, program, tests, entry_point="f", limits=limits)
    assert (len(reply.outcomes), reply.stdout) == (3, b"")
    assert not any(outcome.passed for outcome in reply.outcomes)


HANGS = {
    "hang": ("def f(x):\n    while x == 1: pass\n    return x", "Timeout"),
    "sleep": ("import time\ndef f(x):\n    x == 1 and time.sleep(99)\n    return x", "Timeout"),
    "exit": ("import os\ndef f(x):\n    x == 1 and os._exit(0)\n    return x", "Exit"),
    "crash": ("import os\ndef f(x):\n    x == 1 and os.abort()\n    return x", "Crash"),
    "garbage": ("import os\ndef f(x):\n    x == 1 and os.write(5, b'x' * 9)\n    return x", "Exit"),
    "flood": (
        "import os\ndef f(x):\n    while x == 1: os.write(5, b'\\1\\0\\0\\0N' * 99)\n    return x",
        "Exit",
    ),
    "close": ("import os\ndef f(x):\n    x == 1 and os.close(5)\n    return x", "Exit"),
    "fork": (
        "import os, time\ndef f(x):\n    if x == 1 and os.fork() == 0: time.sleep(99)\n"
        "    return x if x != 1 else os._exit(0)",
        "Exit",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HANGS)
def test_programs_that_end_or_hang(stub, name):
    """Whatever a program does to the channel, its test fails, the others count, and it is over."""
    program, word = HANGS[name]
    tests = "assert f(0) == 0\nassert f(1) == 1\nassert f(2) == 2"
    limits = pb.Limits(cpu_s=1, call_cpu_s=0.3, wall_s=1)
    reply = judged(stub, program, tests, entry_point="f", limits=limits)
    assert picture(reply) == ["pass", word, "pass"]
    assert verdict(reply) == {"Timeout": "TIMEOUT", "Exit": "NO_RESULT", "Crash": "CRASH"}[word]
    assert reply.num_restarts == 1


def test_tests_that_flood(stub):
    """Tests that write more than a program reads must not stop the slot."""
    tests = "import os\nfor i in range(10**9):\n    assert os.write(5, b'\\xff' * 65536)"
    limits = pb.Limits(cpu_s=1, call_cpu_s=0.5, wall_s=2)
    reply = judged(stub, "def f(): pass", tests, entry_point="f", limits=limits)
    assert verdict(reply) in ("ERROR", "NO_RESULT")


@pytest.mark.parametrize(
    ("program", "tests", "status", "words"),
    [
        ("def f(: pass", "assert f() == 1", pb.LOAD_ERROR, "SyntaxError"),
        ("x = 1", "assert f() == 1", pb.LOAD_ERROR, "no callable"),
        ("while True: pass", "assert f() == 1", pb.TIMEOUT, ""),
        ("import time; time.sleep(99)", "assert f() == 1", pb.TIMEOUT, ""),
        ("import os; os._exit(0)", "assert f() == 1", pb.NO_RESULT, ""),
        ("def f(): return 1", "assert f( == 1", pb.NO_RESULT, "tests do not load: SyntaxError"),
        ("def f(): return 1", "import nothing_here", pb.NO_RESULT, "tests do not load: Module"),
        ("def f(): return 1", "x = 1", pb.NO_RESULT, "hold no assert"),
        ("def f(): return 1", "while True: pass\nassert f()", pb.NO_RESULT, "tests"),
        ("def f(): return 1", "(" * 10_000, pb.NO_RESULT, "tests do not load"),
    ],
)
def test_what_does_not_load(stub, program, tests, status, words):
    limits = pb.Limits(cpu_s=0.5, wall_s=1)
    reply = judged(stub, program, tests, entry_point="f", limits=limits)
    assert reply.status == status, reply.message
    assert words in reply.message
    assert verdict(reply) in ("ERROR", "TIMEOUT", "NO_RESULT")
    assert not any(outcome.passed for outcome in reply.outcomes)
    if tests == "assert f() == 1":
        assert len(reply.outcomes) == 1  # known though the program never loaded


def test_stop_on_first_failure(stub):
    tests = "assert f(0) == 0\nassert f(1) == 0\nassert f(2) == 2"
    reply = judged(stub, "def f(x): return x", tests, entry_point="f", stop_on_first_failure=True)
    assert picture(reply) == ["pass", "AssertionError", "NOT_RUN"]
    assert verdict(reply) == "FAIL"


FORGERS = {
    "answers in advance": (
        "import os, struct\nfrom sandbox_service import codec\ndef f(a, b):\n"
        "    m = codec.encode(('value', True, None))\n"
        "    os.write(5, struct.pack('<I', len(m)) + m)\n    return 0"
    ),
    "every descriptor": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\0' * 64)\n"
        "    except OSError: pass\ndef f(a, b): return 0"
    ),
    "every process": (
        "import os\ndef f(a, b):\n    for pid in range(2, 300):\n"
        "        try: os.kill(pid, 9)\n        except OSError: pass\n    return 0"
    ),
    "a thread that writes": (
        "import os, threading\ndef write():\n    while True: os.write(5, b'\\4\\0\\0\\0junk')\n"
        "threading.Thread(target=write, daemon=True).start()\ndef f(a, b): return 0"
    ),
    "the argument itself": "def f(a, b):\n    if type(a) is list: a += a\n    return a",
    "SystemExit": "def f(a, b): raise SystemExit(0)",
    "SkipTest": "import unittest\ndef f(a, b): raise unittest.SkipTest('x')",
    "NotImplemented": "def f(a, b): return NotImplemented",
    "another module": "import operator\nf = operator",
    "a name that raises": (
        "class M(type):\n    __name__ = property(lambda cls: 1 / 0)\n"
        "class X(metaclass=M): pass\ndef f(a, b): return X()"
    ),
}


@pytest.mark.parametrize("name", FORGERS)
def test_forgers_pass_no_test(stub, name):
    """The program owns its end of the channel; all that it can do there is to claim values."""
    tests = """
import math
def test_a(): assert f(1, 2) == 3
def test_b(): assert abs(f(0.1, 0.2) - 0.3) < 1e-9
def test_c(): assert f([1], [2]) == [1, 2]
def test_d(): assert math.isclose(f(1, 1), 2)
def test_e(): assert f("a", "b") in ("ab",)
def test_f(): assert sorted(f([2], [1])) == [1, 2]
"""
    limits = pb.Limits(cpu_s=1, call_cpu_s=0.5, wall_s=2)
    reply = judged(stub, FORGERS[name], tests, entry_point="f", limits=limits)
    assert len(reply.outcomes) == 6
    assert not any(outcome.passed for outcome in reply.outcomes)
    assert verdict(reply) not in ("PASS", "UNSPECIFIED")
