"""STDIO evidence. If this breaks, right scripts are refused for white space, wrong ones paid."""

import pytest
from evidence_helpers import picture, source, verdict
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_service import codec
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.results import Comparison, StdioCase
from sandbox_service.stdio import is_same_output


def script(stub, program, *cases, **fields):
    stdio = [
        case
        if isinstance(case, pb.StdioCase)
        else pb.StdioCase(stdin=case[0], expected_stdout=case[1])
        for case in cases
    ]
    request = pb.RunRequest(program=source(program), mode=pb.MODE_STDIO, stdio=stdio, **fields)
    return stub.Run(request, timeout=60)


@pytest.mark.parametrize(
    "program",
    [
        "print(int(input()) + int(input()))",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        "import sys\nprint(sum(int(line) for line in sys.stdin))\nsys.exit()",
        "import sys\nsys.stdout.write(str(sum(map(int, sys.stdin.buffer.read().split()))))",
        "import os\nprint(sum(map(int, open(0).read().split())), flush=True)\nos._exit(0)",
        "import os\nos.write(1, b'%d' % sum(map(int, os.read(0, 99).split())))",
        "if __name__ == '__main__':\n    print(sum(int(input()) for _ in 'ab'))",
        "import io, sys\nsys.stdout = io.StringIO()\nprint(sum(int(input()) for _ in 'ab'))\n"
        "sys.__stdout__.write(sys.stdout.getvalue())",
        "import threading\n"
        "threading.Thread(target=lambda: print(int(input()) + int(input()))).start()",
        "import atexit\natexit.register(lambda: print(sum(int(input()) for _ in 'ab')))",
    ],
)
def test_the_ways_of_scripts(stub, program):
    reply = script(stub, program, (b"1\n2\n", b"3\n"), (b"5\n-7", b"-2"))
    assert (verdict(reply), picture(reply), reply.evidence) == ("PASS", ["pass"] * 2, pb.STDIO)
    assert codec.decode(reply.outcomes[0].value).strip() == b"3"


def test_one_process_per_case(stub):
    program = "import os\nopen('mark', 'a').write('x')\nprint(len(open('mark').read()))"
    assert picture(script(stub, program, (b"", b"1"), (b"", b"1"))) == ["pass"] * 2


def test_order_of_verdicts_and_restarts(stub):
    program = (
        "import os\nn = int(input())\nif n == 1: 1 / 0\nif n == 2: os.abort()\nif n == 3: exit(4)\n"
        "while n == 4: pass\nwhile n == 5: print('x' * 999)\nprint(n)"
    )
    limits = pb.Limits(cpu_s=0.3, output_bytes=10**5)
    cases = [(b"%d" % n, b"%d" % n) for n in (0, 1, 3)]
    reply = script(stub, program, *cases, limits=limits)
    assert picture(reply) == ["pass", "ZeroDivisionError", "SystemExit"]
    assert verdict(reply) == "ERROR"
    cases = [(b"%d" % n, b"%d" % n) for n in (0, 2, 4, 5, 0, 6)]
    reply = script(stub, program, *cases, limits=limits)
    assert picture(reply) == ["pass", "Crash", "Timeout", "OutputLimit", "pass", "pass"]
    assert (verdict(reply), reply.num_restarts) == ("CRASH", 3)
    hanging = [(b"4", b"4")] * 6
    reply = script(stub, program, *hanging, limits=limits)
    assert picture(reply) == ["Timeout"] * 4 + ["NOT_RUN"] * 2
    reply = script(stub, program, (b"0", b"1"), (b"0", b"0"), stop_on_first_failure=True)
    assert (verdict(reply), picture(reply)) == ("FAIL", ["VALUE", "NOT_RUN"])
    reply = script(stub, "print(", (b"", b""))
    assert (verdict(reply), picture(reply)) == ("ERROR", ["SyntaxError"])


def test_large_input_and_output(stub):
    """Pipes hold 64 KiB: beyond that a run would hang, or be judged on a part."""
    program = "import sys\nsys.stdout.write(sys.stdin.read()[::-1])"
    text = b"ab" * 10**6
    reply = script(stub, program, (text, text[::-1]), (text, text[::-1] + b"x"))
    assert picture(reply) == ["pass", "VALUE"]
    assert len(codec.decode(reply.outcomes[0].value)) == 64 * 1024


def test_the_script_does_not_see_the_answer(stub):
    program = """
import gc, os
needle = "".join(["47", "11"])
texts = [str(x) for x in gc.get_objects() if type(x) in (tuple, list) and len(x) < 99]
for fd in os.listdir("/proc/self/fd"):
    if fd not in "123" and os.path.exists(f"/proc/self/fd/{fd}"):
        texts.append(str(open(f"/proc/self/fd/{fd}", "rb").read()))
print(needle if any(needle in text for text in texts) else 0)
"""
    assert picture(script(stub, program, (b"", b"47" + b"11"))) == ["VALUE"]


def case(expected, comparison, rel_tol=0.0, abs_tol=0.0):
    return StdioCase(b"", expected, Comparison(comparison), rel_tol, abs_tol)


@pytest.mark.parametrize(
    ("actual", "expected", "exact", "tokens", "floats"),
    [
        (b"1 2\n", b"1 2", True, True, True),
        (b"1 2 \r\n3\n\n", b"1 2\n3", True, True, True),
        (b"1  2", b"1 2", False, True, True),
        (b" 1", b"1", False, True, True),
        (b"1\n2", b"1 2", False, True, True),
        (b"1\n\n2", b"1\n2", False, True, True),
        (b"1.0000001", b"1", False, False, True),
        (b"1e0", b"1.0", False, False, True),
        (b"1.1", b"1", False, False, False),
        (b"1 2", b"1", False, False, False),
        (b"", b"1", False, False, False),
        (b"yes", b"YES", False, False, False),
        (b"nan", b"1", False, False, False),
        (b"1_0", b"10", False, False, False),
        (b"inf", b"1e999", False, False, False),
        (b"\xff\0", b"\xff\0", True, True, True),
        (b"9" * 5000, b"9" * 4999 + b"8", False, False, False),
    ],
)
def test_comparisons(actual, expected, exact, tokens, floats):
    assert is_same_output(actual, case(expected, 0)) is exact
    assert is_same_output(actual, case(expected, 1)) is tokens
    assert is_same_output(actual, case(expected, 2, 1e-6)) is floats


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 2))
@settings(max_examples=300, deadline=None)
def test_any_output_is_equal_to_itself_and_never_raises(a, b, comparison):
    assert is_same_output(a, case(a, comparison))
    same = is_same_output(a, case(b, comparison, 1e-9))
    assert same == is_same_output(b, case(a, comparison, 1e-9))
