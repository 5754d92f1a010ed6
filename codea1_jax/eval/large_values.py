"""Very large values travel as digests that are equal exactly where the values are equal.

HumanEval+ asks for strings of 7 MB and lists of a million numbers, MBPP+ for millions of tuples.
The source of `large_to_digest` is also put into the judged program (`evalplus.py`), so it stands
alone.
"""

from typing import Any


def large_to_digest(value: Any, keeps_floats: bool = True) -> Any:
    """The value itself, or ("sha256", type, length, hex) for a long string, list or tuple.

    Lists of numbers, of texts, and of lists or tuples of them are digested. Numbers
    that Python calls equal (1, 1.0, True) digest alike. With `keeps_floats` a list of floats alone
    is left whole, because it is compared within a tolerance, as long as it can leave the sandbox.
    """
    if not isinstance(value, (str, list, tuple)):
        return value
    size = len(value)
    if not isinstance(value, str):
        size += sum(len(x) for x in value if isinstance(x, (str, list, tuple)))
    if size <= 50_000:
        return value
    import hashlib
    import itertools

    if isinstance(value, str):
        digest = hashlib.sha256(value.encode("utf-8", "surrogatepass"))
        return "sha256", "str", len(value), digest.hexdigest()
    items, types = list(value), set(map(type, value))
    if types <= {int, float, bool}:
        if keeps_floats and types == {float} and len(value) <= 500_000:
            return value
        items = [int(x) if x % 1 == 0 else x for x in items]
    elif types <= {str, list, tuple}:
        inner = set(map(type, itertools.chain.from_iterable(items)))
        if not inner <= {str, int, bool, float}:
            return value
        if inner & {bool, float}:
            items = [
                x
                if type(x) is str
                else type(x)(int(y) if type(y) is not str and y % 1 == 0 else y for y in x)
                for x in items
            ]
    else:
        return value
    digest = hashlib.sha256()
    try:
        for start in range(0, len(items), 4096):
            digest.update(repr(items[start : start + 4096]).encode("utf-8", "surrogatepass"))
    except ValueError:  # an integer with more digits than Python converts
        return value
    kind = "list" if isinstance(value, list) else "tuple"
    return "sha256", kind, len(value), digest.hexdigest()


def alike(first: Any, second: Any) -> tuple[Any, Any]:
    """Both values as digests if either is one (a list of floats may meet one of mixed numbers)."""
    if is_digest(first) or is_digest(second):
        return large_to_digest(first, False), large_to_digest(second, False)
    return first, second


def is_digest(value: Any) -> bool:
    return type(value) is tuple and len(value) == 4 and value[0] == "sha256"
