"""Families of small Python problems, drawn from a random generator.

A family turns a `random.Random` into a `Draft`: an unambiguous requirement, right solutions in
several styles, ways to get inputs, and the inputs at which a near miss shows. Numbers are kept
small so that a small model can work out the answers. Names are given later
(`embedded_problems.py`); bodies are written for a function called `f`.

Left out on purpose: errors, mutation of arguments, floats, nested containers.
"""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

# What a requirement calls a comparison, and the operator it means.
COMPARISONS = (
    ("at least", ">="),
    ("more than", ">"),
    ("at most", "<="),
    ("less than", "<"),
)
LETTERS = "xyzqw"
WORDS = ("low", "mid", "high", "big", "small", "ok", "no")
# How often plain inputs touch a boundary: a tester that only imitates them leaves room to improve.
BOUNDARY_SHARE = 0.1

Args = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Draft:
    """A problem without a name.

    Attributes:
      verb: first half of the entry point.
      difficulty: 1 (one expression) to 3 (several rules).
      params: parameter list.
      text: the requirement.
      bodies: right function bodies, the plainest first.
      slips: wrong bodies that a single mutation of a right one does not reach (wrong order).
      plain: draws ordinary arguments, rarely at a boundary.
      edges: arguments at which a near miss shows.
    """

    verb: str
    difficulty: int
    params: str
    text: str
    bodies: tuple[str, ...]
    plain: Callable[[random.Random], Args]
    edges: tuple[Args, ...]
    slips: tuple[str, ...] = ()


def _near(rng: random.Random, high: int, *boundaries: int) -> int:
    """A whole number from 0 to `high`, now and then one of `boundaries`."""
    if boundaries and rng.random() < BOUNDARY_SHARE:
        return rng.choice(boundaries)
    return rng.randint(0, high)


def _numbers(rng: random.Random, *boundaries: int) -> list[int]:
    return [_near(rng, 9, *boundaries) for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))]


def _string(rng: random.Random, low: int = 1, high: int = 4) -> str:
    return "".join(rng.choice(LETTERS[:3]) for _ in range(rng.randint(low, high)))


def _expression(rng: random.Random, name: str, avoid: str = "") -> tuple[str, str]:
    """A small expression of `name`: words and code; its code differs from `avoid`."""
    while True:
        k = rng.randint(1, 5)
        words, code = rng.choice(
            (
                (f"{name} plus {k}", f"{name} + {k}"),
                (f"{name} minus {k}", f"{name} - {k}"),
                (f"twice {name}", f"2 * {name}"),
                (name, name),
                (str(k), str(k)),
            )
        )
        if code != avoid:
            return words, code


def _choice_bodies(condition: str, first: str, second: str) -> tuple[str, ...]:
    return (
        f"return {first} if {condition} else {second}",
        f"if {condition}:\n        return {first}\n    return {second}",
    )


def linear(rng: random.Random) -> Draft:
    a, b = rng.randint(2, 4), rng.randint(1, 9)
    if rng.random() < 0.5:
        text, body, slip = f"Return {a} times x, plus {b}.", f"{a} * x + {b}", f"{a} * (x + {b})"
    else:
        text = f"Add {b} to x, multiply the sum by {a} and return it."
        body, slip = f"{a} * (x + {b})", f"{a} * x + {b}"
    return Draft(
        verb="calc",
        difficulty=1,
        params="x",
        text=text,
        bodies=(f"return {body}",),
        slips=(f"return {slip}",),
        plain=lambda r: (r.randint(0, 9),),
        edges=((0,), (1,), (2,), (-1,)),
    )


def step(rng: random.Random) -> Draft:
    (words, op), c = rng.choice(COMPARISONS), rng.randint(3, 12)
    first_words, first = _expression(rng, "x")
    second_words, second = _expression(rng, "x", first)
    return Draft(
        verb="step",
        difficulty=2,
        params="x",
        text=f"Return {first_words} if x is {words} {c}, otherwise return {second_words}.",
        bodies=_choice_bodies(f"x {op} {c}", first, second),
        plain=lambda r: (_near(r, c + 6, c),),
        edges=((c,), (c - 1,), (c + 1,), (0,), (c + 9,)),
    )


def gate(rng: random.Random) -> Draft:
    (words, op), c = rng.choice(COMPARISONS), rng.randint(2, 9)
    first_words, first = _expression(rng, "y")
    second_words, second = _expression(rng, "y", first)
    return Draft(
        verb="gate",
        difficulty=2,
        params="x, y",
        text=f"Return {first_words} if x is {words} {c}, otherwise return {second_words}.",
        bodies=_choice_bodies(f"x {op} {c}", first, second),
        plain=lambda r: (_near(r, c + 5, c), r.randint(0, 9)),
        edges=tuple((x, y) for x in (c, c - 1, c + 1, 0) for y in (7, 0, 2)),
    )


