"""Linux calls that the standard library lacks: mounts, prctl, capabilities. Raises OSError.

Used by the zygotes; imported before they fork, so it holds nothing but thin wrappers.
"""

from __future__ import annotations

import ctypes
import gc
import os
import struct
from _socket import CMSG_SPACE
from _socket import socket as Socket
from types import CodeType

from sandbox_service.lean import Iterable

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP = 0x02000000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38

_libc = ctypes.CDLL(None, use_errno=True)
_fork = ctypes.PyDLL(None, use_errno=True).fork  # keeps the interpreter's lock
for _function in (_libc.mmap, _libc.mremap):
    _function.restype = ctypes.c_void_p
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_PRIVATE, _MAP_ANONYMOUS, _MREMAP_TO, _MADV_COLLAPSE = 2, 0x20, 3, 25
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def unmount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_libc.umount2(target.encode(), flags), f"unmount {target}")


def pivot_root_here() -> None:
    """Makes the current folder the root and detaches the old root."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"pivot_root: no system call number for {os.uname().machine}")
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    unmount(".", MNT_DETACH)
    os.chdir("/")


def fork() -> int:
    """`os.fork` for a process that has no threads and needs none of what is done about them.

    That is locks made anew in the child, and in the parent a look at /proc for threads to warn of.
    Functions of `os.register_at_fork` are not called.
    """
    pid = int(_fork())
    _check(min(pid, 0), "fork")
    return pid


def cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, as clock_getcpuclockid(3) names it."""
    return (~pid << 3) | 2


def has_pidfd() -> bool:
    """Whether processes can be waited for by descriptor (Linux 5.3; not in every gVisor)."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def receive(control: Socket, max_fds: int, max_bytes: int = 4096) -> tuple[bytes, list[int]]:
    """One message of a socket and the descriptors that came with it; b"" at its end."""
    room = CMSG_SPACE(max_fds * 4)
    message, ancillary, _, _ = control.recvmsg(max_bytes, room)
    fds = [fd for _, _, data in ancillary for fd in memoryview(data).cast("i")]
    return message, fds


def make_immortal() -> None:
    """Ends reference counting for all objects that there are (PEP 683); call once, before forks.

    A forked child that only looks at such an object leaves its memory page shared; otherwise each
    look copies the page. The mark is taken from None, which the interpreter made immortal itself;
    nothing is done if this interpreter keeps counts in another form.
    """
    count_of = ctypes.c_uint32.from_address
    mark = count_of(id(None)).value
    if mark < 1 << 31:
        return
    todo = gc.get_objects()
    while todo:
        value = todo.pop()
        count = count_of(id(value))
        if count.value == mark or value is todo:
            continue
        count.value = mark
        todo += gc.get_referents(value)
        if type(value) is CodeType:  # the collector does not know what it holds
            todo += (value.co_consts, value.co_names)


def trim_heap() -> None:
    """Gives free memory of the heap back, so that forks need not copy its page tables (glibc)."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(ctypes.c_size_t(0))


