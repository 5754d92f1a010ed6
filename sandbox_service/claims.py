"""What a child said, as far as it kept to the protocol. Read by the supervisor alone.

These bytes are the candidate's claims: any bytes are possible.
"""

from typing import NamedTuple

from sandbox_service.protocol import (
    CALLING,
    ERROR,
    FAILED,
    FINISHED,
    GONE,
    LOAD_ERROR,
    LOADED,
    OPAQUE,
    OVERSIZED,
    PLAN,
    RECORD,
    RETURNED,
    STARTED,
    TESTS_ERROR,
    VALUE,
)


class Record(NamedTuple):
    """One claim of a child: `kind` VALUE carries codec bytes, ERROR and LOAD_ERROR a text pair."""

    kind: int
    call: int
    cpu_us: int
    body: bytes


class Claims(NamedTuple):
    """All that a child said, in order, as far as it kept to the"""

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
