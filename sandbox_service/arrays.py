"""Numpy arrays and scalars as plain data: dtype, shape and little-endian bytes in C order.

`NdArray` is what the codec reads where numpy is not loaded: the server and small cages compare
arrays without it. Where it is loaded, `build` makes the array itself. Object, structured and
extended-precision arrays have no plain form.

Standard library only; numpy is used if it is in `sys.modules` and never imported here.
"""

from __future__ import annotations

import struct
import sys

from sandbox_service.lean import Any

MAX_DIMS = 32

# Kind and item size of each dtype that has a plain form, with the code that `struct` reads it by.
_STRUCT_CODES = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I",
    "u8": "Q", "f2": "e", "f4": "f", "f8": "d", "c8": "f", "c16": "d", "M8": "q", "m8": "q",
}  # fmt: skip
_TIME_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")


class ArrayError(ValueError):
    """The dtype has no plain form, or dtype, shape and bytes do not fit together."""


class NdArray:
    """An array as data. `dtype` is numpy's own spelling with "<" or "|", such as "<f8"."""

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        """Raises ArrayError unless the three fit together."""
        size = item_bytes(dtype)
        if len(shape) > MAX_DIMS or any(n < 0 or n >= 1 << 40 for n in shape):
            raise ArrayError("an array has too many dimensions or too long ones")
        import math  # not at the top: a cage without arrays does without it

        if math.prod(shape) * size != len(data):
            raise ArrayError(f"an array of dtype {dtype!r} and shape {shape} is not its bytes")
        if dtype[1] == "U":
            data.decode("utf-32-le", "surrogatepass")  # a ValueError for what is no character
        self.dtype = dtype
        self.shape = shape
        self.data = data

    def __eq__(self, other: object) -> bool:
        return type(other) is NdArray and (self.dtype, self.shape, self.data) == (
            other.dtype,
            other.shape,
            other.data,
        )

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape, self.data))

    def __repr__(self) -> str:
        return f"NdArray({self.dtype!r}, {self.shape}, {len(self.data)} bytes)"

    @property
    def kind(self) -> str:
        """Numpy's letter: one of b, i, u, f, c, S, U, M, m."""
        return self.dtype[1]

    def items(self) -> list[Any]:
        """All elements in C order as bool, int, float, complex, str or bytes; times as integers."""
        size = item_bytes(self.dtype)
        if self.kind in "SU":
            parts = [self.data[i : i + size] for i in range(0, len(self.data), size)]
            if self.kind == "S":
                return [part.rstrip(b"\0") for part in parts]
            return [p.decode("utf-32-le", "surrogatepass").rstrip("\0") for p in parts]
        name = self.dtype[1:].partition("[")[0]
        code = _STRUCT_CODES[name]
        count = len(self.data) // struct.calcsize("<" + code)
        numbers = struct.unpack(f"<{count}{code}", self.data)
        if self.kind == "c":
            return [complex(*pair) for pair in zip(numbers[::2], numbers[1::2])]
        return list(numbers)


def item_bytes(dtype: str) -> int:
    """Size of one element. Raises ArrayError for a dtype without plain form."""
    name, bracket, unit = dtype[1:].partition("[")
    kind, digits = name[:1], name[1:]
    if dtype[:1] in ("<", "|"):
        if kind in ("S", "U") and not bracket and _is_size(digits):
            return int(digits) * (4 if kind == "U" else 1)
        has_unit = unit.endswith("]") and unit[:-1] in _TIME_UNITS
        if name in _STRUCT_CODES and (has_unit if kind in ("M", "m") else not bracket):
            return int(digits)
    raise ArrayError(f"an array of dtype {dtype[:40]!r} has no plain form")


def _is_size(digits: str) -> bool:
    is_number = digits.isascii() and digits.isdecimal()
    return is_number and len(digits) <= 7 and not digits.startswith("0")


def numpy_type_of(kind: type) -> str:
    """ "array" or "scalar" if `kind` is a type of the numpy that is loaded, else ""."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return ""
    if kind is getattr(numpy, "ndarray", None):
        return "array"
    # A scalar type is found under its own name; a class of the program with that name is not it.
    name = type.__dict__["__name__"].__get__(kind)
    name = {"bool": "bool_", "str": "str_", "bytes": "bytes_"}.get(name, name)
    generic = getattr(numpy, "generic", None)
    if isinstance(generic, type) and issubclass(kind, generic) and getattr(numpy, name, 0) is kind:
        return "scalar"
    return ""


def plain_scalar(value: Any) -> Any:
    """A numpy scalar as bool, int, float, complex, str or bytes; others as a 0-d NdArray.

    float32 and its like stay arrays of no dimension: as a Python float they would no longer equal
    the decimal literal that they were made from.
    """
    if _is_plain(value.dtype.str):
        return value.item()
    return from_numpy(value)


def from_numpy(array: Any) -> NdArray:
    """An exact ndarray (or a numpy scalar) as data. Raises ArrayError."""
    dtype = array.dtype.newbyteorder("<")
    item_bytes(dtype.str)
    if dtype.str != array.dtype.str:
        array = array.astype(dtype)
    return NdArray(dtype.str, tuple(array.shape), array.tobytes())


def build(array: NdArray) -> Any:
    """The numpy array (or scalar, see `plain_scalar`) where numpy is loaded, else the NdArray."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return array
    flat = numpy.frombuffer(array.data, dtype=array.dtype)
    built = flat.reshape(array.shape).copy()
    return built if array.shape or _is_plain(array.dtype) else built[()]


def _is_plain(dtype: str) -> bool:
    return dtype[1] in "biuSU" or dtype[1:] in ("f8", "c16")