def within(rng: random.Random) -> Draft:
    a = rng.randint(2, 8)
    b = a + rng.randint(2, 7)
    low_words, low = rng.choice((("at least", ">="), ("more than", ">")))
    high_words, high = rng.choice((("at most", "<="), ("less than", "<")))
    if rng.random() < 0.6:
        text = f"Return True if x is {low_words} {a} and {high_words} {b}, otherwise False."
        chained = f"return {a} {low.replace('>', '<')} x {high} {b}"
        bodies: tuple[str, ...] = (f"return x {low} {a} and x {high} {b}", chained)
    else:
        text = f"Return True if x is {high_words} {a} or {low_words} {b}, otherwise False."
        bodies = (f"return x {high} {a} or x {low} {b}",)
    return Draft(
        verb="within",
        difficulty=2,
        params="x",
        text=text,
        bodies=bodies,
        plain=lambda r: (_near(r, b + 4, a, b),),
        edges=((a,), (b,), (a - 1,), (b + 1,), (a + 1,), (b - 1,), (0,), (b + 9,)),
    )


def clamp(rng: random.Random) -> Draft:
    a = rng.randint(1, 7)
    b = a + rng.randint(2, 8)
    return Draft(
        verb="clamp",
        difficulty=2,
        params="x",
        text=f"Return {a} if x is less than {a}, {b} if x is more than {b}, otherwise x.",
        bodies=(
            f"return max({a}, min(x, {b}))",
            f"if x < {a}:\n        return {a}\n    if x > {b}:\n        return {b}\n    return x",
        ),
        plain=lambda r: (_near(r, b + 5, a, b),),
        edges=((a - 1,), (b + 1,), (a,), (b,), (a + 1,), (0,), (b + 9,)),
    )


def label(rng: random.Random) -> Draft:
    a = rng.randint(2, 8)
    b = a + rng.randint(2, 7)
    words, op = rng.choice((("at most", "<="), ("less than", "<")))
    one, two, three = rng.sample(WORDS, 3)
    return Draft(
        verb="label",
        difficulty=3,
        params="x",
        text=(
            f"Return '{one}' if x is {words} {a}, otherwise '{two}' if x is {words} {b}, "
            f"otherwise '{three}'."
        ),
        bodies=(
            f"if x {op} {a}:\n        return '{one}'\n    if x {op} {b}:\n        return '{two}'\n"
            f"    return '{three}'",
        ),
        plain=lambda r: (_near(r, b + 5, a, b),),
        edges=((a,), (b,), (a - 1,), (a + 1,), (b - 1,), (b + 1,), (0,), (b + 9,)),
    )


def divide(rng: random.Random) -> Draft:
    a, c = rng.randint(2, 5), rng.randint(4, 12)
    words, op = rng.choice(COMPARISONS)
    join = rng.choice(("and", "or"))
    return Draft(
        verb="check",
        difficulty=2,
        params="x",
        text=f"Return True if x is divisible by {a} {join} x is {words} {c}, otherwise False.",
        bodies=(f"return x % {a} == 0 {join} x {op} {c}",),
        plain=lambda r: (_near(r, c + 6, c),),
        edges=tuple((x,) for x in (c, c + 1, c - 1, 0, a, c - c % a, c - c % a + a, c + 9)),
    )


def pick(rng: random.Random) -> Draft:
    a, b = rng.randint(1, 6), rng.randint(1, 6)
    words, name = rng.choice((("larger", "max"), ("smaller", "min")))
    first, second = rng.choice(
        (
            ((f"x plus {a}", f"x + {a}"), (f"y plus {b}", f"y + {b}")),
            ((f"x plus {a}", f"x + {a}"), ("twice y", "2 * y")),
            ((f"x minus {a}", f"x - {a}"), (f"y plus {b}", f"y + {b}")),
            (("x", "x"), (f"y plus {b}", f"y + {b}")),
            ((f"x minus {a}", f"x - {a}"), ("y", "y")),
        )
    )
    op = ">" if name == "max" else "<"
    return Draft(
        verb="pick",
        difficulty=2,
        params="x, y",
        text=f"Return the {words} of {first[0]} and {second[0]}.",
        bodies=(
            f"return {name}({first[1]}, {second[1]})",
            f"return {first[1]} if {first[1]} {op} {second[1]} else {second[1]}",
        ),
        plain=lambda r: (r.randint(0, 9), r.randint(0, 9)),
        edges=((0, 0), (9, 0), (0, 9), (5, 5), (4, 5), (5, 4), (3, 8)),
    )