def use_large_pages() -> None:
    """Moves the interpreter's code and constants into large pages (2 MiB on x86_64).

    Children map the pages of its file one by one as they use them, and unmap them at their end; a
    large page costs a fork one entry. As `node --use-largepages` does it: the copy takes the place
    of the original in one system call. Nothing is done where such pages cannot be had (no Linux
    6.1, no free memory of that size).
    """
    try:
        with open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") as file:
            large = int(file.read())
        start, end = _interpreter_constants()
    except (OSError, ValueError):
        return
    first = -(-start // large) * large
    size = (end - first) // large * large
    if size <= 0:
        return
    room = _libc.mmap(
        None,
        ctypes.c_size_t(size + large),
        _PROT_READ | _PROT_WRITE,
        _MAP_PRIVATE | _MAP_ANONYMOUS,
        -1,
        ctypes.c_long(0),
    )
    if room == ctypes.c_void_p(-1).value:
        return
    copy = -(-room // large) * large
    place, length = ctypes.c_void_p(copy), ctypes.c_size_t(size)
    ctypes.memmove(copy, first, size)
    is_moved = (
        _libc.madvise(place, length, _MADV_COLLAPSE) == 0
        and _libc.mprotect(place, length, _PROT_READ | _PROT_EXEC) == 0
        and _libc.mremap(place, length, length, _MREMAP_TO, ctypes.c_void_p(first)) == first
    )
    # Piece by piece: what was moved away may be another's by now.
    for low, high in ((room, copy), (copy, copy + size), (copy + size, room + size + large)):
        if high > low and not (is_moved and low == copy):
            _libc.munmap(ctypes.c_void_p(low), ctypes.c_size_t(high - low))


def _interpreter_constants() -> tuple[int, int]:
    """Where the code of the interpreter and what is beside it and never written are mapped."""
    code = ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value or 0
    start = end = 0
    name = b""
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            fields = line.split()
            low, high = (int(address, 16) for address in fields[0].split(b"-"))
            if low != end or fields[1][1:2] == b"w" or fields[-1] != name:
                if start <= code < end:
                    break
                start, name = low, fields[-1]
            end = high
    return start, end


def prctl(option: int, value: int) -> None:
    """prctl(2) with one integer argument."""
    zero = ctypes.c_ulong(0)
    _check(
        _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero),
        f"prctl({option})",
    )


def drop_capabilities() -> None:
    """Gives up every capability of this process, for good (bounding set included)."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the last capability that this kernel knows, or not allowed to
    number = _CAPSET.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"capset: no system call number for {os.uname().machine}")
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    empty = (ctypes.c_uint32 * 6)()
    _check(_libc.syscall(ctypes.c_long(number), header, empty), "capset")


def set_seccomp_filter(program: bytes) -> None:
    """Attaches BPF instructions (8 bytes each) as the filter of this process and its children."""

    class Fprog(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = Fprog(len(program) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    result = _libc.prctl(ctypes.c_int(PR_SET_SECCOMP), ctypes.c_ulong(2), ctypes.byref(fprog), 0, 0)
    _check(result, "seccomp")


# Landlock (landlock(7)): rights on files, by ABI version, and what else it can confine.
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # rights known to each version
_LIST, _READ = 0b1000, 0b1101  # read folders; and execute, read files
_FILE_ONLY = 0b1100000000000111  # the rights that a file can have
_SCOPE_VERSION, _SCOPES = 6, 0b11  # abstract sockets, signals


def landlock_rules(
    listable: Iterable[str], readable: Iterable[str], writable: Iterable[str]
) -> int:
    """A descriptor of Landlock rules: paths below which to list folders, to read, to do anything.

    Programs under these rules also cannot signal or connect to anything outside (version 6 on).
    Raises OSError where the kernel has no Landlock.
    """
    version = _libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_size_t(0), 1)
    if version < 1:
        _check(1, "landlock")
    rights = (1 << _FS_BITS.get(version, 16)) - 1
    scopes = _SCOPES if version >= _SCOPE_VERSION else 0
    attributes = struct.pack("<QQQ", rights, 0, scopes)[: 24 if scopes else 8]
    rules = _libc.syscall(
        ctypes.c_long(_LANDLOCK_CREATE), attributes, ctypes.c_size_t(len(attributes)), 0
    )
    _check(min(rules, 0), "landlock")
    for paths, wanted in ((listable, _LIST), (readable, _READ), (writable, rights)):
        for path in paths:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                allowed = wanted if os.path.isdir(path) else wanted & _FILE_ONLY
                rule = struct.pack("<Qi", allowed, fd)
                _check(
                    _libc.syscall(ctypes.c_long(_LANDLOCK_ADD), ctypes.c_int(rules), 1, rule, 0),
                    f"landlock rule for {path}",
                )
            finally:
                os.close(fd)
    return int(rules)


def landlock_restrict(rules: int) -> None:
    """Puts this process and its children under rules, for good."""
    _check(_libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ctypes.c_int(rules), 0), "landlock")
