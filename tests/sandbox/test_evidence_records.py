"""Records of a child: any bytes. A forged or cut record must never become another's outcome."""

import marshal
import os

import pytest
from evidence_helpers import picture, source, verdict
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_service import protocol
from sandbox_service.claims import parse_records
from sandbox_service.proto import sandbox_pb2 as pb

NONCE = b"12345678"

_record = st.tuples(
    st.sampled_from([NONCE, NONCE, NONCE, b"x" * 8]),
    st.integers(0, 15),
    st.integers(0, 4) | st.integers(0, 2**32 - 1),
    st.integers(0, 2) | st.integers(0, 2**64 - 1),
    st.sampled_from([None, None, None, 0, 2**32 - 1]),
    st.binary(max_size=4),
)


def packed(nonce, kind, index, cpu_us, length, body):
    size = len(body) if length is None else length
    return protocol.RECORD.pack(nonce, kind, index, cpu_us, size) + body


@given(st.lists(_record, max_size=12), st.integers(0, 30), st.booleans())
@settings(max_examples=500, deadline=None)
def test_any_records(records, cut, is_suite):
    data = packed(NONCE, protocol.STARTED, 0, 0, None, b"")
    data += packed(NONCE, protocol.LOADED, 0, 0, None, b"")
    data += b"".join(packed(*record) for record in records)
    claims = parse_records(data[: len(data) - cut], NONCE, 1, 4, is_suite=is_suite)
    assert [record.call for record in claims.outcomes] == list(range(1, 1 + len(claims.outcomes)))
    assert len(claims.outcomes) <= 3
    assert 0 <= claims.num_tests <= 4
    if not is_suite:
        assert (claims.num_tests, claims.is_gone, claims.tests_error) == (0, False, None)
        assert all(record.kind <= protocol.OVERSIZED for record in claims.outcomes)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes(data):
    claims = parse_records(data, NONCE, 0, 4, is_suite=True)
    assert not claims.outcomes


# The tag of the run, taken from the harness: the strongest that a program in the process can do.
STEAL = """
import gc, os, struct
def steal():
    for x in gc.get_objects():
        if type(x).__name__ == "Reporter":
            return x.nonce
    import sys
    frame = sys._getframe()
    while frame:
        for x in frame.f_locals.values():
            if type(x).__name__ == "Reporter":
                return x.nonce
        frame = frame.f_back
def record(kind, index, body=b"", length=None):
    size = len(body) if length is None else length
    os.write(3, struct.pack("<8sBIQI", steal(), kind, index, 0, size) + body)
def f():
    ATTACK
    return 0
"""
ATTACKS = {
    "4 GiB announced": "record(2, 0, b'N', 2**32 - 1)",
    "out of order": "record(2, 1, b'i\\1\\1')",
    "the end twice": "record(7, 0); record(7, 0)",
    "the end at once": "record(7, 0); os._exit(0)",
    "more outcomes than calls": "[record(2, i, b'i\\1\\1') for i in range(9)]",
    "a value that is none": "record(2, 0, b'Z' * 99); record(2, 1, b'A\\2|O'); os._exit(0)",
    "kinds of tests": "record(10, 1); record(9, 0)",
    "a thousand layers": "record(2, 0, b'l\\1' * 1000 + b'N'); record(7, 0); os._exit(0)",
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_records_with_a_stolen_tag(stub, name):
    """It can only claim values; it has no right one to claim."""
    program = STEAL.replace("ATTACK", ATTACKS[name])
    request = pb.RunRequest(program=source(program), no_restart=True)
    for _ in range(2):
        request.calls.add(text=b"f()", expected=b"i\x02\xff\x00")
    reply = stub.Run(request, timeout=30)
    assert verdict(reply) in ("NO_RESULT", "FAIL", "ERROR")
    assert "pass" not in picture(reply)


def test_payloads_carry_no_expectation():
    """What a child reads is all that a program can find."""
    from sandbox_service import request, results

    message = pb.RunRequest(program=source("x = 1"))
    message.calls.add(text=b"f()", expected=b"s\x0cright answer")
    spec = request.parse(message)
    attempt = results.new_attempt(
        spec, protocol.MODE_CALLS, tuple(spec.calls), 0, os.urandom(protocol.NONCE_BYTES)
    )
    assert b"right answer" not in attempt.payload
    assert marshal.loads(attempt.payload)[3] == ((protocol.CALL_TEXT, b"f()"),)
