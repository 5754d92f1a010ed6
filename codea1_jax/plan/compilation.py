"""Compiling a lowered program and keeping what a plan wants to know of it.

A TPU executable compiled without a TPU can't be loaded again, so JAX's own compilation cache does
not help; the figures are kept instead, under the hash of the program, the compiler and the devices.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import time
from typing import Any

import jax

from codea1_jax.plan.collectives import Collective, collectives_of

_FORMAT = 1  # of the cached files and of what is read from a program
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NEEDED = re.compile(r"(?:required[^(]*\(|Used )([\d.]+)([KMGT]?)")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Memory and communication of one program; bytes are those of one device.

    Attributes:
      num_temporary_bytes: where the compiler refused the program for want of memory, what it asked
        for in all.
      is_refused: the compiler found no way to run it on this device, even alone.
    """

    num_argument_bytes: int
    num_output_bytes: int
    num_aliased_bytes: int
    num_temporary_bytes: int
    num_code_bytes: int
    collectives: tuple[Collective, ...]
    compile_s: float
    is_refused: bool = False

    @property
    def peak_bytes(self) -> int:
        """Arguments, results that do not take an argument's place, temporaries and code."""
        results = self.num_output_bytes - self.num_aliased_bytes
        return self.num_argument_bytes + results + self.num_temporary_bytes + self.num_code_bytes


def cache_folder() -> pathlib.Path:
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(root) / "codea1" / "plan"


def program_hash(lowered: jax.stages.Lowered, *more: Any) -> str:
    """Names a program on given devices under a given compiler."""
    text = json.dumps([_FORMAT, jax.__version__, *map(str, more)]) + lowered.as_text()
    return hashlib.sha256(text.encode()).hexdigest()


def compile_cached(
    lowered: jax.stages.Lowered, key: str, num_devices: int, unknown_trips: int
) -> Compiled:
    """Compiles a program, unless its figures are in the cache folder.

    Raises:
      jax.errors.JaxRuntimeError: it does not compile, for another reason than memory.
    """
    path = cache_folder() / f"{key}.json"
    try:
        return _from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        pass  # not there, or of another version: made anew
    result = _compile(lowered, num_devices, unknown_trips)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(dataclasses.asdict(result)))
    partial.replace(path)
    return result


def is_cached(key: str) -> bool:
    return (cache_folder() / f"{key}.json").exists()


def _compile(lowered: jax.stages.Lowered, num_devices: int, unknown_trips: int) -> Compiled:
    start = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        seconds = time.perf_counter() - start
        return Compiled(0, 0, 0, needed_bytes(str(error)), 0, (), seconds, is_refused=True)
    seconds = time.perf_counter() - start
    memory: Any = compiled.memory_analysis()
    return Compiled(
        num_argument_bytes=memory.argument_size_in_bytes,
        num_output_bytes=memory.output_size_in_bytes,
        num_aliased_bytes=memory.alias_size_in_bytes,
        num_temporary_bytes=memory.temp_size_in_bytes,
        num_code_bytes=memory.generated_code_size_in_bytes,
        collectives=tuple(collectives_of(compiled.as_text() or "", num_devices, unknown_trips)),
        compile_s=seconds,
    )


def needed_bytes(message: str) -> int:
    """What an out-of-memory message of the compiler asks for; 0 if it does not say."""
    amounts = [float(number) * _UNITS[unit] for number, unit in _NEEDED.findall(message)]
    return int(max(amounts, default=0))


def _from_json(raw: dict[str, Any]) -> Compiled:
    collectives = tuple(Collective(**one) for one in raw.pop("collectives"))
    return Compiled(**raw, collectives=collectives)
