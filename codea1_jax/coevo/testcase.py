"""Tests as data: which function, which arguments, which answer. Never source text.

A test is identified by its canonical key, the bytes of (entry point, arguments, keyword arguments):
two tests are the same test when their keys are equal. `True`, `1` and `1.0` are different
arguments, a list and a tuple too; the order of a dict's items and of a set's members makes no
difference.
"""

import ast
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from codea1_jax.coevo import literals
from codea1_jax.coevo.statements import Statement
from codea1_jax.coevo.syntax import parse_python
from codea1_jax.sandbox.verdict import Call
from sandbox_service import codec

MAX_ENCODED_BYTES = 65_536


class InvalidTestError(ValueError):
    """The statement is no test of this function; the message is the reason."""


@dataclasses.dataclass(frozen=True, eq=False)
class TestCase:
    """A call as data. Equal when the keys are equal. Treat the values as read-only."""

    __test__: ClassVar[bool] = False  # for pytest: the name is not a test's

    entry_point: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    key: bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TestCase) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def call(self) -> Call:
        return Call(self.entry_point, self.args, self.kwargs)

    @property
    def text(self) -> str:
        """The call in source form, cut to a readable length; for logs only."""
        parts = [_short(value) for value in self.args]
        parts += [f"{name}={_short(value)}" for name, value in self.kwargs.items()]
        return f"{self.entry_point}({', '.join(parts)})"


@dataclasses.dataclass(frozen=True)
class StoredTest:
    """A test with the reference's answer.

    Attributes:
      test: the call.
      expected: the value the reference solution returned.
      reference_cpu_s: CPU seconds the reference needed for it.
    """

    test: TestCase
    expected: Any
    reference_cpu_s: float = 0.0

    @property
    def key(self) -> bytes:
        return self.test.key


@dataclasses.dataclass(frozen=True)
class ParsedTest:
    """A statement that is a test. `has_answer` False: a call without a predicted answer."""

    test: TestCase
    has_answer: bool
    answer: Any = None


def make_test(
    entry_point: str, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> TestCase:
    """A test from plain values. Raises InvalidTestError if they have no plain form."""
    kwargs = dict(kwargs or {})
    try:
        key = codec.canonical_key([entry_point, args, kwargs])
    except codec.CodecError as error:
        raise InvalidTestError(str(error)) from None
    if len(key) > MAX_ENCODED_BYTES:
        raise InvalidTestError(f"arguments of more than {MAX_ENCODED_BYTES} bytes")
    return TestCase(entry_point, args, kwargs, key)


def parse_test(statement: Statement, entry_point: str, parameters: tuple[str, ...]) -> ParsedTest:
    """The test a statement stands for.

    Args:
      parameters: names of the function's positional parameters (`positional_parameters`); keyword
        arguments that repeat them in order become positional, so that `f(1)` and `f(x=1)` are one
        test.

    Raises:
      InvalidTestError: it was dropped, calls something else, or is not made of literals.
    """
    call = statement.call
    if call is None:
        raise InvalidTestError(statement.reason)
    if not (isinstance(call.func, ast.Name) and call.func.id == entry_point):
        raise InvalidTestError(f"does not call {entry_point}")
    try:
        args, kwargs = _arguments(call, parameters)
        test = make_test(entry_point, args, kwargs)
        if statement.answer is None:
            return ParsedTest(test, has_answer=False)
        answer = literals.evaluate(statement.answer)
        codec.encode(answer, max_bytes=MAX_ENCODED_BYTES)
    except literals.LiteralError as error:
        raise InvalidTestError(f"not a literal: {error}") from None
    except codec.CodecError as error:
        raise InvalidTestError(f"not plain data: {error}") from None
    return ParsedTest(test, has_answer=True, answer=answer)


def _arguments(
    call: ast.Call, parameters: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args: list[Any] = []
    for node in call.args:
        if isinstance(node, ast.Starred):
            unpacked = literals.evaluate(node.value)
            if not isinstance(unpacked, list | tuple):
                raise literals.LiteralError("* of something that is no list or tuple")
            args.extend(unpacked)
        else:
            args.append(literals.evaluate(node))
    kwargs: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise literals.LiteralError("** is not a literal")
        if keyword.arg in kwargs:
            raise literals.LiteralError(f"keyword {keyword.arg!r} given twice")
        kwargs[keyword.arg] = literals.evaluate(keyword.value)
    for name in parameters[len(args) :]:
        if name not in kwargs:
            break
        args.append(kwargs.pop(name))
    return tuple(args), kwargs


@functools.lru_cache(maxsize=4096)
def positional_parameters(reference: str, entry_point: str) -> tuple[str, ...]:
    """Names that the reference's function accepts both by position and by keyword, in order.

    Empty when the function has positional-only parameters or is not a plain top-level `def`.
    """
    tree = parse_python(reference)
    for node in reversed(tree.body if tree is not None else []):
        if isinstance(node, ast.FunctionDef) and node.name == entry_point:
            if node.args.posonlyargs or node.decorator_list:
                return ()
            return tuple(argument.arg for argument in node.args.args)
    return ()


_MAX_SHORT = 120


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python converts
        text = "<large integer>"
    return text if len(text) <= _MAX_SHORT else f"{text[: _MAX_SHORT - 3]}..."


def short_repr(value: Any) -> str:
    """`repr(value)`, cut to a readable length; for logs only."""
    return _short(value)
