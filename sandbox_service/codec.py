"""The closed codec: the only form in which values enter and leave a sandboxed process.

Plain data only: None, bool, int, float, complex, str (lone surrogates included), bytes, list,
tuple, set, frozenset, dict; Decimal, Fraction, date, time, datetime, timedelta; numpy arrays and
scalars (arrays.py). Subclasses of the built-in types are encoded by their base value, everything
else is opaque. Arrays are decoded to numpy's where it is loaded, and to `NdArray` elsewhere.

`encode` dispatches on `type(x)` and calls only methods of the built-in types themselves, so no
`__repr__`, `__len__`, `__iter__`, `__eq__` of a hostile class runs. `decode` takes any bytes: it
returns plain data or raises `CodecError`, in time and memory linear in the input.

    >>> decode(encode({"a": [1, 2.5, None]}))
    {'a': [1, 2.5, None]}

Sets are written sorted by encoding and dicts in insertion order; `canonical_key` sorts dicts too:
equal values of equal types have equal keys (1, 1.0 and True have three; all NaN have one).

This module runs inside the sandboxed process as well as in the server and in the trainer: standard
library only, and nothing that is costly to import.
"""

from __future__ import annotations

import struct
import sys

from sandbox_service import arrays
from sandbox_service.arrays import NdArray as NdArray
from sandbox_service.lean import Any, Callable

VERSION = 2
MAX_BYTES = 1 << 20
MAX_NODES = 2_000_000
MAX_DEPTH = 200

# A Fraction is reduced and a Decimal parsed when decoded: work that grows faster than the input.
_MAX_FRACTION_BYTES = 512
_MAX_DECIMAL_CHARS = 4096
# Equal hashes allowed among the keys of one set or dict; more are a crafted collision, which would
# make building the table quadratic.
_MAX_EQUAL_HASHES = 64

_pack_double = struct.Struct(">d").pack
_unpack_double = struct.Struct(">d").unpack_from
_pack_complex = struct.Struct(">dd").pack
_unpack_complex = struct.Struct(">dd").unpack_from


class CodecError(ValueError):
    """The value has no plain form, or the bytes are not an encoded value."""


class OpaqueError(CodecError):
    """The value, or something inside it, is of a type that has no plain form."""


class BudgetError(CodecError):
    """The value is too large, too deep or has too many parts."""


def encode(
    value: Any,
    *,
    max_bytes: int = MAX_BYTES,
    max_nodes: int = MAX_NODES,
    max_depth: int = MAX_DEPTH,
    handle_of: Callable[[Any], int] | None = None,
) -> bytes:
    """Encodes plain data. Raises OpaqueError or BudgetError (both CodecError).

    `handle_of` gives a number to each opaque part instead of refusing it (proxy.py); only
    `decode` with `from_handle` reads what it makes.
    """
    return _encode(value, max_bytes, max_nodes, max_depth, False, handle_of)


def canonical_key(value: Any) -> bytes:
    """Bytes that are equal for equal values of equal types, whatever the order of dicts, sets."""
    return _encode(value, 64 * MAX_BYTES, 16 * MAX_NODES, MAX_DEPTH, True)


def _encode(
    value: Any,
    max_bytes: int,
    max_nodes: int,
    max_depth: int,
    is_canonical: bool,
    handle_of: Callable[[Any], int] | None = None,
) -> bytes:
    writer = _Writer(max_bytes, max_nodes, is_canonical, handle_of)
    out = bytearray()
    try:
        writer.write(out, value, max_depth)
    except RecursionError:
        raise BudgetError("the value is nested too deeply") from None
    if len(out) > max_bytes:
        raise BudgetError(f"the value takes more than {max_bytes} bytes")
    return bytes(out)


def _varint(out: bytearray, n: int) -> None:
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)


