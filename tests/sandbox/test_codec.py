"""If the codec fails, answers reach the judge changed, or hostile bytes stop training."""

import datetime
import math
import os
import random
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from sandbox_service import codec
from sandbox_service.compare import PYTHON_EQ, Comparator, equal

_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**300), 2**300),
    st.floats(),
    st.complex_numbers(),
    _text,
    st.binary(max_size=20),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.dates(),
    st.times(),
    st.datetimes(timezones=st.sampled_from([None, datetime.UTC])),
    st.timedeltas(),
)
_keys = st.one_of(st.integers(), _text, st.booleans(), st.tuples(st.integers(), _text))
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(_keys, inner, max_size=5),
        st.sets(_keys, max_size=5),
        st.frozensets(_keys, max_size=5),
    ),
    max_leaves=20,
)
_EXACT = Comparator(rel_tol=0, abs_tol=0, list_is_tuple=False)


def _same(a: Any, b: Any) -> bool:
    """Equal value and equal types all the way down."""
    if type(a) is not type(b):
        return False
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if type(a) is dict:
        return list(map(repr, a)) == list(map(repr, b)) and all(_same(a[k], b[k]) for k in a)
    if type(a) is float:
        return (math.copysign(1, a) == math.copysign(1, b) and a == b) or (a != a and b != b)
    return equal(a, b, _EXACT)


@given(_values)
@settings(max_examples=300, deadline=None)
def test_round_trip(value: Any) -> None:
    """Expected values and arguments change on the way if this fails."""
    data = codec.encode(value)
    back = codec.decode(data)
    assert _same(value, back)
    assert codec.encode(back) == data


@given(st.binary(max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_bytes_decode_or_raise_one_error(data: bytes) -> None:
    """A program that writes its own bytes stops the trainer if this fails."""
    try:
        value = codec.decode(data)
    except codec.CodecError:
        return
    codec.encode(value)


@given(_values, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_damaged_bytes_decode_or_raise_one_error(value: Any, rng: random.Random) -> None:
    """The same, with bytes that are nearly right."""
    data = bytearray(codec.encode(value))
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        codec.decode(bytes(data[: rng.randint(0, len(data))]))
        codec.decode(bytes(data))
    except codec.CodecError:
        pass


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "malformed"),
        (b"l\xff\xff\xff\xff\x7f", "more parts"),
        (b"l\xff\xff\xff\xff\xff\xff\xff\x7f", "digits"),
        (b"s\xff\xff\x03x", "ends early"),
        (b"l\x01" * 300 + b"N", "deeply"),
        (b"S\x01l\x00", "unhashable"),
        (b"S\x02NN", "twice"),
        (b"d\x02NNNN", "twice"),
        (b"NN", "after its end"),
        (b"s\x01\xff", "malformed"),
        (b"D\x03abc", "malformed"),
        (b"Qi\x01\x01i\x01\x00", "malformed"),
        (b"1\x03abc", "malformed"),
        (b"\x00", "unknown tag"),
        (b"N" * (2 << 20), "over the"),
    ],
)
def test_malformed_bytes(data: bytes, word: str) -> None:
    """Each hostile shape has its own guard; a missing one is a hang or a crash of the service."""
    with pytest.raises(codec.CodecError, match=word):
        codec.decode(data)


def test_crafted_collisions_are_refused_fast() -> None:
    """Keys with one hash would make one reply cost minutes of the server's time."""
    prime = sys.hash_info.modulus
    encoded = [codec.encode(i * prime) for i in range(1, 40_000)]
    header = bytearray(b"S")
    codec._varint(header, len(encoded))
    with pytest.raises(codec.CodecError, match="share one hash"):
        codec.decode(bytes(header) + b"".join(encoded))


def test_huge_fraction_and_decimal_are_refused() -> None:
    """Reducing a fraction of megabit numbers would block the server for minutes."""
    part = b"i\xff\xff\x03" + b"\x01" * 65535
    with pytest.raises(codec.CodecError):
        codec.decode(b"Q" + part + part)
    with pytest.raises(codec.CodecError):
        codec.encode(Fraction(1, 3**5000))
    with pytest.raises(codec.CodecError):
        codec.encode(Decimal("1" * 5000))


@pytest.mark.parametrize("value", [object(), iter([]), deque([1]), {}.keys(), range(3), len, ...])
def test_opaque_values(value: Any) -> None:
    """An opaque object that passed for a value could equal anything."""
    with pytest.raises(codec.OpaqueError):
        codec.encode(value)
    with pytest.raises(codec.OpaqueError):
        codec.encode([{"x": (value,)}])


def test_budgets() -> None:
    """Encoding is work that the program chooses: it must stop early."""
    loop: list[Any] = []
    loop.append(loop)
    shared: list[Any] = [0]
    for _ in range(60):
        shared = [shared, shared]
    for value in (
        loop,
        shared,
        [0] * (50 * 10**6),
        "x" * (5 << 20),
        1 << (1 << 26),
        b"x" * (5 << 20),
    ):
        with pytest.raises(codec.BudgetError):
            codec.encode(value)


