"""IN_PROCESS, numpy, early stop, reruns, seeds, bad input: what a run can be asked for."""

import asyncio
from collections import Counter

import grpc
import numpy
import pytest
from evidence_helpers import picture, run_tests, source, verdict

from sandbox_service import codec, packages, request, runner
from sandbox_service.pool import SlotDied
from sandbox_service.proto import sandbox_pb2 as pb


def values(stub, program, *calls, **fields):
    """Calls are texts, or pairs of a text and the expected value."""
    message = pb.RunRequest(program=source(program), **fields)
    for call in calls:
        text, *expected = call if isinstance(call, tuple) else (call,)
        message.calls.add(
            text=text.encode(), expected=codec.encode(expected[0]) if expected else None
        )
    return stub.Run(message, timeout=60)


class TestInProcess:
    TESTS = """
import unittest
from unittest.mock import patch
class TestCases(unittest.TestCase):
    def setUp(self):
        self.n = 1
    def test_right(self):
        self.assertEqual(f(self.n), 2)
    def test_wrong(self):
        self.assertEqual(f(2), 4)
    def test_mock(self):
        with patch("os.listdir", return_value=["a"]):
            self.assertEqual(names(), ["a"])
    @patch("builtins.print")
    def test_print(self, printed):
        f(0)
        printed.assert_called_once_with(0)
    def test_error(self):
        f("x")
    def test_sub(self):
        for i in (1, 2):
            with self.subTest(i=i):
                self.assertEqual(i, 1)
    @unittest.skip("no")
    def test_skipped(self):
        pass
    @unittest.expectedFailure
    def test_expected(self):
        self.assertEqual(f(2), 4)
"""
    PROGRAM = (
        "import os\ndef f(x):\n    print(x)\n    return x + 1\ndef names(): return os.listdir()"
    )

    def test_methods_of_test_cases(self, stub):
        reply = run_tests(stub, pb.MODE_IN_PROCESS, self.PROGRAM, self.TESTS)
        # By name: error, expected, mock, print, right, skipped, sub, wrong.
        assert picture(reply) == [
            "TypeError", "pass", "pass", "pass", "pass", "SkipTest", "AssertionError",
            "AssertionError",
        ]  # fmt: skip
        assert (verdict(reply), reply.evidence) == ("ERROR", pb.IN_PROCESS)
        assert b"test_wrong" not in reply.outcomes[7].error_message
        assert b"3 != 4" in reply.outcomes[7].error_message

    def test_the_first_hang_does_not_hide_the_rest(self, stub):
        tests = "assert f(1) == 2\nassert f(0) == 1\ndef test_a(): assert f(2) == 3"
        program = "def f(x):\n    while x == 0: pass\n    return x + 1"
        limits = pb.Limits(call_cpu_s=0.2)
        reply = run_tests(stub, pb.MODE_IN_PROCESS, program, tests, limits=limits)
        assert picture(reply) == ["pass", "Timeout", "pass"]
        assert (verdict(reply), reply.num_restarts) == ("TIMEOUT", 1)

    def test_leaving_early_is_no_pass(self, stub):
        for line in ("import os; os._exit(0)", "raise SystemExit"):
            program = f"def f():\n    {line}"
            tests = "assert f() == 1\nassert 1 == 1\ndef test_a(): assert f() == 2"
            reply = run_tests(stub, pb.MODE_IN_PROCESS, program, tests)
            assert verdict(reply) != "PASS"
            assert picture(reply)[1] == "pass"
            assert len(reply.outcomes) == 3

    def test_records_that_a_program_writes_itself(self, stub):
        """Without this run's tag they are a breach of the protocol."""
        program = "import os\ndef f():\n    os.write(3, b'x' * 99)\n    return 1"
        reply = run_tests(stub, pb.MODE_IN_PROCESS, program, "assert f() == 1")
        assert verdict(reply) == "NO_RESULT"
        assert "protocol" in reply.message


needs_numpy = pytest.mark.skipif(not packages.find().folder, reason="no numpy beside the service")


