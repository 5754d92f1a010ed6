"""Reads the statements of a test suite: which call, compared with which answer.

The whole text is parsed first, so that asserts over several lines, in functions and in loops are
seen as Python sees them. Text that does not parse as a whole goes through a line scanner, which
reads one statement at a time and also accepts list markers and backticks. Names bound by plain
assignments are replaced by their values on both sides of the comparison; a name whose value may
have changed since (mutated, bound by a loop, imported) is not.
"""

import ast
import copy
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from codea1_jax.coevo.syntax import parse_python

MAX_STATEMENT_CHARS = 400
_MAX_RESOLVED_NODES = 20_000
_MAX_DEPTH = 120
_MAX_BLOCK_LINES = 60
_MAX_SCANNED_LINES = 20_000

NOT_EQUALITY = "not an equality with a call"
NOT_A_CALL = "no call is compared"
NOT_PYTHON = "not Python"
TOO_LARGE = "too large or too deeply nested"


@dataclasses.dataclass(frozen=True)
class Statement:
    """One statement of a suite.

    Attributes:
      text: source as written, at most `MAX_STATEMENT_CHARS`.
      call: the call under test with known names replaced; None when dropped.
      answer: the expression it is compared with; None when dropped or in call-only suites.
      reason: why it was dropped; empty otherwise.
    """

    text: str
    call: ast.Call | None = None
    answer: ast.expr | None = None
    reason: str = ""


class _ResolveError(Exception):
    """An expression outgrew the caps while names were replaced."""


@dataclasses.dataclass(frozen=True)
class _Bound:
    """A resolved expression, its size and depth; `expr` None: the name's value is not known."""

    expr: ast.expr | None
    num_nodes: int = 0
    depth: int = 0


_UNKNOWN = _Bound(None)


@dataclasses.dataclass
class _Spent:
    """What resolving one expression has used up."""

    num_nodes: int = 0
    depth: int = 0

    def add(self, num_nodes: int, depth: int) -> None:
        self.num_nodes += num_nodes
        self.depth = max(self.depth, depth)
        if self.num_nodes > _MAX_RESOLVED_NODES or self.depth > _MAX_DEPTH:
            raise _ResolveError


