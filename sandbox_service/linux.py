"""Linux calls that the standard library lacks: mounts, prctl, capabilities. Raises OSError.

Used by the zygotes; imported before they fork, so it holds nothing but thin wrappers.
"""

import ctypes
import os
import platform

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38

_libc = ctypes.CDLL(None, use_errno=True)
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
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(38, f"pivot_root: no system call number for {platform.machine()}")
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    unmount(".", MNT_DETACH)
    os.chdir("/")


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
    number = _CAPSET.get(platform.machine())
    if number is None:
        raise OSError(38, f"capset: no system call number for {platform.machine()}")
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
