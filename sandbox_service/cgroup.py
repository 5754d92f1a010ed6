"""Control groups of slots: what all processes of a slot may use together, in memory and number.

Three drivers, chosen by trying: "v2", "v1" (memory and pids as hierarchies of their own) and
"none". A slot has one group for its whole life, because making one per run costs a run 0.4 ms.

All groups of a service lie in a folder that the service keeps locked. A folder that nobody holds is
what a killed service left, and the next one removes it (`folders.py`).
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from sandbox_service import folders

_PREFIX = "codea1-sandbox-"
_CONTROLLERS = ("memory", "pids")
_REMOVE_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class _Files:
    """Names of what we use in a folder of either version."""

    memory: str
    swap: str
    swap_is_sum: bool  # whether the swap limit counts memory too
    events: str


_V1 = _Files("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", True, "memory.oom_control")
_V2 = _Files("memory.max", "memory.swap.max", False, "memory.events")


class Group:
    """The group of one slot; `paths` are the folders that the slot joins before it runs."""

    def __init__(self, paths: list[str], files: _Files, max_processes: int) -> None:
        self.paths = paths
        self._files = files
        self._memory = next((p for p in paths if os.path.exists(os.path.join(p, files.memory))), "")
        self._limit = 1 << 63  # a new group has none
        self._events = -1
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                _write(os.path.join(path, "pids.max"), str(max_processes))
        if self._memory:
            events = os.path.join(self._memory, files.events)
            self._events = os.open(events, os.O_RDONLY | os.O_CLOEXEC)
        self._num_seen = self._read_oom_kills()

    def set_memory(self, num_bytes: int) -> None:
        """Limits memory, files in /tmp included; costs nothing if the limit stays the same."""
        if not self._memory or num_bytes == self._limit:
            return
        memory = os.path.join(self._memory, self._files.memory)
        swap = os.path.join(self._memory, self._files.swap)
        wanted = [(memory, num_bytes), (swap, num_bytes if self._files.swap_is_sum else 0)]
        if num_bytes > self._limit:  # memory and swap together never go below memory alone
            wanted.reverse()
        for path, value in wanted:
            with contextlib.suppress(FileNotFoundError):  # no swap accounting
                _write(path, str(value))
        self._limit = num_bytes

    def has_new_oom_kill(self) -> bool:
        """Whether the kernel killed a process of the group since the last call."""
        number = self._read_oom_kills()
        is_new = number > self._num_seen
        self._num_seen = number
        return is_new

    def _read_oom_kills(self) -> int:
        if self._events < 0:
            return 0
        for line in os.pread(self._events, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0

    def remove(self) -> bool:
        """Removes the folders; False while processes of the slot are still ending."""
        if self._events >= 0:
            os.close(self._events)
            self._events = -1
        return all([_remove(path) for path in self.paths])


class Groups:
    """All groups of a service. `version` is "v2", "v1" or "none"; `note` says why not."""

    def __init__(
        self, mounts: str = "/proc/self/mountinfo", own_groups: str = "/proc/self/cgroup"
    ) -> None:
        self.version = "none"
        self.note = ""
        self._locks: list[folders.Lock] = []
        self._files = _V1
        self._leaving: list[Group] = []
        self._left_parent = ""  # v2: the group that this process was in, if it had to move
        try:
            parents = _parents(mounts, own_groups)
            if "" in parents:
                self._open_v2(parents[""])
            elif parents:
                self._open_v1(parents)
            else:
                raise OSError("neither the memory nor the pids controller is here")
        except OSError as error:
            self.close()
            self.version = "none"
            self.note = f"no control groups: {error}"

    def _open_v1(self, parents: dict[str, str]) -> None:
        self.version, self._files = "v1", _V1
        for parent in parents.values():
            _sweep(parent)
            self._locks.append(folders.make_locked(parent, _PREFIX))
        self._try_out()

    def _open_v2(self, parent: str) -> None:
        self.version, self._files = "v2", _V2
        _sweep(parent)
        lock = folders.make_locked(parent, _PREFIX)
        self._locks.append(lock)
        enable = " ".join(f"+{name}" for name in _CONTROLLERS)
        if set(_CONTROLLERS) - set(_read(os.path.join(parent, "cgroup.subtree_control")).split()):
            # A group that hands controllers on may hold no process itself. Only this process is
            # moved: if there are others, the kernel says EBUSY and the driver is "none".
            leaf = os.path.join(lock.path, "supervisor")
            os.mkdir(leaf)
            _write(os.path.join(leaf, "cgroup.procs"), "0")
            self._left_parent = parent
            _write(os.path.join(parent, "cgroup.subtree_control"), enable)
        _write(os.path.join(lock.path, "cgroup.subtree_control"), enable)
        self._try_out()

    def _try_out(self) -> None:
        group = self.make("trial", 8)
        assert group is not None
        group.set_memory(1 << 30)
        group.remove()

    def make(self, name: str, max_processes: int) -> Group | None:
        """A group for a slot, empty and without a memory limit; None without control groups."""
        self.remove_left()
        if self.version == "none":
            return None
        paths = [os.path.join(lock.path, name) for lock in self._locks]
        for path in paths:
            os.mkdir(path)
        return Group(paths, self._files, max_processes)

    def leave(self, group: Group) -> None:
        """Removes a group whose slot is ending, now or when the last process is gone."""
        if not group.remove():
            self._leaving.append(group)

    def remove_left(self) -> None:
        """Tries again to remove groups that still had processes."""
        self._leaving = [group for group in self._leaving if not group.remove()]

    def close(self) -> None:
        """Removes everything; slots must have been ended."""
        if self._left_parent:  # back to where this process was, in the reverse order
            disable = " ".join(f"-{name}" for name in _CONTROLLERS)
            for path, file, text in (
                (self._locks[0].path, "cgroup.subtree_control", disable),
                (self._left_parent, "cgroup.subtree_control", disable),
                (self._left_parent, "cgroup.procs", "0"),
            ):
                with contextlib.suppress(OSError):
                    _write(os.path.join(path, file), text)
            self._left_parent = ""
        for lock in self._locks:
            _clear(lock.path)
            lock.release()
        self._locks = []


def _parents(mounts: str, own_groups: str) -> dict[str, str]:
    """Folders of this process's own groups: {"": path} for v2, {controller: path} for v1."""
    own: dict[str, str] = {}
    for line in _read(own_groups).splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    found: dict[str, str] = {}
    for line in _read(mounts).splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3], left.split()[4]
        kind, _, options = right.split()[:3]
        if kind == "cgroup2" and "" in own:
            path = _below(point, root, own[""])
            with contextlib.suppress(OSError):
                names = _read(os.path.join(path, "cgroup.controllers")).split()
                if set(_CONTROLLERS) <= set(names):
                    return {"": path}
        elif kind == "cgroup":
            for name in set(options.split(",")) & set(_CONTROLLERS) & own.keys():
                found.setdefault(name, _below(point, root, own[name]))
    return found


def _below(point: str, root: str, path: str) -> str:
    """Where a group lies under a mount that shows the hierarchy from `root` on."""
    if path.startswith("/..") or not (path + "/").startswith(root.rstrip("/") + "/"):
        return point  # another namespace's view: what is mounted is all that we may see
    inner = path[len(root.rstrip("/")) :].strip("/")
    return os.path.join(point, inner) if inner else point


def _sweep(parent: str) -> None:
    for lock in folders.abandoned(parent, _PREFIX):
        _clear(lock.path)
        lock.release()


def _clear(path: str) -> None:
    """Ends what still runs below a folder of groups and removes it."""
    deadline = time.monotonic() + _REMOVE_TIMEOUT_S
    while not _remove(path):
        with contextlib.suppress(OSError):
            inner = [entry.path for entry in os.scandir(path) if entry.is_dir()]
            for group in inner:
                if not _remove(group):
                    _kill_members(group)
        if time.monotonic() > deadline:
            return
        time.sleep(0.005)


def _kill_members(path: str) -> None:
    for pid in _read(os.path.join(path, "cgroup.procs")).split():
        if int(pid) != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _remove(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never makes a file
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from None
    finally:
        os.close(fd)
