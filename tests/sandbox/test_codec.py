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

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_service import codec
from sandbox_service.compare import Comparator, equal

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