class StatementReader:
    """Collects `statements` over one or more texts that share their assignments."""

    def __init__(self, entry_point: str, predicted_answer: bool, accept_bare_asserts: bool):
        self.statements: list[Statement] = []
        self._entry_point = entry_point
        self._predicted_answer = predicted_answer
        self._accept_bare_asserts = accept_bare_asserts
        self._names: dict[str, _Bound] = {}
        self._lines_left = _MAX_SCANNED_LINES
        self._indented: list[tuple[int, str]] = []  # names the scanner saw bound in a block

    def read(self, text: str) -> None:
        """Adds the statements of `text`. Never raises."""
        tree = parse_python(text)
        if tree is not None:
            self._read_tree(tree, text.split("\n"))
        else:
            self._scan_lines(text)

    # Statements of a syntax tree, in order of writing.

    def _read_tree(self, tree: ast.Module, lines: list[str]) -> None:
        # An explicit stack: deeply nested text must not exhaust Python's own. Callables on it run
        # when the block before them has been read.
        pending: list[ast.stmt | Callable[[], None]] = list(reversed(tree.body))
        while pending:
            item = pending.pop()
            if isinstance(item, ast.stmt):
                pending.extend(reversed(self._read_statement(item, lines)))
            else:
                item()

    def _read_statement(
        self, node: ast.stmt, lines: list[str]
    ) -> Sequence[ast.stmt | Callable[[], None]]:
        """Handles one statement; returns what comes next inside it."""
        if isinstance(node, ast.Assert):
            self._add(node.test, _source_of(node, lines))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self._assign(node)
        elif isinstance(node, ast.Expr) and self._is_bare_statement(node.value):
            self._add(node.value, _source_of(node, lines))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._read_function(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._forget(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.AugAssign | ast.Delete):
            self._forget(_names_in(node))
        else:
            return self._read_compound(node)
        return []

    def _read_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> Sequence[ast.stmt | Callable[[], None]]:
        """Names bound inside a function end with it."""
        self._forget([node.name])
        outside = dict(self._names)

        def leave() -> None:
            self._names = outside

        self._forget(a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg))
        return [*node.body, leave]

    def _read_compound(self, node: ast.stmt) -> Sequence[ast.stmt | Callable[[], None]]:
        """Any other statement: what its calls may have changed or its branches bound is unknown."""
        bodies: list[ast.stmt | Callable[[], None]] = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                bodies.append(child)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                bodies.extend(child.body)
            elif any(isinstance(n, ast.Call) for n in ast.walk(child)):
                self._forget(_names_in(child))
        if not bodies:
            return bodies
        bound = [n for n in _names_in(node, stored_only=True) if not isinstance(node, ast.ClassDef)]
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            # What a loop binds differs from one round to the next, also before the binding.
            self._forget(bound)
        return [*bodies, lambda: self._forget(bound)]

    def _is_bare_statement(self, value: ast.expr) -> bool:
        return not self._predicted_answer and isinstance(value, ast.Call)

    # Names.

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._names[name] = _UNKNOWN

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        if value is None:  # `x: int` binds nothing
            return
        for target in targets:
            pairs = _pairs(target, value)
            # All right-hand sides see the names as they were before the assignment.
            bound = [(name, self._bind(expr)) for name, expr in pairs]
            for name, binding in bound:
                self._names[name] = binding

    def _bind(self, expr: ast.expr | None) -> _Bound:
        if expr is None:
            return _UNKNOWN
        spent = _Spent()
        try:
            return _Bound(self._resolve(expr, spent, 0), spent.num_nodes, spent.depth)
        except _ResolveError:
            return _UNKNOWN

    def _resolve(self, node: Any, spent: _Spent, depth: int) -> Any:
        """`node` with known names replaced by their values.

        Values were resolved when they were bound, so there are no cycles. Shared sub-trees make
        doubling chains cheap to hold; the size cap keeps them from being expanded later.
        """
        if isinstance(node, ast.Name):
            bound = self._names.get(node.id, _UNKNOWN)
            if bound.expr is not None:
                spent.add(bound.num_nodes, depth + bound.depth)
                return bound.expr
        spent.add(1, depth)
        changed: dict[str, Any] = {}
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr | ast.keyword):
                changed[field] = self._resolve(value, spent, depth + 1)
            elif isinstance(value, list):
                changed[field] = [
                    self._resolve(item, spent, depth + 1) if isinstance(item, ast.AST) else item
                    for item in value
                ]
        if not changed:
            return node
        replaced = copy.copy(node)
        for field, value in changed.items():
            setattr(replaced, field, value)
        return replaced

    # One statement.

    def _add(self, expr: ast.expr, text: str) -> None:
        text = text.strip()[:MAX_STATEMENT_CHARS]
        try:
            # Most suites bind no names; there is nothing to replace then.
            resolved = self._resolve(expr, _Spent(), 0) if self._names else expr
        except _ResolveError:
            self.statements.append(Statement(text, reason=TOO_LARGE))
            return
        self.statements.append(self._statement(resolved, text))

    def _statement(self, expr: ast.expr, text: str) -> Statement:
        if not self._predicted_answer:
            call = _first_call(expr)
            return Statement(text, call) if call else Statement(text, reason=NOT_A_CALL)
        if isinstance(expr, ast.Compare) and len(expr.ops) == 1:
            left, right, operator = expr.left, expr.comparators[0], expr.ops[0]
            if isinstance(operator, ast.Is) and _is_singleton(right) and isinstance(left, ast.Call):
                return Statement(text, left, right)
            if isinstance(operator, ast.Eq):
                is_mirrored = not isinstance(left, ast.Call) or (
                    self._is_under_test(right) and not self._is_under_test(left)
                )
                if is_mirrored:
                    left, right = right, left
                if isinstance(left, ast.Call):
                    return Statement(text, left, right)
                return Statement(text, reason=NOT_A_CALL)
        elif self._accept_bare_asserts:
            answer = True
            while isinstance(expr, ast.UnaryOp) and isinstance(expr.op, ast.Not):
                expr, answer = expr.operand, not answer
            if isinstance(expr, ast.Call):
                return Statement(text, expr, ast.Constant(answer))
        return Statement(text, reason=NOT_EQUALITY)

    def _is_under_test(self, expr: ast.expr) -> bool:
        return (
            isinstance(expr, ast.Call)
            and isinstance(expr.func, ast.Name)
            and expr.func.id == self._entry_point
        )

    # The line scanner.

    def _scan_lines(self, text: str) -> None:
        lines = text.split("\n")
        index = 0
        while index < len(lines) and self._lines_left > 0:
            line = _unmarked(lines[index])
            self._lines_left -= 1
            self._leave_blocks(lines[index])
            if self._starts_statement(line):
                index = self._scan_statement(lines, index, line)
                continue
            if changed := _CHANGES_NAMES.match(line):
                named = changed.group("name")
                self._forget([named] if named else _IDENTIFIER.findall(line))
            index += 1

    def _leave_blocks(self, line: str) -> None:
        """Names bound in a deeper indented block are unknown after it."""
        if not line.strip():
            return
        indent = len(line) - len(line.lstrip())
        while self._indented and self._indented[-1][0] > indent:
            self._forget([self._indented.pop()[1]])

    def _starts_statement(self, line: str) -> bool:
        if _ASSERT.match(line) or _ASSIGNMENT.match(line):
            return True
        return not self._predicted_answer and line.startswith(f"{self._entry_point}(")

    def _scan_statement(self, lines: list[str], index: int, line: str) -> int:
        """Reads the statement that starts at `index`; returns the index after it."""
        scan = _BracketScan()
        collected = [line]
        is_open = scan.feed(line)
        after = index + 1
        while is_open and after < len(lines) and len(collected) < _MAX_BLOCK_LINES:
            if not scan.is_in_string and _ASSERT.match(_unmarked(lines[after])):
                break
            collected.append(lines[after])
            is_open = scan.feed(lines[after])
            self._lines_left -= 1
            after += 1
        source = "\n".join(collected)
        tree = parse_python(source)
        if tree is not None:
            self._read_tree(tree, source.split("\n"))
            if indent := len(lines[index]) - len(lines[index].lstrip()):
                self._indented += [(indent, name) for name in _names_in(tree, stored_only=True)]
            return after
        if not _ASSIGNMENT.match(line):
            text = source.strip()[:MAX_STATEMENT_CHARS]
            self.statements.append(Statement(text, reason=NOT_PYTHON))
        # A broken statement must not swallow the lines after it.
        return index + 1


