"""What makes a run cheap: if these fail, every run still works and costs more."""

import json
import pathlib
import subprocess

import pytest

from sandbox_service import packages

ROOT = str(pathlib.Path(__file__).resolve().parents[2])


def _in_zygote(text: str) -> list[str]:
    """What a program prints in an interpreter like that of the fork servers."""
    python = [packages.interpreter(), "-s", "-P", "-S", "-c"]
    program = f"import sys; sys.path.insert(0, {ROOT!r})\n{text}"
    done = subprocess.run([*python, program], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()


def test_costly_modules_are_not_loaded_for_every_child() -> None:
    """Each of these would be in the page tables of every child."""
    loaded = _in_zygote("import sandbox_service.zygote\nprint(*sys.modules)")
    assert "sandbox_service.slot" in loaded
    costly = {"typing", "enum", "re", "signal", "socket", "dataclasses", "contextlib", "functools"}
    assert not costly & set(loaded)


@pytest.mark.parametrize("name", ["use_large_pages", "trim_heap", "make_immortal"])
def test_the_interpreter_is_whole_afterwards(name: str) -> None:
    """These change memory under a running interpreter; a mistake would end every run."""
    text = f"""
from sandbox_service import linux
for _ in range(2):
    linux.{name}()
import decimal, json, re
value = [{{"a": str(decimal.Decimal(1) / 3), "b": re.findall("[a-c]+", "abcxab" * 50)}}] * 100
print(json.dumps([json.loads(json.dumps(value)) == value]))
"""
    assert json.loads(_in_zygote(text)[0]) == [True]


def test_large_pages_hold_what_was_there() -> None:
    """The code of the interpreter must be the same, byte for byte, where it moved or not."""
    text = """
import ctypes, hashlib
from sandbox_service import linux
start, end = linux._interpreter_constants()
before = hashlib.sha256(ctypes.string_at(start, end - start)).hexdigest()
linux.use_large_pages()
print(start < end, before == hashlib.sha256(ctypes.string_at(start, end - start)).hexdigest())
"""
    assert _in_zygote(text) == ["True", "True"]
