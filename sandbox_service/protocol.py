"""What crosses the pipes and sockets between the supervisor, its slots and the children.

Supervisor -> grand zygote (SEQPACKET): a marshalled `SLOT` tuple plus the slot's control socket.
Supervisor -> slot (SEQPACKET): `START` plus three file descriptors (payload, results, output) and,
for a JUDGED pair, a fourth: the channel between program and tests (proxy.py). `STOP` ends the run
that is in progress.
Slot -> supervisor: `READY` once, then one `END` per run, before it `ASLEEP` if the run uses little
of its processor.
Child -> supervisor (pipe): records, see claims.py. These bytes are the candidate's claims.

The payload travels as a file descriptor that only the child reads: a zygote that had read a program
would hand its freed memory to every later child.
"""

import struct

# Control messages of a slot; the first byte is the kind.
# kind, run id, cpu_s, wall_s, bytes of memory of each process and of all, of the payload
START = struct.Struct("<BQddQQQ")
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


def pack_error(type_name: str, message: str) -> bytes:
    """The body of ERROR and LOAD_ERROR: name, NUL, message, in UTF-8 with replacement."""
    name = type_name[:200].encode("utf-8", "backslashreplace").replace(b"\0", b"?")
    return name + b"\0" + message[:2000].encode("utf-8", "backslashreplace")


def unpack_error(body: bytes) -> tuple[str, str]:
    """Reads `pack_error`; any bytes give two short strings."""
    name, _, message = body[:12_000].partition(b"\0")
    return name[:800].decode("utf-8", "replace"), message.decode("utf-8", "replace")
