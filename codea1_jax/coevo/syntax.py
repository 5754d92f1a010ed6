"""Parsing text that a model wrote, safely: capped, quiet, and never raising because of the text."""

import ast
import threading
import warnings

MAX_CHARS = 100_000

# `warnings.catch_warnings` swaps process-wide state, so parsing takes turns.
_PARSE_LOCK = threading.Lock()


def parse_python(source: str) -> ast.Module | None:
    """The syntax tree of `source`, or None when it is not Python or exceeds `MAX_CHARS`."""
    if len(source) > MAX_CHARS:
        return None
    with _PARSE_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return None
