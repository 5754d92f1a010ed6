"""Very large values travel as digests that are equal exactly where the values are equal.

HumanEval+ asks for strings of 7 MB and lists of a million numbers. The source of `large_to_digest`
is also put into the judged program (`evalplus.py`), so it stands alone.
"""

from typing import Any


def large_to_digest(value: Any, keeps_floats: bool = True) -> Any:
    """The value itself, or ("sha256", type, length, hex) for a long string or flat list of numbers.

    Numbers that Python calls equal (1, 1.0, True) digest alike. With `keeps_floats` a list of
    floats alone is left whole, because it is compared within a tolerance.
    """
    if not isinstance(value, (str, list, tuple)) or len(value) <= 50_000:
        return value
    if isinstance(value, str):
        kind, data = "str", value.encode("utf-8", "surrogatepass")
    else:
        types = set(map(type, value))
        if not types <= {int, float, bool} or (keeps_floats and types == {float}):
            return value
        kind = "list" if isinstance(value, list) else "tuple"
        try:
            data = repr([int(x) if x % 1 == 0 else x for x in value]).encode()
        except ValueError:  # an integer with more digits than Python converts
            return value
    import hashlib

    return "sha256", kind, len(value), hashlib.sha256(data).hexdigest()


def alike(first: Any, second: Any) -> tuple[Any, Any]:
    """Both values as digests if either is one (a list of floats may meet one of mixed numbers)."""
    if is_digest(first) or is_digest(second):
        return large_to_digest(first, False), large_to_digest(second, False)
    return first, second


def is_digest(value: Any) -> bool:
    return type(value) is tuple and len(value) == 4 and value[0] == "sha256"
