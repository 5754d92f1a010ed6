"""Equality of decoded plain data: what "the program returned the right answer" means.

Runs outside the sandboxed process, on values that `codec.decode` built. Nothing here calls code of
a candidate. Two modes:

* `Comparator()`: the rule of co-evolution. Floats within rel 1e-6 / abs 1e-9, bool is not int,
  list and tuple are the same, NaN equals NaN.
* `PYTHON_EQ`: Python's `==`, except that a NaN equals an expected NaN.

An array equals an array of the same shape with equal elements, whatever the dtypes; an array of no
dimension (a numpy float32) equals a number that rounds to it. An array is never equal to a list.

Values of types outside the codec are never equal to anything.
"""

import math
import struct
from dataclasses import dataclass
from typing import Any

from sandbox_service import arrays
from sandbox_service.arrays import NdArray

MAX_DEPTH = 400
MAX_COMPARISONS = 5_000_000  # a value has two million parts at most
# Members of a set that have no exact partner are paired one by one within the tolerance.
_MAX_LOOSE_MEMBERS = 256


@dataclass(frozen=True)
class Comparator:
    """How values are compared; tolerances apply where either side is a float or complex."""

    rel_tol: float = 1e-6
    abs_tol: float = 1e-9
    bool_is_int: bool = False
    list_is_tuple: bool = True
    nan_equal: bool = True


PYTHON_EQ = Comparator(rel_tol=0.0, abs_tol=0.0, bool_is_int=True, list_is_tuple=False)

_PLAIN = (int, float, str, bool, list, tuple, dict, bytes, set, frozenset, complex)
_TEXTS = (str, bytes)
_SETS = (set, frozenset)


def equal(actual: Any, expected: Any, comparator: Comparator = Comparator()) -> bool:
    """Whether `actual` counts as `expected`. Symmetric; never raises on plain data.

    Sets whose members would have to be tried against each other too often are not equal.
    """
    return _equal(actual, expected, _Rules(comparator), MAX_DEPTH)


class _Rules:
    """A comparator, and how many comparisons are left (values may be made to need many)."""

    __slots__ = ("abs_tol", "bool_is_int", "list_is_tuple", "nan_equal", "num_left", "rel_tol")

    def __init__(self, comparator: Comparator) -> None:
        self.rel_tol, self.abs_tol = comparator.rel_tol, comparator.abs_tol
        self.bool_is_int, self.list_is_tuple = comparator.bool_is_int, comparator.list_is_tuple
        self.nan_equal = comparator.nan_equal
        self.num_left = MAX_COMPARISONS


def _equal(a: Any, b: Any, c: _Rules, depth: int) -> bool:
    c.num_left -= 1
    if depth <= 0 or c.num_left <= 0:
        return False
    kind_a, kind_b = type(a), type(b)
    if a is None or b is None:
        return a is b
    if kind_a not in _PLAIN or kind_b not in _PLAIN:
        try:
            left, right = _as_data(a), _as_data(b)
        except arrays.ArrayError:
            return False
        if left is not a or right is not b:
            return _equal(left, right, c, depth - 1)
        if NdArray in (kind_a, kind_b):
            return _arrays_equal(a, b, c)
    if kind_a is bool or kind_b is bool:
        if not c.bool_is_int:
            return kind_a is kind_b and a == b
        return _is_number(a) and _is_number(b) and _numbers_equal(a, b, c)
    if kind_a in _TEXTS or kind_b in _TEXTS:
        return kind_a is kind_b and a == b
    if kind_a in (list, tuple):
        if kind_b not in (list, tuple) or (kind_a is not kind_b and not c.list_is_tuple):
            return False
        return len(a) == len(b) and all(_equal(x, y, c, depth - 1) for x, y in zip(a, b))
    if kind_a is dict:
        return kind_b is dict and _dicts_equal(a, b, c, depth)
    if kind_a in _SETS:
        return kind_b in _SETS and _sets_equal(a, b, c, depth)
    if _is_number(a) and _is_number(b):
        return _numbers_equal(a, b, c)
    if kind_a is kind_b and kind_a.__module__ == "datetime":
        return bool(a == b)
    return False


def _is_number(value: Any) -> bool:
    kind = type(value)
    return kind in (int, float, bool, complex) or kind.__module__ in ("decimal", "fractions")


