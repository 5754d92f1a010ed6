"""Small faults put into a Python function: the usual slips of somebody who knows the language.

Used to show a tester candidates that are nearly right, and to give a warm-started coder something
to unlearn. Programs with a fault may be equivalent to the original; whoever
needs certainty runs both. Left out: faults that need data flow (wrong variable, lost update).

>>> mutants("def f(x):\\n    return x >= 3")[0]
'def f(x):\\n    return x > 3'
"""

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator

# Comparison operators with the boundary moved to the other side, then with the direction turned.
_BOUNDARY: dict[type, type] = {ast.GtE: ast.Gt, ast.Gt: ast.GtE, ast.LtE: ast.Lt, ast.Lt: ast.LtE}
_DIRECTION: dict[type, type] = {
    ast.GtE: ast.LtE,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.Lt: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
_ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.FloorDiv,
    ast.FloorDiv: ast.Mod,
}
_CALLS = {"max": "min", "min": "max", "any": "all", "all": "any", "sum": "len"}
_METHODS = {
    "upper": "lower",
    "lower": "upper",
    "startswith": "endswith",
    "endswith": "startswith",
    "lstrip": "rstrip",
    "rstrip": "lstrip",
}

KINDS = ("boundary", "direction", "constant", "arithmetic", "logic", "branch", "call")


# An edit changes a node of a private copy of the tree in place, or returns its replacement.
_Edit = Callable[[ast.AST], ast.AST | None]


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault that can be put into one program. `kind` is one of `KINDS`."""

    kind: str
    _tree: ast.AST
    _index: int  # of the node, in the order of ast.walk
    _edit: _Edit

    def program(self) -> str:
        """Source of the program with the fault in it."""
        fresh = copy.deepcopy(self._tree)
        target = next(node for i, node in enumerate(ast.walk(fresh)) if i == self._index)
        replacement = self._edit(target)
        if replacement is not None:
            fresh = _Replace(target, replacement).visit(fresh)
        return ast.unparse(ast.fix_missing_locations(fresh))


def faults(source: str) -> list[Fault]:
    """The faults that fit `source`; the programs are made when they are asked for.

    Raises:
      SyntaxError: `source` does not parse.
    """
    tree = ast.parse(source)
    return [
        Fault(kind, tree, index, edit)
        for index, node in enumerate(ast.walk(tree))
        for kind, edit in _edits(node)
    ]


def mutants(source: str) -> list[str]:
    """All single-fault versions of `source`, without repeats."""
    seen = {ast.unparse(ast.parse(source)): None}
    for fault in faults(source):
        seen.setdefault(fault.program())
    return list(seen)[1:]


class _Replace(ast.NodeTransformer):
    """Puts `new` where `old` stands."""

    def __init__(self, old: ast.AST, new: ast.AST):
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else super().visit(node)


def _edits(node: ast.AST) -> Iterator[tuple[str, _Edit]]:
    """The faults that can be put at `node`."""
    if isinstance(node, ast.Compare):
        yield from _compare_edits(node)
    elif isinstance(node, ast.Constant):
        yield from _constant_edits(node)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield "arithmetic", lambda n: setattr(n, "op", _ARITHMETIC[type(n.op)]())  # type: ignore[attr-defined]
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield "logic", lambda n: setattr(n, "op", other())
        yield "branch", lambda n: n.values[0]  # type: ignore[attr-defined]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "logic", lambda n: n.operand  # type: ignore[attr-defined]
    elif isinstance(node, ast.IfExp):
        yield "branch", _swap_branches
        yield "branch", lambda n: n.body  # type: ignore[attr-defined]
    elif isinstance(node, ast.FunctionDef):
        for i, statement in enumerate(node.body[:-1]):
            if isinstance(statement, ast.If):  # a missing branch
                yield "branch", lambda n, i=i: n.body.pop(i) and None  # type: ignore[misc]
    elif isinstance(node, ast.comprehension) and node.ifs:
        yield "branch", lambda n: setattr(n, "ifs", [])
    elif isinstance(node, ast.Call):
        yield from _call_edits(node)


def _compare_edits(node: ast.Compare) -> Iterator[tuple[str, _Edit]]:
    for kind, table in (("boundary", _BOUNDARY), ("direction", _DIRECTION)):
        for i, op in enumerate(node.ops):
            if type(op) in table:
                new = table[type(op)]
                yield kind, lambda n, i=i, new=new: n.ops.__setitem__(i, new())  # type: ignore[misc]


def _constant_edits(node: ast.Constant) -> Iterator[tuple[str, _Edit]]:
    if isinstance(node.value, bool):
        yield "logic", lambda n: setattr(n, "value", not n.value)  # type: ignore[attr-defined]
    elif isinstance(node.value, int):
        for delta in (1, -1):
            if node.value + delta >= 0:
                value = node.value + delta
                yield "constant", lambda n, value=value: setattr(n, "value", value)  # type: ignore[misc]


def _call_edits(node: ast.Call) -> Iterator[tuple[str, _Edit]]:
    func = node.func
    if isinstance(func, ast.Name) and func.id in _CALLS:
        name = _CALLS[func.id]
        yield "call", lambda n: setattr(n.func, "id", name)  # type: ignore[attr-defined]
    if isinstance(func, ast.Attribute) and func.attr in _METHODS:
        method = _METHODS[func.attr]
        yield "call", lambda n: setattr(n.func, "attr", method)  # type: ignore[attr-defined]
    if isinstance(func, ast.Attribute) and not node.args:  # a forgotten `.upper()`
        yield "branch", lambda n: n.func.value  # type: ignore[attr-defined]


def _swap_branches(node: ast.AST) -> None:
    assert isinstance(node, ast.IfExp)
    node.body, node.orelse = node.orelse, node.body