def gap(rng: random.Random) -> Draft:
    c, k = rng.randint(1, 6), rng.randint(0, 5)
    words, op = rng.choice(COMPARISONS)
    return Draft(
        verb="gap",
        difficulty=3,
        params="x, y",
        text=f"Return x minus y if x is {words} y plus {c}, otherwise return {k}.",
        bodies=_choice_bodies(f"x {op} y + {c}", "x - y", str(k)),
        plain=lambda r: (lambda y: (y + c if r.random() < BOUNDARY_SHARE else r.randint(0, 9), y))(
            r.randint(0, 6)
        ),
        edges=((c, 0), (c + 1, 0), (c + 2, 3), (c + 3, 3), (c + 4, 3), (0, 5), (9, 1)),
    )


def keep(rng: random.Random) -> Draft:
    (words, op), c = rng.choice(COMPARISONS), rng.randint(2, 8)
    return Draft(
        verb="keep",
        difficulty=1,
        params="xs",
        text=f"Return the numbers in xs that are {words} {c}, in order.",
        bodies=(f"return [n for n in xs if n {op} {c}]",),
        plain=lambda r: (_numbers(r, c),),
        edges=(([c],), ([c - 1, c, c + 1],), ([],), ([c + 1, 0],), ([9, c, 1],)),
    )


def count(rng: random.Random) -> Draft:
    (words, op), c = rng.choice(COMPARISONS), rng.randint(2, 8)
    k = rng.choice((0, 0, 1, 2, 3))
    text = f"Return how many numbers in xs are {words} {c}" + (f", plus {k}." if k else ".")
    tail = f" + {k}" if k else ""
    return Draft(
        verb="count",
        difficulty=2,
        params="xs",
        text=text,
        bodies=(
            f"return len([n for n in xs if n {op} {c}]){tail}",
            f"return sum((n {op} {c} for n in xs)){tail}",
        ),
        plain=lambda r: (_numbers(r, c),),
        edges=(([c],), ([c - 1, c, c + 1],), ([],), ([c, c],), ([9, c, 1],)),
    )


def total(rng: random.Random) -> Draft:
    (words, op), c = rng.choice(COMPARISONS), rng.randint(2, 8)
    return Draft(
        verb="total",
        difficulty=2,
        params="xs",
        text=f"Return the sum of the numbers in xs that are {words} {c}.",
        bodies=(f"return sum([n for n in xs if n {op} {c}])",),
        plain=lambda r: (_numbers(r, c)[:3],),
        edges=(([c],), ([c - 1, c, c + 1],), ([],), ([c, c],), ([9, c, 1],)),
    )


def shift(rng: random.Random) -> Draft:
    (words, op), c = rng.choice(COMPARISONS), rng.randint(2, 8)
    action, code = _expression(rng, "n", "n")
    while "n" not in code:
        action, code = _expression(rng, "n", "n")
    if rng.random() < 0.4:
        text, body = f"Return the list of {action} for each n in xs.", f"[{code} for n in xs]"
        difficulty = 1
    else:
        text = f"Return the list of {action} for each n in xs that is {words} {c}."
        body = f"[{code} for n in xs if n {op} {c}]"
        difficulty = 3
    return Draft(
        verb="shift",
        difficulty=difficulty,
        params="xs",
        text=text,
        bodies=(f"return {body}",),
        plain=lambda r: (_numbers(r, c)[:3],),
        edges=(([c],), ([c - 1, c, c + 1],), ([],), ([c, c],), ([9, c, 1],)),
    )


def part(rng: random.Random) -> Draft:
    k = rng.randint(2, 4)
    words, code = rng.choice(
        (
            (f"the first {k} numbers of xs", f"xs[:{k}]"),
            (f"xs without its first {k} numbers", f"xs[{k}:]"),
            (f"the last {k} numbers of xs", f"xs[-{k}:]"),
            (f"xs without its last {k} numbers", f"xs[:-{k}]"),
            (f"every second number of xs, starting at index {k}", f"xs[{k}::2]"),
            (f"every third number of xs, starting at index {k}", f"xs[{k}::3]"),
        )
    )
    extra = rng.randint(0, 9)
    tail = rng.random() < 0.6
    return Draft(
        verb="part",
        difficulty=2 if tail else 1,
        params="xs",
        text=f"Return {words}, followed by {extra}." if tail else f"Return {words}.",
        bodies=(f"return {code} + [{extra}]" if tail else f"return {code}",),
        plain=lambda r: ([r.randint(0, 9) for _ in range(r.randint(1, 4))],),
        edges=(([1, 2, 3, 4, 5, 6, 7],), ([],), ([5],), ([3, 1],), ([4, 4, 2, 8],)),
    )


