"""Which numeric packages programs can import: those installed beside the service.

Programs run in the base interpreter with no site-packages. The numpy profile adds one folder, the
one that holds numpy, to the path and, read-only, to the cage; so pandas and scipy work if they are
installed in the same place.
"""

import functools
import importlib.metadata
import importlib.util
import logging
import os
import subprocess
import sys
from dataclasses import dataclass

log = logging.getLogger(__name__)

NAMES = ("numpy", "pandas", "scipy")
_WORDS = tuple(name.encode() for name in NAMES)
_PROBE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Packages:
    """`folder` holds the packages; "" if numpy does not import, and then `versions` is empty."""

    folder: str = ""
    versions: tuple[str, ...] = ()  # "numpy 2.3.1"


def interpreter() -> str:
    """The Python that programs run in: the base interpreter, not a virtual environment's."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def find() -> Packages:
    """Looks once, by importing numpy the way the fork server will, in a process of its own."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or spec.origin is None:
        return Packages()
    folder = os.path.dirname(os.path.dirname(os.path.realpath(spec.origin)))
    if folder.startswith("/tmp/"):
        log.warning("no numpy for programs: %s is under /tmp, and programs get a /tmp", folder)
        return Packages()
    code = "import sys; sys.path.append(sys.argv[1]); import numpy"
    command = [interpreter(), "-s", "-P", "-S", "-B", "-c", code, folder]
    environment = {"PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1"}
    if "LD_LIBRARY_PATH" in os.environ:
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    try:
        subprocess.run(
            command, env=environment, check=True, capture_output=True, timeout=_PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("no numpy for programs: it does not import: %s", error)
        return Packages()
    versions = []
    for name in NAMES:
        if importlib.util.find_spec(name) is not None:
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return Packages(folder, tuple(versions))


def profile_for(*texts: bytes) -> str:
    """The profile that suits programs, tests and calls: the smallest with what they import."""
    text = b"\n".join(texts)  # one search through all: there may be thousands of calls
    if any(name in text for name in _WORDS) and find().folder:
        return "numpy"
    return "std" if b"import" in text else "core"
