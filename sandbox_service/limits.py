"""Limits of runs and of requests: defaults, and the most that a request may ask for."""

from dataclasses import dataclass, replace

MIB = 1 << 20


@dataclass(frozen=True)
class RunLimits:
    """Limits of one process; a run that restarts after a hanging call gets them anew each time.

    `cpu_s` is the judge of time and counts all processes of the run; `wall_s` is the backstop.
    """

    cpu_s: float = 3.0
    call_cpu_s: float = 2.0
    wall_s: float = 10.0
    memory_bytes: int = 512 * MIB  # address space of each process; see MEMORY_SUM_FACTOR
    output_bytes: int = 4 * MIB  # stdout beyond this ends the run
    value_bytes: int = 1 * MIB  # one returned value, encoded


def default_limits(profile: str) -> RunLimits:
    """Limits of a request that names none: numpy reserves address space that it does not use."""
    if profile == "numpy":
        return replace(RunLimits(), memory_bytes=4096 * MIB)
    return RunLimits()


MAX_LIMITS = RunLimits(
    cpu_s=300.0,
    call_cpu_s=300.0,
    wall_s=900.0,
    memory_bytes=64 * 1024 * MIB,
    output_bytes=64 * MIB,
    value_bytes=8 * MIB,
)

MIN_MEMORY_BYTES = 64 * MIB  # below this the interpreter itself does not start

# rlimits every child of a slot has, by their names in `resource`; capped at the hard limit.
SLOT_RLIMITS = {
    "CORE": 1,  # too small for any file, and unlike 0 also for what is piped to a handler: core(5)
    "NOFILE": 64,
    "FSIZE": 16 * MIB,
    "STACK": 64 * MIB,
    "NPROC": 32,
    "MSGQUEUE": 0,
    "MEMLOCK": 64 * 1024,
}
# All processes of a run together, their files in /tmp included, may have this many times the limit
# of one. The control group of a slot counts the slot itself too.
MEMORY_SUM_FACTOR = 4
SLOT_MEMORY_BYTES = 64 * MIB
SLOT_PROCESSES = 36
TMP_BYTES = 32 * MIB
TMP_INODES = 2048

MAX_RESTARTS = 3
KEPT_OUTPUT_BYTES = 64 * 1024
MAX_RESULT_BYTES = 24 * MIB  # all values of one run; below the message limit

MAX_PROGRAM_BYTES = 1 * MIB
MAX_CALLS = 10_000
MAX_STDIO_CASES = 1000
MAX_RERUNS = 10
MAX_CALL_BYTES = 256 * 1024
MAX_REQUEST_BYTES = 16 * MIB
MAX_MESSAGE_BYTES = 32 * MIB
QUEUE_PER_SLOT = 64