def every(rng: random.Random) -> Draft:
    (words, op), c = rng.choice(COMPARISONS), rng.randint(2, 8)
    (kind, name) = rng.choice((("every number in xs is", "all"), ("some number in xs is", "any")))
    return Draft(
        verb="every" if name == "all" else "some",
        difficulty=2,
        params="xs",
        text=f"Return True if {kind} {words} {c}, otherwise False.",
        bodies=(f"return {name}((n {op} {c} for n in xs))",),
        plain=lambda r: (_numbers(r, c),),
        edges=(([c],), ([c - 1],), ([c + 1],), ([],), ([c - 1, c + 1],), ([c, c + 1],)),
    )


def first(rng: random.Random) -> Draft:
    (words, op), c, k = rng.choice(COMPARISONS), rng.randint(2, 8), rng.randint(0, 9)
    return Draft(
        verb="first",
        difficulty=3,
        params="xs",
        text=f"Return the first number in xs that is {words} {c}, or {k} if there is none.",
        bodies=(
            f"for n in xs:\n        if n {op} {c}:\n            return n\n    return {k}",
            f"return next((n for n in xs if n {op} {c}), {k})",
        ),
        plain=lambda r: (_numbers(r, c),),
        edges=(([c],), ([c - 1],), ([c + 1],), ([],), ([c, c + 1, c - 1],), ([c - 1, c + 1],)),
    )


def best(rng: random.Random) -> Draft:
    k, d = rng.randint(1, 6), rng.randint(0, 9)
    (words, name) = rng.choice((("largest", "max"), ("smallest", "min")))
    sign, op = rng.choice((("plus", "+"), ("minus", "-")))
    return Draft(
        verb="best",
        difficulty=3,
        params="xs",
        text=f"Return the {words} number in xs {sign} {k}, or {d} if xs is empty.",
        bodies=_choice_bodies("xs", f"{name}(xs) {op} {k}", str(d)),
        plain=lambda r: ([] if r.random() < BOUNDARY_SHARE else _numbers(r),),
        edges=(([],), ([3],), ([1, 5],), ([5, 1, 9],), ([0],)),
    )


def long(rng: random.Random) -> Draft:
    (words, op), c, k = rng.choice(COMPARISONS), rng.randint(2, 4), rng.randint(0, 9)
    one = rng.choice(
        (
            ("the first number in xs", "xs[0]"),
            ("the last number in xs", "xs[-1]"),
            ("the sum of xs", "sum(xs)"),
        )
    )
    two = rng.choice(((str(k), str(k)), ("the length of xs", "len(xs)")))
    if "<" in op:  # the branch that needs an element must not see an empty list
        one, two = two, one
    return Draft(
        verb="long",
        difficulty=3,
        params="xs",
        text=f"Return {one[0]} if xs has {words} {c} numbers, otherwise {two[0]}.",
        bodies=_choice_bodies(f"len(xs) {op} {c}", one[1], two[1]),
        plain=lambda r: ([r.randint(0, 9) for _ in range(r.randint(1, 5))],),
        edges=tuple(
            (list(xs),)
            for n in (c, c - 1, c + 1, 0, 6)
            for xs in ([7, 2, 9, 4, 8, 3][:n], [2, 8, 3, 5, 1, 9][:n])
        ),
    )


def trim(rng: random.Random) -> Draft:
    k = rng.randint(2, 3)
    words, code = rng.choice(
        (
            (f"s without its first {k} letters", f"s[{k}:]"),
            (f"the first {k} letters of s", f"s[:{k}]"),
            (f"s without its last {k} letters", f"s[:-{k}]"),
            (f"the last {k} letters of s", f"s[-{k}:]"),
        )
    )
    extra = rng.choice(LETTERS)
    tail, code = rng.choice(
        (
            (" in upper case", f"{code}.upper()"),
            (f" followed by '{extra}'", f"{code} + '{extra}'"),
            (f" in upper case, followed by '{extra}'", f"{code}.upper() + '{extra}'"),
        )
    )
    return Draft(
        verb="trim",
        difficulty=2,
        params="s",
        text=f"Return {words}{tail}.",
        bodies=(f"return {code}",),
        plain=lambda r: (_string(r, 1, 4),),
        edges=(("xyzqw",), ("",), ("x",), ("yz",), ("XyZq",)),
    )


