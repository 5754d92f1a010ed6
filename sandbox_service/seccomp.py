"""The system-call filter of a slot: a denylist as raw BPF, needing no libseccomp.

memfd_create is on the list because its files are memory that no limit of a process counts. Denied
calls fail with EPERM at once, so a program that opens a socket gets an exception and not a
time-out. clone3 and io_uring say ENOSYS, which makes libraries fall back to what the filter can
see. mount and umount2 stay open: the slot itself needs them, and its children lack the capability.

Some calls are refused by an argument: leases and watches on files that all programs share (a lease
makes whoever replaces the interpreter wait, a watch tells what others import), pairs of sockets of
other families (they load kernel modules), limits of others (those of the slot, where it has the
program's uid), and another limit of core files than the slot's: the 1 of the slot keeps the host's
crash handler away, 0 would not (core(5)).
"""

from __future__ import annotations

import os
import struct

_EPERM, _ENOSYS = 1, 38
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARG0, _ARG1, _ARG2 = 0, 4, 16, 24, 32
_AF_UNIX, _RLIMIT_CORE, _F_SETLEASE, _F_NOTIFY = 1, 4, 1024, 1026
# NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWNS
_CLONE_NEW = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x20000

_COMMON = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}
_COMMON_DENIED = (
    428,  # open_tree
    429,  # move_mount
    430,  # fsopen
    431,  # fsconfig
    432,  # fsmount
    433,  # fspick
    438,  # pidfd_getfd
    440,  # process_madvise
    442,  # mount_setattr
    443,  # quotactl_fd
    447,  # memfd_secret
    467,  # open_tree_attr
)

_X86_64 = {
    "socket": 41, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311,
    "unshare": 272, "setns": 308, "pivot_root": 155, "chroot": 161, "keyctl": 250,
    "add_key": 248, "request_key": 249, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
    "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "personality": 135,
    "clock_settime": 227, "clock_adjtime": 305, "settimeofday": 164, "adjtimex": 159,
    "reboot": 169, "kexec_load": 246, "kexec_file_load": 320, "init_module": 175,
    "finit_module": 313, "delete_module": 176, "open_by_handle_at": 304,
    "name_to_handle_at": 303, "quotactl": 179, "swapon": 167, "swapoff": 168, "sethostname": 170,
    "setdomainname": 171, "acct": 163, "syslog": 103, "kcmp": 312, "fanotify_init": 300,
    "memfd_create": 319, "iopl": 172, "ioperm": 173, "vhangup": 153, "modify_ldt": 154,
    "lookup_dcookie": 212, "nfsservctl": 180, "uselib": 134, "_sysctl": 156, "create_module": 174,
    "query_module": 178, "io_setup": 206, "migrate_pages": 256, "move_pages": 279,
    "inotify_init": 253, "inotify_init1": 294,
}  # fmt: skip
_AARCH64 = {
    "socket": 198, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271,
    "unshare": 97, "setns": 268, "pivot_root": 41, "chroot": 51, "keyctl": 219, "add_key": 217,
    "request_key": 218, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "shmget": 194,
    "semget": 190, "msgget": 186, "mq_open": 180, "personality": 92, "clock_settime": 112,
    "clock_adjtime": 266, "settimeofday": 170, "adjtimex": 171, "reboot": 142,
    "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273,
    "delete_module": 106, "open_by_handle_at": 265, "name_to_handle_at": 264, "quotactl": 60,
    "swapon": 224, "swapoff": 225, "sethostname": 161, "setdomainname": 162, "acct": 89,
    "syslog": 116, "memfd_create": 279, "kcmp": 272, "fanotify_init": 262, "vhangup": 58,
    "lookup_dcookie": 18, "nfsservctl": 42, "io_setup": 0, "migrate_pages": 238, "move_pages": 239,
    "inotify_init1": 26,
}  # fmt: skip
_CLONE_THREAD = 0x10000


class _Machine:
    """Numbers of one architecture: fork and vfork, and calls whose first argument is a process."""

    def __init__(
        self,
        audit: int,
        clone: int,
        denied: dict[str, int],
        forks: tuple[int, ...],
        aimed: tuple[int, ...],  # kill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, prlimit64
        tkill: int,
        shaped: tuple[int, int, int, int],  # fcntl, setrlimit, prlimit64, socketpair
    ) -> None:
        self.audit, self.clone, self.denied = audit, clone, denied
        self.forks, self.aimed, self.tkill, self.shaped = forks, aimed, tkill, shaped