class _Writer:
    """State of one encoding: what is left of the budgets."""

    __slots__ = ("bytes_left", "handle_of", "is_canonical", "nodes_left")

    def __init__(
        self,
        max_bytes: int,
        max_nodes: int,
        is_canonical: bool,
        handle_of: Callable[[Any], int] | None,
    ) -> None:
        self.bytes_left = max_bytes
        self.nodes_left = max_nodes
        self.is_canonical = is_canonical
        self.handle_of = handle_of

    def write(self, out: bytearray, value: Any, depth: int) -> None:
        self.nodes_left -= 1
        if self.nodes_left < 0:
            raise BudgetError("the value has too many parts")
        kind = type(value)
        if value is None:
            out.append(78)  # N
        elif kind is int:
            self._int(out, value)
        elif kind is str:
            self._str(out, value)
        elif kind is float:
            out.append(102)  # f
            out += _pack_double(value if value == value else float("nan"))
        elif kind is bool:
            out.append(84 if value else 70)  # T F
        elif kind is list:
            self._sequence(out, 108, list.__iter__(value), list.__len__(value), depth)  # l
        elif kind is tuple:
            self._sequence(out, 116, tuple.__iter__(value), tuple.__len__(value), depth)  # t
        elif kind is dict:
            self._dict(out, value, depth)
        elif kind is set:
            self._set(out, 83, set.__iter__(value), set.__len__(value), depth)  # S
        elif kind is frozenset:
            self._set(out, 90, frozenset.__iter__(value), frozenset.__len__(value), depth)  # Z
        elif kind is bytes:
            self._bytes(out, 98, value)  # b
        elif kind is complex:
            self._complex(out, value)
        else:
            self._other(out, value, kind, depth)

    def _take(self, num_bytes: int) -> None:
        self.bytes_left -= num_bytes
        if self.bytes_left < 0:
            raise BudgetError("the value takes too many bytes")

    def _bytes(self, out: bytearray, tag: int, data: bytes) -> None:
        length = bytes.__len__(data)
        self._take(length + 2)
        out.append(tag)
        _varint(out, length)
        out += data

    def _int(self, out: bytearray, value: int) -> None:
        length = (int.bit_length(value) + 8) // 8
        self._take(length + 2)
        out.append(105)  # i
        _varint(out, length)
        out += int.to_bytes(value, length, "little", signed=True)

    def _str(self, out: bytearray, value: str) -> None:
        if str.__len__(value) > self.bytes_left:
            raise BudgetError("the value takes too many bytes")
        self._bytes(out, 115, str.encode(value, "utf-8", "surrogatepass"))  # s

    def _complex(self, out: bytearray, value: complex) -> None:
        parts = (complex.real.__get__(value), complex.imag.__get__(value))
        out.append(99)  # c
        out += _pack_complex(*[x if x == x else float("nan") for x in parts])

    def _open(self, out: bytearray, tag: int, count: int, depth: int) -> int:
        if depth <= 0:
            raise BudgetError("the value is nested too deeply")
        if count > self.nodes_left:
            raise BudgetError("the value has too many parts")
        self._take(count + 2)  # every part takes at least one byte; blobs are charged on top
        out.append(tag)
        _varint(out, count)
        return depth - 1

    def _sequence(self, out: bytearray, tag: int, items: Any, count: int, depth: int) -> None:
        depth = self._open(out, tag, count, depth)
        write = self.write
        for item in items:
            write(out, item, depth)

    def _set(self, out: bytearray, tag: int, items: Any, count: int, depth: int) -> None:
        depth = self._open(out, tag, count, depth)
        encoded = []
        for item in items:
            part = bytearray()
            self.write(part, item, depth)
            encoded.append(bytes(part))
        encoded.sort()
        out += b"".join(encoded)

    def _dict(self, out: bytearray, value: dict[Any, Any], depth: int) -> None:
        depth = self._open(out, 100, dict.__len__(value), depth)  # d
        write = self.write
        if not self.is_canonical:
            for key, item in dict.items(value):
                write(out, key, depth)
                write(out, item, depth)
            return
        pairs = []
        for key, item in dict.items(value):
            left, right = bytearray(), bytearray()
            write(left, key, depth)
            write(right, item, depth)
            pairs.append((bytes(left), bytes(right)))
        pairs.sort()
        for left_bytes, right_bytes in pairs:
            out += left_bytes + right_bytes

    def _other(self, out: bytearray, value: Any, kind: type, depth: int) -> None:
        """Library types, then subclasses by their base value."""
        if self._library_scalar(out, value, kind) or self._numpy(out, value, kind, depth):
            return
        # `issubclass` asks the metaclass of the right side, which is `type`: no candidate code.
        if issubclass(kind, int):
            self._int(out, int.__add__(value, 0))
        elif issubclass(kind, str):
            self._str(out, str.__str__(value))
        elif issubclass(kind, float):
            self.write(out, float.__float__(value), depth)
        elif issubclass(kind, list):
            self._sequence(out, 108, list.__iter__(value), list.__len__(value), depth)
        elif issubclass(kind, tuple):
            self._sequence(out, 116, tuple.__iter__(value), tuple.__len__(value), depth)
        elif issubclass(kind, dict):
            self._dict(out, value, depth)
        elif issubclass(kind, set):
            self._set(out, 83, set.__iter__(value), set.__len__(value), depth)
        elif issubclass(kind, frozenset):
            self._set(out, 90, frozenset.__iter__(value), frozenset.__len__(value), depth)
        elif issubclass(kind, bytes):
            self._bytes(out, 98, bytes.__getitem__(value, slice(None)))
        elif issubclass(kind, complex):
            self._complex(out, value)
        elif self.handle_of is not None:
            out.append(72)  # H
            _varint(out, self.handle_of(value))
        else:
            name = type.__dict__["__name__"].__get__(kind)
            raise OpaqueError(f"a value of type {name!r} has no plain form")

    def _library_scalar(self, out: bytearray, value: Any, kind: type) -> bool:
        """Decimal, Fraction and the datetime family; the modules are used only if loaded."""
        modules = sys.modules
        decimal, fractions = modules.get("decimal"), modules.get("fractions")
        datetime = modules.get("datetime")
        if decimal is not None and kind is getattr(decimal, "Decimal", None):
            text = str(value)
            if len(text) > _MAX_DECIMAL_CHARS:
                raise BudgetError("a Decimal has too many digits")
            self._bytes(out, 68, text.encode())  # D
        elif fractions is not None and kind is getattr(fractions, "Fraction", None):
            out.append(81)  # Q
            for part in (value._numerator, value._denominator):
                if type(part) is not int or int.bit_length(part) >= 8 * _MAX_FRACTION_BYTES:
                    raise BudgetError("a Fraction has too many digits")
                self._int(out, part)
        elif datetime is None:
            return False
        elif kind is getattr(datetime, "timedelta", None):
            out.append(52)  # 4
            for part in (value.days, value.seconds, value.microseconds):
                self._int(out, part)
        elif kind is getattr(datetime, "date", None):
            self._bytes(out, 49, value.isoformat().encode())  # 1
        elif kind is getattr(datetime, "time", None):
            self._moment(out, 50, value, datetime)  # 2
        elif kind is getattr(datetime, "datetime", None):
            self._moment(out, 51, value, datetime)  # 3
        else:
            return False
        return True

    def _numpy(self, out: bytearray, value: Any, kind: type, depth: int) -> bool:
        if kind is arrays.NdArray:
            self._array(out, value)
            return True
        what = arrays.numpy_type_of(kind)
        if not what:
            return False
        if what == "array" and (value.nbytes > self.bytes_left or value.size > self.nodes_left):
            raise BudgetError("an array takes too many bytes")
        try:
            if what == "array":
                self._array(out, arrays.from_numpy(value))
            else:
                self.write(out, arrays.plain_scalar(value), depth)
        except arrays.ArrayError as error:
            raise OpaqueError(str(error)) from None
        return True

    def _array(self, out: bytearray, value: arrays.NdArray) -> None:
        self.nodes_left -= len(value.data) // arrays.item_bytes(value.dtype)
        if self.nodes_left < 0:
            raise BudgetError("the value has too many parts")
        self._bytes(out, 65, value.dtype.encode())  # A
        self._take(10 * len(value.shape))
        _varint(out, len(value.shape))
        for length in value.shape:
            _varint(out, length)
        self._take(len(value.data) + 5)
        _varint(out, len(value.data))
        out += value.data

    def _moment(self, out: bytearray, tag: int, value: Any, datetime: Any) -> None:
        if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
            raise OpaqueError("a time with a time zone of its own has no plain form")
        self._bytes(out, tag, value.isoformat().encode())