class TestNumpy:
    @needs_numpy
    def test_profile(self, stub):
        info = stub.GetInfo(pb.InfoRequest())
        assert "numpy" in info.profiles
        assert f"numpy {numpy.__version__}" in info.packages
        program = "import numpy as np\ndef f(n): return np.arange(n) / 2"
        reply = values(
            stub,
            program,
            ("f(3)", numpy.array([0, 0.5, 1])),
            ("f(3).sum()", 1.5),
            ("np.int64(3)", 3),
            ("np.linalg.inv(np.eye(2))", numpy.eye(2)),
            ("f(2)", [0, 0.5]),
            ("np.ones((3000, 3000)).sum()", 9e6),
        )
        assert picture(reply) == ["pass"] * 4 + ["VALUE", "pass"]

    @needs_numpy
    def test_arguments(self, stub):
        call = pb.Call(
            invocation=pb.Invocation(entry_point="f", args=codec.encode((numpy.eye(2),))),
            expected=codec.encode(2.0),
        )
        program = source("import numpy\ndef f(a): return a.trace()")
        reply = stub.Run(pb.RunRequest(program=program, calls=[call]))
        assert verdict(reply) == "PASS"

    def test_without_numpy(self, monkeypatch):
        monkeypatch.setattr(packages, "find", packages.Packages)
        program = source("import numpy")
        assert request.parse(pb.RunRequest(program=program)).profile == "std"
        with pytest.raises(request.InvalidRequest, match=r"known: core, std$"):
            request.parse(pb.RunRequest(program=program, profile="numpy"))

    def test_import_that_is_not_there(self, stub):
        reply = values(stub, "import numpy", "1", profile="std")
        assert reply.status == pb.LOAD_ERROR
        assert "ModuleNotFoundError" in reply.message


class TestEarlyStop:
    def test_a_long_run_ends_at_the_first_failure(self, stub):
        program = "import time\ndef f(x):\n    time.sleep(0.2 if x < 2 else 60)\n    return x"
        calls = [("f(0)", 0), ("f(1)", 2)] + [("f(2)", 2)] * 20
        reply = values(stub, program, *calls, stop_on_first_failure=True)
        assert picture(reply) == ["pass", "VALUE"] + ["NOT_RUN"] * 20
        assert (verdict(reply), reply.status) == ("FAIL", pb.OK)

    def test_a_short_run_says_the_same(self, stub):
        program = "def f(x):\n    while x == 9: pass\n    return x // (x - 3)"
        calls = [("f(4)", 4), ("f(3)", 0), ("f(9)", 0), ("f(4)", 4)]
        reply = values(stub, program, *calls, stop_on_first_failure=True)
        assert picture(reply) == ["pass", "ZeroDivisionError", "NOT_RUN", "NOT_RUN"]
        assert (verdict(reply), reply.status) == ("ERROR", pb.OK)

    def test_a_call_that_ends_its_process_is_the_last(self, stub):
        program = "import os\ndef f(x):\n    x == 1 and os._exit(0)\n    return x"
        calls = [("f(0)", 0), ("f(1)", 1), ("f(2)", 2)]
        reply = values(stub, program, *calls, stop_on_first_failure=True)
        assert picture(reply) == ["pass", "Exit", "NOT_RUN"]
        reply = values(stub, program, *calls)
        assert picture(reply) == ["pass", "Exit", "pass"]
        all_pass = values(stub, program, ("f(0)", 0), ("f(2)", 2), stop_on_first_failure=True)
        assert verdict(all_pass) == "PASS"


class TestRepeating:
    @pytest.mark.parametrize(
        ("body", "is_flaky"),
        [("return 1", False), ("import os; return os.urandom(8)", True),
         ("import time; return time.perf_counter_ns()", True),
         ("import random; return random.random()", False)],
    )  # fmt: skip
    def test_flaky(self, stub, body, is_flaky):
        reply = values(stub, f"def f():\n    {body}", "f()", num_reruns=2)
        assert reply.is_flaky is is_flaky

    def test_seeds(self, stub):
        """The oracle compares two runs of a reference: chance must be the same in both."""
        has_numpy = bool(packages.find().folder)
        program = "import random" + "\nimport numpy\nimport numpy.random" * has_numpy
        calls = ("random.random()", *["float(numpy.random.rand())"] * has_numpy, "hash('a')")

        def draws(seed):
            return [o.value for o in values(stub, program, *calls, seed=seed).outcomes]

        assert draws(4) == draws(4)
        assert all(one != other for one, other in zip(draws(4)[:-1], draws(6)[:-1]))
        assert draws(4)[-1] == draws(6)[-1] != draws(5)[-1]  # two hash seeds: even and odd

    def test_restarts_are_bounded(self, stub):
        program = "def f(x):\n    while x % 2: pass\n    return x"
        limits = pb.Limits(call_cpu_s=0.1)
        reply = values(stub, program, *[(f"f({n})", n) for n in range(10)], limits=limits)
        assert picture(reply) == ["pass", "Timeout"] * 4 + ["NOT_RUN"] * 2
        assert (verdict(reply), reply.num_restarts) == ("TIMEOUT", 3)


