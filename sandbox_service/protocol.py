"""What crosses the pipes and sockets between the supervisor, its slots and the children.

Supervisor -> grand zygote (SEQPACKET): a marshalled `SLOT` tuple plus the slot's control socket.
Supervisor -> slot (SEQPACKET): `START` plus three file descriptors (payload, results, output) and,
for a JUDGED pair, a fourth: the channel between program and tests (proxy.py). `STOP` ends the run
that is in progress.
Slot -> supervisor: `READY` once, then one `END` per run, before it `ASLEEP` if the run uses little
of its processor.
Child -> supervisor (pipe): records, see `parse_records`. These bytes are the candidate's claims.

The payload travels as a file descriptor that only the child reads: a zygote that had read a program
would hand its freed memory to every later child.
"""

import struct
from typing import NamedTuple

# Control messages of a slot; the first byte is the kind.
START = struct.Struct("<BQddQQ")  # kind, run id, cpu_s, wall_s, memory_bytes, payload_bytes
STOP = struct.Struct("<BQ")  # kind, run id; also ASLEEP
END = struct.Struct("<BQiBdQ")  # kind, run id, wait status, reason, cpu_s, peak_rss_bytes
MSG_START, MSG_STOP, MSG_END, MSG_READY, MSG_ASLEEP = 1, 2, 3, 4, 5

# Why a slot ended a run (`END.reason`).
REASON_NONE, REASON_CPU, REASON_WALL, REASON_MEMORY, REASON_STOPPED = 0, 1, 2, 3, 4

# Records of a child.
NONCE_BYTES = 8
RECORD = struct.Struct("<8sBIQI")  # nonce, kind, index, cpu_us, body bytes
LOADED, VALUE, ERROR, OPAQUE, OVERSIZED, LOAD_ERROR, FINISHED, STARTED = range(1, 9)
# Of a child that runs tests: a test that passed is a VALUE without body, one whose assertion failed
# is FAILED. PLAN says in `index` how many tests are known, in `cpu_us` (1) that these are all.
# CALLING and RETURNED enclose the time in which the tests wait for the program; GONE: it is not
# there any more. TESTS_ERROR: the tests themselves do not load.
FAILED, PLAN, CALLING, RETURNED, GONE, TESTS_ERROR = range(9, 15)

# What a payload asks for.
MODE_CALLS, MODE_IN_PROCESS, MODE_SCRIPT, MODE_SERVE, MODE_TESTS = range(5)

# Kinds of a call in a payload.
CALL_TEXT, CALL_INVOCATION = 0, 1

MAX_TESTS = 10_000


class Record(NamedTuple):
    """One claim of a child: `kind` VALUE carries codec bytes, ERROR and LOAD_ERROR a text pair."""

    kind: int
    call: int
    cpu_us: int
    body: bytes


class Claims(NamedTuple):
    """All that a child said, in order, as far as it kept to the protocol."""

    is_started: bool
    is_loaded: bool
    load_error: bytes | None
    outcomes: list[Record]
    is_finished: bool
    violation: str
    num_tests: int = 0  # known so far
    has_all_tests: bool = False
    num_calling: int = 0  # calls of the program that the tests wait for
    is_gone: bool = False
    tests_error: bytes | None = None


def parse_records(
    data: bytes, nonce: bytes, first_index: int, num_calls: int, *, is_suite: bool = False
) -> Claims:
    """Reads what a child wrote; any bytes are allowed and a violation ends the reading.

    STARTED comes before any code of the candidate, which cannot take it back: where it is missing
    the sandbox itself failed. Outcomes must carry the indices first_index, first_index + 1, ... in
    order. A record that is cut off at the end is no violation: the child may have been killed while
    it wrote. `is_suite`: the child runs tests, whose number it says itself (`num_calls` is the
    most); otherwise the kinds from FAILED on are violations.
    """
    outcomes: list[Record] = []
    is_started = is_loaded = is_finished = False
    load_error: bytes | None = None
    violation = ""
    num_tests = num_calling = 0
    has_all_tests = is_gone = False
    tests_error: bytes | None = None
    outcome_kinds: tuple[int, ...] = (VALUE, ERROR, OPAQUE, OVERSIZED)
    if is_suite:
        outcome_kinds = (VALUE, ERROR, FAILED)
    at = 0
    while at + RECORD.size <= len(data):
        tag, kind, index, cpu_us, length = RECORD.unpack_from(data, at)
        if tag != nonce:
            violation = "a record without the tag of this run"
        elif is_finished:
            violation = "a record after the end"
        elif kind == STARTED and not is_started and at == 0 and length == 0:
            is_started = True
        elif kind == LOADED and not is_loaded and load_error is None and length == 0:
            is_loaded = True
        elif kind == LOAD_ERROR and not is_loaded and load_error is None:
            load_error = data[at + RECORD.size : at + RECORD.size + length]
        elif (
            kind == FINISHED
            and length == 0
            and (is_loaded or load_error is not None or tests_error is not None)
        ):
            is_finished = True
        elif kind in outcome_kinds and is_loaded:
            if index != first_index + len(outcomes) or index >= num_calls:
                violation = f"an outcome out of order (call {index})"
            elif at + RECORD.size + length <= len(data):
                body = data[at + RECORD.size : at + RECORD.size + length]
                outcomes.append(Record(kind, index, cpu_us, body))
        elif is_suite and kind == PLAN and index <= num_calls:
            num_tests, has_all_tests = index, cpu_us == 1
        elif is_suite and kind in (CALLING, RETURNED) and length == 0:
            num_calling += 1 if kind == CALLING else -1
        elif is_suite and kind == GONE and length == 0:
            is_gone = True
        elif is_suite and kind == TESTS_ERROR:
            tests_error = data[at + RECORD.size : at + RECORD.size + length]
        else:
            violation = f"a record of kind {kind} out of place"
        if violation:
            break
        at += RECORD.size + length
    return Claims(
        is_started,
        is_loaded,
        load_error,
        outcomes,
        is_finished,
        violation,
        num_tests,
        has_all_tests,
        num_calling,
        is_gone,
        tests_error,
    )


def pack_error(type_name: str, message: str) -> bytes:
    """The body of ERROR and LOAD_ERROR: name, NUL, message, in UTF-8 with replacement."""
    name = type_name[:200].encode("utf-8", "backslashreplace").replace(b"\0", b"?")
    return name + b"\0" + message[:2000].encode("utf-8", "backslashreplace")


def unpack_error(body: bytes) -> tuple[str, str]:
    """Reads `pack_error`; any bytes give two short strings."""
    name, _, message = body[:12_000].partition(b"\0")
    return name[:800].decode("utf-8", "replace"), message.decode("utf-8", "replace")