def decode(
    data: bytes,
    *,
    max_bytes: int = MAX_BYTES,
    max_nodes: int = MAX_NODES,
    max_depth: int = MAX_DEPTH,
    from_handle: Callable[[int], Any] | None = None,
) -> Any:
    """Decodes any bytes into plain data; raises CodecError for all that `encode` never wrote."""
    if len(data) > max_bytes:
        raise BudgetError(f"an encoded value of {len(data)} bytes is over the {max_bytes} allowed")
    reader = _Reader(bytes(data), max_nodes, from_handle)
    try:
        value = reader.read(max_depth)
    except CodecError:
        raise
    except (ValueError, TypeError, IndexError, ArithmeticError, struct.error) as error:
        raise CodecError(f"malformed encoded value: {type(error).__name__}: {error}") from None
    except (RecursionError, MemoryError):
        raise BudgetError("the encoded value is too deep or too large") from None
    if reader.at != len(data):
        raise CodecError("malformed encoded value: bytes after its end")
    return value


class _Reader:
    """Position in the bytes of one decoding, and the parts it may still have."""

    __slots__ = ("at", "data", "from_handle", "nodes_left")

    def __init__(
        self, data: bytes, max_nodes: int, from_handle: Callable[[int], Any] | None
    ) -> None:
        self.data = data
        self.from_handle = from_handle
        self.at = 0
        self.nodes_left = max_nodes

    def read(self, depth: int) -> Any:
        self.nodes_left -= 1
        if self.nodes_left < 0:
            raise BudgetError("the encoded value has too many parts")
        tag = self.data[self.at]
        self.at += 1
        if tag == 105:
            return self._int()
        if tag == 115:
            return self._blob().decode("utf-8", "surrogatepass")
        if tag == 78:
            return None
        if tag == 84:
            return True
        if tag == 70:
            return False
        if tag == 102:
            self.at += 8
            return _unpack_double(self.data, self.at - 8)[0]
        if tag == 98:
            return self._blob()
        if tag == 99:
            self.at += 16
            return complex(*_unpack_complex(self.data, self.at - 16))
        if tag in (108, 116, 83, 90, 100):
            return self._container(tag, depth)
        return self._library_scalar(tag)

    def _varint(self) -> int:
        n = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            n |= (byte & 127) << shift
            if byte < 128:
                return n
            shift += 7
            if shift > 35:
                raise CodecError("malformed encoded value: a length has too many digits")

    def _blob(self) -> bytes:
        length = self._varint()
        start = self.at
        self.at += length
        if self.at > len(self.data):
            raise CodecError("malformed encoded value: it ends early")
        return self.data[start : self.at]

    def _int(self) -> int:
        return int.from_bytes(self._blob(), "little", signed=True)

    def _container(self, tag: int, depth: int) -> Any:
        if depth <= 0:
            raise BudgetError("the encoded value is nested too deeply")
        count = self._varint()
        if count > len(self.data) - self.at or count > self.nodes_left:
            raise CodecError("malformed encoded value: it announces more parts than it has")
        depth -= 1
        read = self.read
        if tag == 100:
            pairs = [(read(depth), read(depth)) for _ in range(count)]
            _refuse_collisions([key for key, _ in pairs])
            mapping = dict(pairs)
            if len(mapping) != count:
                raise CodecError("malformed encoded value: a dict has the same key twice")
            return mapping
        items = [read(depth) for _ in range(count)]
        if tag == 108:
            return items
        if tag == 116:
            return tuple(items)
        _refuse_collisions(items)
        members = set(items) if tag == 83 else frozenset(items)
        if len(members) != count:
            raise CodecError("malformed encoded value: a set has the same member twice")
        return members

    def _library_scalar(self, tag: int) -> Any:
        # Imported here: a sandboxed process should not pay for modules that no value needs.
        if tag == 68:
            from decimal import Decimal

            text = self._blob()
            if len(text) > _MAX_DECIMAL_CHARS:
                raise BudgetError("a Decimal has too many digits")
            return Decimal(text.decode("ascii"))
        if tag == 81:
            from fractions import Fraction

            parts = []
            for _ in range(2):
                if self.data[self.at] != 105:
                    raise CodecError("malformed encoded value: a Fraction is two integers")
                self.at += 1
                parts.append(self._int())
                if parts[-1].bit_length() >= 8 * _MAX_FRACTION_BYTES:
                    raise BudgetError("a Fraction has too many digits")
            return Fraction(*parts)
        if tag in (49, 50, 51, 52):
            return self._datetime(tag)
        if tag == 65:
            return self._array()
        if tag == 72 and self.from_handle is not None:
            return self.from_handle(self._varint())
        raise CodecError(f"malformed encoded value: unknown tag {tag}")

    def _array(self) -> Any:
        dtype = self._blob().decode("ascii")
        num_dims = self._varint()
        if num_dims > arrays.MAX_DIMS:
            raise CodecError("malformed encoded value: an array has too many dimensions")
        shape = tuple(self._varint() for _ in range(num_dims))
        data = self._blob()
        self.nodes_left -= len(data) // arrays.item_bytes(dtype)
        if self.nodes_left < 0:
            raise BudgetError("the encoded value has too many parts")
        return arrays.build(arrays.NdArray(dtype, shape, data))

    def _datetime(self, tag: int) -> Any:
        import datetime

        if tag == 52:
            parts = []
            for _ in range(3):
                if self.data[self.at] != 105:
                    raise CodecError("malformed encoded value: a timedelta is three integers")
                self.at += 1
                parts.append(self._int())
            return datetime.timedelta(*parts)
        text = self._blob().decode("ascii")
        kind: Any = {49: datetime.date, 50: datetime.time, 51: datetime.datetime}[tag]
        return kind.fromisoformat(text)


def _refuse_collisions(keys: list[Any]) -> None:
    """Refuses keys crafted to share one hash; sorting needs no table and stays fast."""
    if len(keys) <= _MAX_EQUAL_HASHES:
        return
    hashes = sorted(map(hash, keys))
    step = _MAX_EQUAL_HASHES
    for low, high in zip(hashes, hashes[step:]):
        if low == high:
            raise CodecError("malformed encoded value: too many keys share one hash")