def test_subclasses_are_encoded_by_base_value_without_their_code() -> None:
    """A lying subclass would decide its own comparison, a correct Counter would be refused."""

    class Liar(int):
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        def __add__(self, other: object) -> "Liar":
            raise AssertionError

        __index__ = __int__ = __bool__ = __hash__ = __repr__ = __eq__  # type: ignore[assignment]

    class LongList(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise AssertionError

        __len__ = __getitem__ = __iter__

    point = namedtuple("point", "x y")
    for value, base in (
        (Liar(41), 41),
        (LongList([1, 2]), [1, 2]),
        (point(1, 2), (1, 2)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (defaultdict(list, {1: [2]}), {1: [2]}),
        (OrderedDict(a=1), {"a": 1}),
    ):
        assert codec.decode(codec.encode(value)) == base


def test_canonical_key_ignores_order_only() -> None:
    """The mistake book would hold one test twice, or two tests as one."""
    key = codec.canonical_key
    assert key({"a": 1, "b": {2, 1}}) == key({"b": {1, 2}, "a": 1})
    assert key(float("nan")) == key(-float("nan"))
    assert len({key(1), key(1.0), key(True), key("1"), key(b"1"), key(-0.0), key(0.0)}) == 7
    assert key([1, 2]) != key((1, 2))
    assert key([1, 2]) != key([2, 1])


def test_encoding_does_not_depend_on_the_hash_seed() -> None:
    """The oracle runs a reference under two hash seeds and compares bytes."""
    code = (
        "from sandbox_service import codec; import sys;"
        "sys.stdout.write(codec.encode({'x': {str(i) for i in range(50)}}).hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1


_dtypes = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(),
    npst.unsigned_integer_dtypes(),
    npst.floating_dtypes(sizes=(16, 32, 64)),
    npst.complex_number_dtypes(sizes=(64, 128)),
    npst.unicode_string_dtypes(max_len=5),
    npst.byte_string_dtypes(max_len=5),
    npst.datetime64_dtypes(),
)


@given(npst.arrays(_dtypes, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))
@settings(max_examples=200, deadline=None)
def test_arrays_round_trip(array: Any) -> None:
    """A right array would be refused, or reach the program changed."""
    if array.dtype.kind == "M" and numpy.datetime_data(array.dtype)[0] == "generic":
        return
    data = codec.encode([array])
    (back,) = codec.decode(data)
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("<")
    assert equal(back, array, _EXACT)
    assert codec.encode([back]) == data


def test_arrays_without_numpy() -> None:
    """The server would need numpy to judge arrays, or build what a program claims."""
    code = (
        "import sys; from sandbox_service import codec, compare;"
        "a, b, c = codec.decode(bytes.fromhex(sys.argv[1]));"
        "assert 'numpy' not in sys.modules;"
        "assert type(a) is codec.NdArray and a.items() == [1.5, 2.0], a;"
        "assert compare.equal(a, b) and not compare.equal(a, c) and not compare.equal(a, [1.5, 2]);"
        "print(codec.encode([a, b, c]).hex())"
    )
    data = codec.encode(
        [numpy.array([1.5, 2]), numpy.array([1.5, 2], "f4"), numpy.array([[1.5, 2]])]
    ).hex()
    done = subprocess.run(
        [sys.executable, "-c", code, data], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == data


def test_numpy_scalars_are_numbers_and_strange_arrays_opaque() -> None:
    """`return np.int64(3)` would fail a test that expects 3; object arrays run code on decoding."""
    for value, plain in (
        (numpy.int64(3), 3),
        (numpy.bool_(True), True),
        (numpy.float64(0.5), 0.5),
        (numpy.str_("a"), "a"),
    ):
        decoded = codec.decode(codec.encode(value))
        assert (type(decoded), decoded) == (type(plain), plain)
    scalar = codec.decode(codec.encode(numpy.float32(0.1)))
    assert type(scalar) is numpy.float32
    assert equal(scalar, 0.1, PYTHON_EQ)
    assert not equal(scalar, 0.2, PYTHON_EQ)
    keyed = {numpy.float32(0.5): 1, numpy.datetime64("2020-01-01"): 2}
    assert codec.decode(codec.encode(keyed)) == keyed
    for array in (
        numpy.array([object()]),
        numpy.zeros(2, "i4,f4"),
        numpy.zeros(2, numpy.longdouble),
        numpy.matrix([[1]]),
    ):
        with pytest.raises(codec.OpaqueError):
            codec.encode(array)
    with pytest.raises(codec.BudgetError):
        codec.encode(numpy.broadcast_to(numpy.int8(0), (1 << 20, 1 << 10)))


@pytest.mark.parametrize(
    "data",
    [
        b"A\x02|O\x01\x01\x08" + b"x" * 8,  # object
        b"A\x03<f8\x01\x02\x08" + b"x" * 8,  # two elements in eight bytes
        b"A\x03<U0\x01\xff\xff\xff\xff\x00\x00",  # many elements of no size
        b"A\x03<f8\x21" + b"\x01" * 33 + b"\x08" + b"x" * 8,
        b"A\x03>f8\x00\x08" + b"x" * 8,
        b"A\x05<i8[x\x00\x08" + b"x" * 8,
        b"A\x07<M8[xx]\x00\x08" + b"x" * 8,
        b"A\x05i4,f4\x00\x08" + b"x" * 8,
        b"S\x01A\x03<f8\x00\x08" + b"x" * 8,  # unhashable where numpy is loaded
        b"H\x01",  # a handle where none was asked for
    ],
)
def test_hostile_arrays(data: bytes) -> None:
    """A crafted dtype or shape would crash numpy or fill the memory of the server."""
    with pytest.raises(codec.CodecError):
        codec.decode(data)


@given(
    st.sampled_from(["<f8", "|b1", "<U2", "|S3", "<M8[ns]", "<c16"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.binary(max_size=32),
)
@settings(max_examples=200, deadline=None)
def test_fuzzed_arrays_decode_or_raise_one_error(dtype: str, shape: list[int], data: bytes) -> None:
    """A record that is nearly an array stops the server if this fails."""
    encoded = b"A" + bytes([len(dtype)]) + dtype.encode() + bytes([len(shape), *shape])
    try:
        value = codec.decode(encoded + bytes([len(data)]) + data)
    except codec.CodecError:
        return
    equal(value, value)
