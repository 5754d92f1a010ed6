"""What cages take from the standard library, without what its Python halves cost.

Every page that a slot has touched is copied in the page tables of each child and freed again at its
end. `signal`, `socket`, `typing`, `contextlib` and what they import build enumerations and classes
that no cage needs: without them there are half as many pages. Programs that want them import them,
and profiles may (zygote.py).
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; `typing` itself would have to be imported
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn
else:
    import _signal as signal

    Any = Callable = Iterable = NoReturn = None  # only for annotations, which nobody evaluates

__all__ = ["Any", "Callable", "Iterable", "NoReturn", "signal", "suppress"]


class suppress:
    """`contextlib.suppress`."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *unused: object) -> bool:
        return kind is not None and issubclass(kind, self._kinds)