def _is_nan(value: Any) -> bool:
    return type(value) in (float, complex) and value != value


def _numbers_equal(a: Any, b: Any, c: _Rules) -> bool:
    if _is_nan(a) or _is_nan(b):
        return c.nan_equal and _nans_equal(a, b)
    try:
        if a == b:
            return True
        if not (c.rel_tol or c.abs_tol):
            return False
        if complex in (type(a), type(b)):
            gap, size = abs(complex(a) - complex(b)), max(abs(complex(a)), abs(complex(b)))
            return math.isfinite(size) and gap <= max(c.rel_tol * size, c.abs_tol)
        if float in (type(a), type(b)):
            return math.isclose(a, b, rel_tol=c.rel_tol, abs_tol=c.abs_tol)
    except (ArithmeticError, ValueError, TypeError):  # an int beyond float, a signalling Decimal
        return False
    return False


def _nans_equal(a: Any, b: Any) -> bool:
    if type(a) is float and type(b) is float:
        return a != a and b != b
    if not (_is_nan(a) and _is_nan(b)):
        return False
    left, right = complex(a), complex(b)
    return all(
        (x == y) or (x != x and y != y)
        for x, y in ((left.real, right.real), (left.imag, right.imag))
    )


def _arrays_equal(a: Any, b: Any, c: _Rules) -> bool:
    if type(a) is not NdArray or type(b) is not NdArray:
        scalar, number = (a, b) if type(a) is NdArray else (b, a)
        if scalar.shape or not _is_number(number):
            return False
        return _numbers_equal(scalar.items()[0], _rounded(number, scalar.dtype), c)
    if a.shape != b.shape:
        return False
    if a.dtype == b.dtype and a.data == b.data and (c.nan_equal or a.kind not in "fc"):
        return True
    texts, times = "SU", "Mm"
    if a.kind != b.kind and (a.kind in texts + times or b.kind in texts + times):
        return False
    if a.kind in times and a.dtype != b.dtype:
        return False
    return all(_equal(x, y, c, 1) for x, y in zip(a.items(), b.items()))


def _as_data(value: Any) -> Any:
    """What the codec would make of a numpy array or scalar; other values as they are."""
    what = arrays.numpy_type_of(type(value))
    if what == "array":
        return arrays.from_numpy(value)
    return arrays.plain_scalar(value) if what else value


def _rounded(number: Any, dtype: str) -> Any:
    """`number` as the float type of an array holds it, as numpy's own comparison would."""
    code = {"<f4": "<f", "<f2": "<e"}.get(dtype)
    if code is None or type(number) is not float:
        return number
    try:
        return struct.unpack(code, struct.pack(code, number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def _dicts_equal(a: dict[Any, Any], b: dict[Any, Any], c: _Rules, depth: int) -> bool:
    if len(a) != len(b):
        return False
    partners = {key: key for key in b}
    for key, value in a.items():
        if key not in partners:
            return _dicts_loosely_equal(a, b, c, depth)
        partner = partners[key]  # equal for Python, which takes True for 1
        if not _equal(key, partner, c, depth - 1) or not _equal(value, b[partner], c, depth - 1):
            return False
    return True


def _dicts_loosely_equal(a: dict[Any, Any], b: dict[Any, Any], c: _Rules, depth: int) -> bool:
    """Keys such as 0.1 + 0.2 and 0.3, or NaN, have no exact partner: pair the items."""
    if len(a) > _MAX_LOOSE_MEMBERS:
        return False
    return _paired(list(a.items()), list(b.items()), c, depth - 1)


def _sets_equal(a: Any, b: Any, c: _Rules, depth: int) -> bool:
    if len(a) != len(b):
        return False
    partners = {member: member for member in b}
    loose_a = []
    for member in a:
        if member in partners and _equal(member, partners[member], c, depth - 1):
            del partners[member]
        else:
            loose_a.append(member)
    if len(loose_a) > _MAX_LOOSE_MEMBERS:
        return False
    return _paired(loose_a, list(partners), c, depth - 1)


def _paired(left: list[Any], right: list[Any], c: _Rules, depth: int) -> bool:
    for item in left:
        for index, other in enumerate(right):
            if _equal(item, other, c, depth):
                del right[index]
                break
        else:
            return False
    return not right