def tally(rng: random.Random) -> Draft:
    letter, (words, op), k = rng.choice(LETTERS[:3]), rng.choice(COMPARISONS), rng.randint(1, 3)
    if rng.random() < 0.4:
        text = f"Return how many times '{letter}' is in s, plus {k}."
        body = f"s.count('{letter}') + {k}"
    else:
        text = f"Return True if '{letter}' is in s {words} {k} times, otherwise False."
        body = f"s.count('{letter}') {op} {k}"
    return Draft(
        verb="tally",
        difficulty=2,
        params="s",
        text=text,
        bodies=(f"return {body}",),
        plain=lambda r: (_string(r, 1, 4),),
        edges=(*((letter * n + "q",) for n in (k, k - 1, k + 1, 0)), ("xyz",), ("",)),
    )


def swap(rng: random.Random) -> Draft:
    old, new = rng.sample(LETTERS, 2)
    extra = rng.choice(LETTERS)
    tail, suffix = rng.choice((("", ""), (f", followed by '{extra}'", f" + '{extra}'")))
    text = f"Return s with each '{old}' replaced by '{new}'{tail}."
    slip = f"return s.replace('{new}', '{old}'){suffix}"
    return Draft(
        verb="swap",
        difficulty=1,
        params="s",
        text=text,
        bodies=(f"return s.replace('{old}', '{new}'){suffix}",),
        slips=(slip, *((f"return s.replace('{old}', '{new}')",) if suffix else ())),
        plain=lambda r: (_string(r, 1, 4),),
        edges=((old + new,), ("",), (old * 2,), ("xyz",), (new,), (f"q{old}w",)),
    )


def size(rng: random.Random) -> Draft:
    (words, op), c, extra = rng.choice(COMPARISONS), rng.randint(2, 4), rng.choice(LETTERS)
    other = rng.choice(WORDS)
    text, body = rng.choice(
        (
            (
                f"Return s followed by '{extra}' if its length is {words} {c}, otherwise s.",
                (f"s + '{extra}'", "s"),
            ),
            (
                f"Return s if its length is {words} {c}, otherwise '{other}'.",
                ("s", f"'{other}'"),
            ),
        )
    )
    return Draft(
        verb="size",
        difficulty=2,
        params="s",
        text=text,
        bodies=_choice_bodies(f"len(s) {op} {c}", *body),
        plain=lambda r: (_string(r, 1, 5),),
        edges=tuple(("xyzqwxyz"[:n],) for n in (c, c - 1, c + 1, 0, 8)),
    )


def ends(rng: random.Random) -> Draft:
    letter, extra, other = rng.choice(LETTERS[:3]), rng.choice(LETTERS), rng.choice(LETTERS)
    words, method = rng.choice((("starts", "startswith"), ("ends", "endswith")))
    one, two = rng.sample(
        (
            (f"s followed by '{extra}'", f"s + '{extra}'"),
            (f"'{other}' followed by s", f"'{other}' + s"),
            ("s in upper case", "s.upper()"),
            ("s", "s"),
        ),
        2,
    )
    return Draft(
        verb="ends" if method == "endswith" else "starts",
        difficulty=3,
        params="s",
        text=f"Return {one[0]} if s {words} with '{letter}', otherwise {two[0]}.",
        bodies=_choice_bodies(f"s.{method}('{letter}')", one[1], two[1]),
        plain=lambda r: (_string(r, 1, 4),),
        edges=((letter,), (letter + "q",), ("q" + letter,), ("",), ("qw",)),
    )


def repeat(rng: random.Random) -> Draft:
    c, extra = rng.randint(1, 3), rng.choice(LETTERS)
    words, code = rng.choice(
        (
            (f"s repeated n times, but at most {c} times", f"s * min(n, {c})"),
            (f"s repeated n times, but at least {c} times", f"s * max(n, {c})"),
            (f"s repeated n plus {c} times", f"s * (n + {c})"),
        )
    )
    return Draft(
        verb="repeat",
        difficulty=3,
        params="s, n",
        text=f"Return {words}, followed by '{extra}'.",
        bodies=(f"return {code} + '{extra}'",),
        plain=lambda r: (_string(r, 1, 2), r.randint(0, 3)),
        edges=tuple(("xy", n) for n in (c, c - 1, c + 1, 0, 4)),
    )


FAMILIES: tuple[Callable[[random.Random], Draft], ...] = (
    linear, step, gate, within, clamp, label, divide, pick, gap,
    keep, count, total, shift, part, every, first, best, long,
    trim, tally, swap, size, ends, repeat,
)  # fmt: skip
