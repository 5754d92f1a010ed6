"""Ctrl-C and SIGTERM as a request to stop at the next safe point."""

import signal
import types
from typing import Any

from codea1_jax import distributed


class Interrupted(Exception):
    """Raised at a safe point after a stop was asked for."""


class InterruptGuard:
    """Turns the first SIGINT or SIGTERM into a flag; a second one ends the process at once.

    with InterruptGuard(print) as guard:
        ...
        guard.check()  # raises Interrupted here, where nothing is half done
    """

    def __init__(self, say: Any):
        self._say = say
        self._is_asked = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> "InterruptGuard":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def check(self) -> None:
        if distributed.any_process(self._is_asked):
            raise Interrupted

    def _ask(self, number: int, frame: types.FrameType | None) -> None:
        if self._is_asked:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._is_asked = True
        self._say("stopping at the next safe point, then saving (again to stop at once)")
