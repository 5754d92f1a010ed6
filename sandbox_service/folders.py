"""Folders that belong to a living process: locked while it lives, swept by the next one after it.

A lock (flock) goes with its process however that ends, and unlike a process number it is never used
again by another.
"""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Lock:
    """A folder and the descriptor that holds its lock."""

    path: str
    fd: int

    def release(self) -> None:
        os.close(self.fd)


def make_locked(parent: str, prefix: str) -> Lock:
    """Makes a folder of a new name and locks it. Raises OSError if `parent` is not writable."""
    while True:
        path = os.path.join(parent, prefix + secrets.token_hex(6))
        os.mkdir(path, 0o711)
        if lock := _try_lock(path):
            return lock  # else a sweep came between and has taken it for abandoned


def abandoned(parent: str, prefix: str) -> Iterator[Lock]:
    """Folders that no living process holds, locked for whoever iterates; it releases them."""
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):
            if name.startswith(prefix) and (lock := _try_lock(os.path.join(parent, name))):
                yield lock


def _try_lock(path: str) -> Lock | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path, follow_symlinks=False).st_ino == os.fstat(fd).st_ino:
            return Lock(path, fd)
    except OSError:
        pass
    os.close(fd)
    return None
