"""What a person sees while a run works: a line per step, and the phase it is in.

On a terminal the current phase is redrawn in place; elsewhere a phase that lasts prints a line
every half minute, so that a log file shows that a long step is alive.
"""

import contextlib
import io
import sys
import time
from collections.abc import Iterator
from typing import TextIO

QUIET_S = 30.0  # between two lines about the same phase in a log file
REDRAW_S = 0.2


def duration(seconds: float) -> str:
    """`7s`, `3m05s`, `2h10m`."""
    seconds = max(0, round(seconds))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


class Progress:
    """Phase timer and progress display of a run.

    Args:
      is_silent: measure, but print nothing.

    Attributes:
      phase_s: seconds spent in each phase since `start_step`.
      sandbox_s: seconds since `start_step` in which the sandbox judged, beside any phase.
    """

    def __init__(self, num_steps: int, stream: TextIO | None = None, is_silent: bool = False):
        self._num_steps = num_steps
        self._stream = io.StringIO() if is_silent else stream or sys.stdout
        self._is_terminal = self._stream.isatty()
        self._label, self._total, self._done = "", 0, 0
        self._phase_start = self._last_draw = time.monotonic()
        self._first_step: int | None = None
        self._run_start = time.monotonic()
        self.step = 0
        self.phase_s: dict[str, float] = {}
        self.sandbox_s = 0.0

    def start_step(self, step: int) -> None:
        """Begins step `step` (counted from 1)."""
        if self._first_step is None:
            self._first_step, self._run_start = step, time.monotonic()
        self.step = step
        self.phase_s, self.sandbox_s = {}, 0.0

    @contextlib.contextmanager
    def phase(self, label: str, total: int = 0) -> Iterator[None]:
        """Times a phase; `total` items are reported through `advance`."""
        self._label, self._total, self._done = label, total, 0
        self._phase_start = self._last_draw = time.monotonic()
        self._draw()
        try:
            yield
        finally:
            spent = time.monotonic() - self._phase_start
            self.phase_s[label] = self.phase_s.get(label, 0.0) + spent
            self._label = ""
            self._clear()

    def advance(self, count: int = 1) -> None:
        self._done += count
        wait = REDRAW_S if self._is_terminal else QUIET_S
        if time.monotonic() - self._last_draw >= wait:
            self._last_draw = time.monotonic()
            self._draw(force=True)

    def time_left_s(self) -> float:
        """Seconds to the end of the run at the mean pace so far."""
        assert self._first_step is not None
        done = self.step - self._first_step + 1
        return (time.monotonic() - self._run_start) / done * (self._num_steps - self.step)

    def finish_step(self, summary: str) -> None:
        left = duration(self.time_left_s())
        self.say(f"step {self.step}/{self._num_steps}  {summary}  left {left}")

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def _draw(self, force: bool = False) -> None:
        if not self._label:
            return
        spent = time.monotonic() - self._phase_start
        text = f"step {self.step}/{self._num_steps}  {self._label}"
        if self._total:
            text += f" {self._done}/{self._total}"
        if force and self._total and 0 < self._done < self._total:
            text += f"  left {duration(spent / self._done * (self._total - self._done))}"
        if self._is_terminal:
            print(f"\r\033[K{text}", end="", file=self._stream, flush=True)
        elif force:
            print(text, file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._is_terminal:
            print("\r\033[K", end="", file=self._stream, flush=True)