_ASSERT = re.compile(r"assert(?![A-Za-z0-9_])")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*[ \t]*(?::[^=\n]{1,60})?=(?!=)")
# `x.append(1)`, `x[0] = 1`, `x += 1` change a name; a header or an import binds all it mentions.
_CHANGES_NAMES = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:[.\[]|[ \t]*[-+*/|&^%@<>]{1,2}=)"
    r"|(?:for|with|def|class|del|import|from)[ \t]"
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LIST_MARKER = re.compile(r"(?:[-*+]|\d{1,4}[.):])[ \t]+")


def _unmarked(line: str) -> str:
    """`line` without indentation, list marker and surrounding backticks."""
    line = line.strip()
    line = _LIST_MARKER.sub("", line, count=1) if _LIST_MARKER.match(line) else line
    if line.startswith("`") and not line.startswith("```"):
        line = line.strip("`").strip()
    return line


class _BracketScan:
    """Follows brackets and strings over lines: is a statement still open?"""

    def __init__(self) -> None:
        self._balance = 0
        self._quote = ""

    @property
    def is_in_string(self) -> bool:
        return bool(self._quote)

    def feed(self, line: str) -> bool:
        """Takes the next line; True when the statement goes on after it."""
        position = 0
        while position < len(line):
            position = self._step(line, position)
        if self._quote and len(self._quote) == 1:  # a plain string ends with its line
            self._quote = ""
        return bool(self._quote) or self._balance > 0 or line.endswith("\\")

    def _step(self, line: str, position: int) -> int:
        char = line[position]
        if self._quote:
            if char == "\\":
                return position + 2
            if line.startswith(self._quote, position):
                length = len(self._quote)
                self._quote = ""
                return position + length
            return position + 1
        if char == "#":
            return len(line)
        if char in "'\"":
            self._quote = char * 3 if line.startswith(char * 3, position) else char
            return position + len(self._quote)
        if char in "([{":
            self._balance += 1
        elif char in ")]}":
            self._balance -= 1
        return position + 1


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr | None]]:
    """Names bound by `target = value` with their expressions (None: not known)."""
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if (
        isinstance(target, ast.Tuple | ast.List)
        and isinstance(value, ast.Tuple | ast.List)
        and len(target.elts) == len(value.elts)
        and not any(isinstance(e, ast.Starred) for e in [*target.elts, *value.elts])
    ):
        return [pair for t, v in zip(target.elts, value.elts) for pair in _pairs(t, v)]
    return [(name, None) for name in _names_in(target)]


def _names_in(node: ast.AST, stored_only: bool = False) -> list[str]:
    return [
        n.id
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and not (stored_only and isinstance(n.ctx, ast.Load))
    ]


def _first_call(expr: ast.expr) -> ast.Call | None:
    """The call of a call-only test: the expression itself, or a side of a comparison."""
    while isinstance(expr, ast.UnaryOp) and isinstance(expr.op, ast.Not):
        expr = expr.operand
    sides = [expr.left, *expr.comparators] if isinstance(expr, ast.Compare) else [expr]
    return next((side for side in sides if isinstance(side, ast.Call)), None)


def _is_singleton(expr: ast.expr) -> bool:
    return isinstance(expr, ast.Constant) and (expr.value is None or isinstance(expr.value, bool))


def _source_of(node: ast.stmt, lines: list[str]) -> str:
    """Source lines of `node`; neighbours on the same lines are cut off where columns allow it."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    if first == last:
        line = lines[first].encode("utf-8", "surrogatepass")[node.col_offset : node.end_col_offset]
        return line.decode("utf-8", "replace")
    return "\n".join(lines[first : last + 1])
