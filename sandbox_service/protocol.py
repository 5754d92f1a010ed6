"""What crosses the pipes and sockets between the supervisor, its slots and the children.

Supervisor -> grand zygote (SEQPACKET): a marshalled `SLOT` tuple plus the slot's control socket.
Supervisor -> slot (SEQPACKET): `START` plus three file descriptors (payload, results, output);
`STOP` ends the run that is in progress.
Slot -> supervisor: `READY` once, then one `END` per run.
Child -> supervisor (pipe): records, see `parse_records`. These bytes are the candidate's claims.

The payload travels as a file descriptor that only the child reads: a zygote that had read a program
would hand its freed memory to every later child.
"""

import struct
from typing import NamedTuple

# Control messages of a slot; the first byte is the kind.
START = struct.Struct("<BQddQQ")  # kind, run id, cpu_s, wall_s, memory_bytes, payload_bytes
STOP = struct.Struct("<BQ")  # kind, run id
END = struct.Struct("<BQiBdQ")  # kind, run id, wait status, reason, cpu_s, peak_rss_bytes
MSG_START, MSG_STOP, MSG_END, MSG_READY = 1, 2, 3, 4

# Why a slot ended a run (`END.reason`).
REASON_NONE, REASON_CPU, REASON_WALL, REASON_MEMORY, REASON_STOPPED = 0, 1, 2, 3, 4

# Records of a child.
NONCE_BYTES = 8
RECORD = struct.Struct("<8sBIQI")  # nonce, kind, index, cpu_us, body bytes
LOADED, VALUE, ERROR, OPAQUE, OVERSIZED, LOAD_ERROR, FINISHED, STARTED = range(1, 9)

# Kinds of a call in a payload.
CALL_TEXT, CALL_INVOCATION = 0, 1


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


def parse_records(data: bytes, nonce: bytes, first_index: int, num_calls: int) -> Claims:
    """Reads what a child wrote; any bytes are allowed and a violation ends the reading.

    STARTED comes before any code of the candidate, which cannot take it back: where it is missing
    the sandbox itself failed. Outcomes must carry the indices first_index, first_index + 1, ... in
    order. A record that is cut off at the end is no violation: the child may have been killed while
    it wrote.
    """
    outcomes: list[Record] = []
    is_started = is_loaded = is_finished = False
    load_error: bytes | None = None
    violation = ""
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
        elif kind == FINISHED and (is_loaded or load_error is not None) and length == 0:
            is_finished = True
        elif kind in (VALUE, ERROR, OPAQUE, OVERSIZED) and is_loaded:
            if index != first_index + len(outcomes) or index >= num_calls:
                violation = f"an outcome out of order (call {index})"
            elif at + RECORD.size + length <= len(data):
                body = data[at + RECORD.size : at + RECORD.size + length]
                outcomes.append(Record(kind, index, cpu_us, body))
        else:
            violation = f"a record of kind {kind} out of place"
        if violation:
            break
        at += RECORD.size + length
    return Claims(is_started, is_loaded, load_error, outcomes, is_finished, violation)


def pack_error(type_name: str, message: str) -> bytes:
    """The body of ERROR and LOAD_ERROR: name, NUL, message, in UTF-8 with replacement."""
    name = type_name[:200].encode("utf-8", "backslashreplace").replace(b"\0", b"?")
    return name + b"\0" + message[:2000].encode("utf-8", "backslashreplace")


def unpack_error(body: bytes) -> tuple[str, str]:
    """Reads `pack_error`; any bytes give two short strings."""
    name, _, message = body[:12_000].partition(b"\0")
    return name[:800].decode("utf-8", "replace"), message.decode("utf-8", "replace")
