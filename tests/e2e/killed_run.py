"""`codea1 train` that kills itself.

    python killed_run.py STEP PHASE DELAY_S TRAIN_ARGUMENTS...

SIGKILL comes DELAY_S seconds after the start of PHASE in step STEP; the last line says in which
phase that was.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from codea1_jax import cli
from codea1_jax.obs.progress import Progress

step, phase, delay_s = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
plain_phase = Progress.phase
now = ""


def kill() -> None:
    print(f"killed in {now or 'no phase'}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def armed_phase(self: Progress, label: str, total: int = 0) -> Iterator[None]:
    global now
    now = label
    if (self.step, label) == (step, phase):
        threading.Timer(delay_s, kill).start()
    with plain_phase(self, label, total):
        yield
    now = ""


Progress.phase = armed_phase  # type: ignore[method-assign]
sys.exit(cli.main(["train", *sys.argv[4:]]))
