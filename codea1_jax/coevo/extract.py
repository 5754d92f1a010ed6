"""Python out of model text: the coder's solution, the tester's statements.

Model text may be empty, cut off, absurd or hostile. Nothing here raises because of it, nothing here
executes any of it: text is only parsed, under caps on size and depth.

Example: the suite

    ```python
    xs = [3, 1]
    assert f(xs) == [1, 3]
    assert f([]) is not None
    ```

gives two statements: call `f([3, 1])` with answer `[1, 3]`, and one that is dropped with the reason
"not an equality". Both count as written.
"""

import ast
import dataclasses
import re
import string
import unicodedata
from typing import Literal

from codea1_jax.coevo.statements import Statement, StatementReader
from codea1_jax.coevo.syntax import MAX_CHARS, parse_python

MAX_SUITE_CHARS = 50_000

_FENCE = re.compile(r"(?P<ticks>`{3,}|~{3,})[ \t]*(?P<tag>[A-Za-z0-9_+.#-]*)")
_MAX_BLOCKS = 256
_MAX_CLOSINGS = 8


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block. `is_closed` is False when the text ends inside it."""

    text: str
    tag: str
    is_closed: bool


def fenced_blocks(response: str) -> list[Block]:
    """Fenced blocks of any tag, in order. The last one may be unterminated.

    When the text up to the first closing fence does not parse (a fence inside a string, say), later
    ones are tried.
    """
    blocks: list[Block] = []
    position = 0
    while len(blocks) < _MAX_BLOCKS:
        opening = _FENCE.search(response, position)
        if opening is None:
            break
        ticks, tag, start = opening.group("ticks"), opening.group("tag"), opening.end()
        line_end = response.find("\n", start)
        first_line = response[start:] if line_end < 0 else response[start:line_end]
        if ticks in first_line:  # the whole block stands on one line
            text = first_line[: first_line.index(ticks)].strip()
            is_tag = tag.lower() in ("", "python", "py", "python3")
            blocks.append(Block(text if is_tag else f"{tag} {text}", tag if is_tag else "", True))
            position = start + first_line.index(ticks) + len(ticks)
            continue
        if line_end < 0:  # nothing after the opening fence's line
            break
        start = line_end + 1
        stop, position = _closing(response, start, ticks)
        blocks.append(Block(response[start:stop], tag, position >= 0))
        if position < 0:
            break
    return blocks


def _closing(response: str, start: int, ticks: str) -> tuple[int, int]:
    """Where the block from `start` ends and where the text goes on; (end of text, -1) if open."""
    ends: list[tuple[int, int]] = []
    position = start
    while len(ends) < _MAX_CLOSINGS:
        found = response.find(ticks, position)
        if found < 0:
            break
        position = found + len(ticks)
        ends.append((found, position))
    if not ends:
        return len(response), -1
    for stop, after in ends:
        if parse_python(response[start:stop]) is not None:
            return stop, after
    for stop, after in ends:
        line_start = response.rfind("\n", 0, stop) + 1
        if not response[line_start:stop].strip():
            return stop, after
    return ends[0]


@dataclasses.dataclass(frozen=True)
class ExtractedCode:
    """The coder's solution as read from its response.

    Attributes:
      text: program text (possibly empty or unparsable).
      is_parsed: `text` is Python.
      defines_entry_point: a top-level statement binds the entry point's name.
      is_truncated: the block was never closed, or the response exceeded the size cap.
    """

    text: str
    is_parsed: bool
    defines_entry_point: bool
    is_truncated: bool


def extract_code(response: str, entry_point: str) -> ExtractedCode:
    """The last complete block that defines `entry_point`.

    Without one: an unterminated block that does, the whole response if it does, the last block that
    parses, the last block, the whole response, in this order.
    """
    is_cut = len(response) > MAX_CHARS
    response = response[:MAX_CHARS]
    blocks = fenced_blocks(response)
    complete = [b for b in blocks if b.is_closed]
    open_blocks = [b for b in blocks if not b.is_closed]
    candidates = [(b.text, False) for b in reversed(complete)]
    candidates += [(b.text, True) for b in open_blocks]
    candidates.append((response, False))
    parsed_fallback: ExtractedCode | None = None
    for text, is_open in candidates:
        text = text.strip("\r\n")
        tree = parse_python(text)
        if tree is None:
            continue
        defines = _defines(tree, entry_point)
        found = ExtractedCode(text, True, defines, is_open or is_cut)
        if defines:
            return found
        if parsed_fallback is None and text.strip():
            parsed_fallback = found
    if parsed_fallback is not None:
        return parsed_fallback
    if complete:
        return ExtractedCode(complete[-1].text.strip("\r\n"), False, False, is_cut)
    if open_blocks:
        return ExtractedCode(open_blocks[-1].text.strip("\r\n"), False, False, True)
    return ExtractedCode(response.strip("\r\n"), False, False, is_cut)


def _defines(tree: ast.Module, name: str) -> bool:
    """Whether some statement outside function and class bodies binds `name`."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == name:
                return True
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if any((alias.asname or alias.name) == name for alias in node.names):
                return True
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return True
        else:
            pending += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
            for handler in getattr(node, "handlers", []):
                pending += handler.body
    return False


@dataclasses.dataclass(frozen=True)
class ExtractedSuite:
    """The tester's statements, every assert it wrote counted.

    Attributes:
      statements: in order of writing; dropped ones have a `reason`.
      is_truncated: the last block was never closed, or the response exceeded the size cap.
    """

    statements: tuple[Statement, ...]
    is_truncated: bool


def extract_suite(
    response: str,
    entry_point: str,
    predicted_answer: bool = True,
    accept_bare_asserts: bool = False,
) -> ExtractedSuite:
    """Statements of all fenced blocks, or of the whole response when there are none.

    Args:
      entry_point: name of the function under test; used to tell the two sides of a comparison
        apart, not enforced here.
      predicted_answer: read asserts; False reads bare calls (and the call inside an assert).
      accept_bare_asserts: read `assert f(x)` as True and `assert not f(x)` as False.
    """
    is_cut = len(response) > MAX_SUITE_CHARS
    response = response[:MAX_SUITE_CHARS]
    blocks = fenced_blocks(response)
    reader = StatementReader(entry_point, predicted_answer, accept_bare_asserts)
    texts = [b.text for b in blocks] if blocks else [response]
    for text in texts:
        reader.read(text)
    is_open = bool(blocks) and not blocks[-1].is_closed
    return ExtractedSuite(tuple(reader.statements), is_cut or is_open)


def penalised_share(response: str, mode: Literal["off", "ascii", "control"]) -> float:
    """Share of characters that the configured penalty counts, 0 to 1.

    "ascii": all outside Python's `string.printable`, as the released system does; "control": only
    control characters other than tab and line ends.
    """
    if mode == "off" or not response:
        return 0.0
    if mode == "ascii":
        return sum(char not in _PRINTABLE for char in response) / len(response)
    return sum(_is_control(char) for char in response) / len(response)


_PRINTABLE = frozenset(string.printable)


def _is_control(char: str) -> bool:
    return unicodedata.category(char) == "Cc" and char not in "\t\n\r"