class _BrokenPool:
    """Every attempt fails inside the sandbox."""

    def __init__(self):
        self.counts = Counter()

    async def run(self, *attempts):
        raise SlotDied("on fire")

    run_pair = run


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": pb.MODE_JUDGED, "tests": source("assert f()")},
        {"mode": pb.MODE_IN_PROCESS, "tests": source("assert f()")},
        {"mode": pb.MODE_STDIO, "stdio": [pb.StdioCase(expected_stdout=b"1")]},
        {"calls": [pb.Call(text=b"f()", expected=codec.encode(1))]},
    ],
)
def test_a_broken_sandbox_blames_nobody(fields):
    """INTERNAL says nothing of the program, whatever the mode; it is tried twice."""
    spec = request.parse(pb.RunRequest(program=source("x = 1"), num_reruns=1, **fields))
    pool = _BrokenPool()
    done = asyncio.run(runner.run(pool, spec))
    assert (done.status.name, done.verdict.name, done.is_flaky) == ("INTERNAL", "INTERNAL", False)
    assert pool.counts["internal"] >= 2
    reply = request.reply(1, done, "A-root", 1.0)
    assert all(outcome.status == pb.CALL_UNKNOWN for outcome in reply.outcomes)


TESTS = {"tests": source("assert f()")}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": pb.MODE_JUDGED}, "tests.inline is missing"),
        ({"mode": pb.MODE_IN_PROCESS}, "tests.inline is missing"),
        ({"mode": 9}, "unknown mode 9; known: 0 VALUES, 1 JUDGED"),
        ({"mode": pb.MODE_STDIO}, "at least one case"),
        ({"mode": pb.MODE_STDIO, "stdio": [pb.StdioCase()], "calls": [pb.Call(text=b"1")]},
         "MODE_STDIO takes no calls"),
        ({"mode": pb.MODE_JUDGED, "calls": [pb.Call(text=b"1")], **TESTS}, "takes no calls"),
        ({"stdio": [pb.StdioCase()]}, "MODE_VALUES takes no stdio"),
        (TESTS, "MODE_VALUES takes no tests"),
        ({"mode": pb.MODE_STDIO, "stdio": [pb.StdioCase()], "entry_point": "f"}, "entry_point"),
        ({"mode": pb.MODE_STDIO, "stdio": [pb.StdioCase()] * 1001}, "at most 1000"),
        ({"mode": pb.MODE_STDIO, "stdio": [pb.StdioCase(comparison=7)]}, "unknown comparison 7"),
        ({"mode": pb.MODE_STDIO, "stdio": [pb.StdioCase(rel_tol=-1)]}, "tolerances"),
        ({"mode": pb.MODE_STDIO, "stdio": [pb.StdioCase(abs_tol=float("nan"))]}, "tolerances"),
        ({"num_reruns": 1000}, "at most 10"),
        ({"profile": "cobol"}, "unknown profile 'cobol'"),
        ({"program": source(b"#" * (16 << 20))}, "bytes; at most"),
        ({"mode": pb.MODE_JUDGED, "tests": source(b"#" * (2 << 20))}, "tests: 2097152 bytes"),
        ({"calls": [pb.Call(text=b"1")] * 100_000}, "100000 calls; at most"),
        ({"calls": [pb.Call(text=b"1" * (1 << 20))]}, "call 0 takes more"),
        ({"calls": [pb.Call(text=b"1", expected=b"A\x02|O\x00\x00")]}, "call 0: expected"),
        ({"calls": [pb.Call(text=b"1", expected=b"H\x00")]}, "call 0: expected"),
    ],
)  # fmt: skip
def test_bad_requests(stub, fields, words):
    """A mistake should cost a sentence, and the service lives on."""
    message = pb.RunRequest(**{"program": source("def f(): return 1"), **fields})
    with pytest.raises(grpc.RpcError) as error:
        stub.Run(message, timeout=60)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.value.details()
    assert verdict(values(stub, "", ("1 + 1", 2))) == "PASS"


def test_nested_parentheses(stub):
    """Only the cage parses: the deepest text is an error of its own call."""
    deep = "(" * 10_000 + ")" * 10_000
    reply = values(stub, "def f(): return 1", ("f" + deep, 1), ("f()", 1))
    assert picture(reply)[1] == "pass"
    assert picture(reply)[0] in ("SyntaxError", "MemoryError", "RecursionError")
