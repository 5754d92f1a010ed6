"""Values written as Python literals, evaluated without executing anything.

More than `ast.literal_eval`: signs, small arithmetic, repetition and concatenation, `set()` and the
other built-in containers, `range` inside them, `float('inf')`, `math.pi`. All under caps, because
`[0] * 10**9` is one short line. What has no such form raises `LiteralError` with the reason.
"""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

MAX_NODES = 20_000
MAX_DEPTH = 120
MAX_ITEMS = 20_000
MAX_CHARS = 65_536
MAX_INT_BITS = 4_096

_CONTAINERS: dict[str, Callable[..., Any]] = {
    "set": set,
    "frozenset": frozenset,
    "list": list,
    "tuple": tuple,
    "dict": dict,
}
_MATH = {"inf": math.inf, "nan": math.nan, "pi": math.pi, "e": math.e, "tau": math.tau}
_FLOAT_WORDS = {"inf", "+inf", "-inf", "infinity", "+infinity", "-infinity", "nan", "+nan", "-nan"}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class LiteralError(ValueError):
    """The expression is not a literal, or exceeds a cap."""


def evaluate(node: ast.expr) -> Any:
    """The value of a literal expression. Raises LiteralError; nothing else, whatever the tree."""
    try:
        return _Evaluator().value(node, 0)
    except LiteralError:
        raise
    except (TypeError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise LiteralError(f"{type(error).__name__} in a literal") from None


class _Evaluator:
    """One evaluation and what it has used of the caps."""

    def __init__(self) -> None:
        self._num_nodes = 0
        self._num_items = 0
        self._num_chars = 0

    def value(self, node: ast.expr, depth: int) -> Any:
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES or depth > MAX_DEPTH:
            raise LiteralError("literal too large or too deeply nested")
        depth += 1
        match node:
            case ast.Constant():
                return self._constant(node.value)
            case ast.List():
                return self._items(node.elts, depth)
            case ast.Tuple():
                return tuple(self._items(node.elts, depth))
            case ast.Set():
                return set(self._items(node.elts, depth))
            case ast.Dict():
                return self._dict(node, depth)
            case ast.UnaryOp():
                return self._unary(node, depth)
            case ast.BinOp():
                return self._binary(node, depth)
            case ast.Call():
                return self._call(node, depth)
            case ast.Attribute(value=ast.Name(id="math"), attr=name) if name in _MATH:
                return _MATH[name]
            case ast.Name(id=name):
                raise LiteralError(f"name {name[:40]!r} is not a literal")
        raise LiteralError(f"{type(node).__name__} is not a literal")

    def _constant(self, value: Any) -> Any:
        if value is ...:
            raise LiteralError("an ellipsis is not a value")
        if isinstance(value, str | bytes):
            self._charge_chars(len(value))
        return _bounded(value)

    def _charge_chars(self, num_chars: int) -> None:
        self._num_chars += num_chars
        if self._num_chars > MAX_CHARS:
            raise LiteralError(f"literal with more than {MAX_CHARS} characters")

    def _charge_items(self, num_items: int) -> None:
        self._num_items += num_items
        if self._num_items > MAX_ITEMS:
            raise LiteralError(f"literal with more than {MAX_ITEMS} items")

    def _items(self, nodes: list[ast.expr], depth: int) -> list[Any]:
        self._charge_items(len(nodes))
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                inner = self._iterable(node.value, depth)
                self._charge_items(len(inner))
                items.extend(inner)
            else:
                items.append(self.value(node, depth))
        return items

    def _dict(self, node: ast.Dict, depth: int) -> dict[Any, Any]:
        self._charge_items(2 * len(node.keys))
        result: dict[Any, Any] = {}
        for key, item in zip(node.keys, node.values):
            if key is None:
                raise LiteralError("dict unpacking is not a literal")
            result[self.value(key, depth)] = self.value(item, depth)
        return result

    def _unary(self, node: ast.UnaryOp, depth: int) -> Any:
        value = self.value(node.operand, depth)
        if isinstance(node.op, ast.Not) and isinstance(value, bool):
            return not value
        if isinstance(value, int | float | complex):
            if isinstance(node.op, ast.USub):
                return -value
            if isinstance(node.op, ast.UAdd):
                return +value
            if isinstance(node.op, ast.Invert) and type(value) is int:
                return ~value
        raise LiteralError(f"{type(node.op).__name__} of a {type(value).__name__}")

    def _binary(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self.value(node.left, depth), self.value(node.right, depth)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        operate = _ARITHMETIC.get(type(node.op))
        if operate is None:
            raise LiteralError(f"operator {type(node.op).__name__} in a literal")
        if _is_number(left) and _is_number(right):
            return _bounded(operate(left, right))
        if isinstance(node.op, ast.Mult):
            return self._repeated(left, right)
        if isinstance(node.op, ast.Add) and type(left) is type(right):
            if isinstance(left, str | bytes):
                self._charge_chars(len(left) + len(right))
                return left + right
            if isinstance(left, list | tuple):
                self._charge_items(len(left) + len(right))
                return left + right
        raise LiteralError(
            f"{type(left).__name__} {type(node.op).__name__} {type(right).__name__} in a literal"
        )

    def _repeated(self, left: Any, right: Any) -> Any:
        if type(left) is int:
            left, right = right, left
        if type(right) is not int or not isinstance(left, str | bytes | list | tuple):
            raise LiteralError(f"{type(left).__name__} times {type(right).__name__} in a literal")
        size = max(right, 0) * max(len(left), 1)
        if isinstance(left, str | bytes):
            self._charge_chars(size)
        else:
            self._charge_items(size * max(_num_parts(left) // max(len(left), 1), 1))
        return left * right

    def _iterable(self, node: ast.expr, depth: int) -> Any:
        """Items for a container: another literal container, a string, or a `range`."""
        match node:
            case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]):
                return self._range(arguments, depth)
        value = self.value(node, depth)
        if isinstance(value, str | bytes | list | tuple | set | frozenset | dict):
            return value
        raise LiteralError(f"{type(value).__name__} is not iterable")

    def _range(self, arguments: list[ast.expr], depth: int) -> range:
        bounds = [self.value(argument, depth) for argument in arguments]
        if not all(type(bound) is int for bound in bounds):
            raise LiteralError("range() of something that is no integer")
        span = range(*bounds)
        if len(span[: MAX_ITEMS + 1]) > MAX_ITEMS:  # `len` of the whole may overflow
            raise LiteralError(f"range of more than {MAX_ITEMS} items")
        return span

    def _call(self, node: ast.Call, depth: int) -> Any:
        if not isinstance(node.func, ast.Name):
            raise LiteralError("a method call is not a literal")
        name = node.func.id
        if name == "float" and len(node.args) == 1 and not node.keywords:
            return _float(self.value(node.args[0], depth))
        if name == "dict" and not node.args:
            self._charge_items(2 * len(node.keywords))
            if any(keyword.arg is None for keyword in node.keywords):
                raise LiteralError("dict unpacking is not a literal")
            return {str(k.arg): self.value(k.value, depth) for k in node.keywords}
        if name in _CONTAINERS and len(node.args) <= 1 and not node.keywords:
            if not node.args:
                return _CONTAINERS[name]()
            items = self._iterable(node.args[0], depth)
            self._charge_items(len(items))
            return _CONTAINERS[name](items)
        raise LiteralError(f"a call of {name[:40]!r} is not a literal")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, complex, bool)


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise LiteralError(f"an integer of more than {MAX_INT_BITS} bits")
    return value


def _power(base: Any, exponent: Any) -> Any:
    if not (_is_number(base) and _is_number(exponent)):
        raise LiteralError("a power of something that is no number")
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        num_bits = max(base.bit_length(), 1) * exponent
        if num_bits > MAX_INT_BITS:
            raise LiteralError(f"an integer of more than {MAX_INT_BITS} bits")
    return _bounded(base**exponent)


def _float(value: Any) -> float:
    if isinstance(value, str) and value.strip().lower() not in _FLOAT_WORDS:
        if len(value) > 64:
            raise LiteralError("float() of a long text")
    elif not isinstance(value, str | int | float):
        raise LiteralError(f"float() of a {type(value).__name__}")
    return float(value)


def _num_parts(value: Any) -> int:
    """Items in `value`, nested ones included."""
    count, pending = 0, [value]
    while pending:
        item = pending.pop()
        count += 1
        if isinstance(item, list | tuple | set | frozenset):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
    return count - 1