_MACHINES = {
    "x86_64": _Machine(
        0xC000003E, 56, _X86_64, (57, 58), (62, 234, 129, 297, 302), 200, (72, 160, 302, 53)
    ),
    "aarch64": _Machine(
        0xC00000B7, 220, _AARCH64, (), (129, 131, 138, 240, 261), 130, (25, 164, 261, 199)
    ),
}
_PIDFD_SEND_SIGNAL = 424


def denylist() -> bytes:
    """BPF instructions of the base filter for this machine; b"" where it has no table."""
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        return b""
    code = [
        _instruction(_LOAD, 0, 0, _ARCH),
        _instruction(_JUMP_EQ, 1, 0, machine.audit),
        _instruction(_RETURN, 0, 0, _KILL),  # the 32-bit view of this machine
        _instruction(_LOAD, 0, 0, _NR),
        _instruction(_JUMP_GE, 0, 1, 0x40000000),
        _instruction(_RETURN, 0, 0, _KILL),  # the x32 view
    ]
    for number in _COMMON.values():
        code += _answer(number, _ERRNO | _ENOSYS)
    for number in (*_COMMON_DENIED, *machine.denied.values()):
        code += _answer(number, _ERRNO | _EPERM)
    fcntl, setrlimit, prlimit, socketpair = machine.shaped
    code += _answer_argument(fcntl, _ARG1, _F_SETLEASE)
    code += _answer_argument(fcntl, _ARG1, _F_NOTIFY)
    code += _answer_argument(setrlimit, _ARG0, _RLIMIT_CORE)
    code += _answer_argument(prlimit, _ARG0, 0, is_other=True)
    code += [  # with a new limit; to ask for the old one is allowed
        _instruction(_JUMP_EQ, 0, 8, prlimit),
        _instruction(_LOAD, 0, 0, _ARG1),
        _instruction(_JUMP_EQ, 0, 5, _RLIMIT_CORE),
        _instruction(_LOAD, 0, 0, _ARG2),
        _instruction(_JUMP_EQ, 0, 2, 0),
        _instruction(_LOAD, 0, 0, _ARG2 + 4),
        _instruction(_JUMP_EQ, 1, 0, 0),
        _instruction(_RETURN, 0, 0, _ERRNO | _EPERM),
        _instruction(_LOAD, 0, 0, _NR),
    ]
    code += _answer_argument(socketpair, _ARG0, _AF_UNIX, is_other=True)
    code += [
        _instruction(_JUMP_EQ, 0, 3, machine.clone),
        _instruction(_LOAD, 0, 0, _ARG0),
        _instruction(_JUMP_SET, 0, 1, _CLONE_NEW),
        _instruction(_RETURN, 0, 0, _ERRNO | _EPERM),
        _instruction(_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(code)


def alone(pid: int) -> bytes:
    """A second filter for the child `pid` without a pid namespace: it is to be alone.

    It may start threads but no processes, and may signal or limit itself but nobody else (0 is
    itself and its process group, which it has for itself).
    """
    machine = _MACHINES.get(os.uname().machine)
    if machine is None:
        return b""
    code = [_instruction(_LOAD, 0, 0, _NR)]
    for number in (*machine.forks, machine.tkill, _PIDFD_SEND_SIGNAL):
        code += _answer(number, _ERRNO | _EPERM)
    for number in machine.aimed:
        code += [
            _instruction(_JUMP_EQ, 0, 5, number),
            _instruction(_LOAD, 0, 0, _ARG0),
            _instruction(_JUMP_EQ, 2, 0, pid),
            _instruction(_JUMP_EQ, 1, 0, 0),
            _instruction(_RETURN, 0, 0, _ERRNO | _EPERM),
            _instruction(_RETURN, 0, 0, _ALLOW),
        ]
    code += [
        _instruction(_JUMP_EQ, 0, 3, machine.clone),
        _instruction(_LOAD, 0, 0, _ARG0),
        _instruction(_JUMP_SET, 1, 0, _CLONE_THREAD),
        _instruction(_RETURN, 0, 0, _ERRNO | _EPERM),
        _instruction(_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(code)


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _answer(number: int, result: int) -> list[bytes]:
    return [_instruction(_JUMP_EQ, 0, 1, number), _instruction(_RETURN, 0, 0, result)]


def _answer_argument(number: int, where: int, value: int, *, is_other: bool = False) -> list[bytes]:
    """Refuses a call if an argument is `value`, or with `is_other` if it is not."""
    return [
        _instruction(_JUMP_EQ, 0, 4, number),
        _instruction(_LOAD, 0, 0, where),
        _instruction(_JUMP_EQ, int(is_other), int(not is_other), value),
        _instruction(_RETURN, 0, 0, _ERRNO | _EPERM),
        _instruction(_LOAD, 0, 0, _NR),
    ]
