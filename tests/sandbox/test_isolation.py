"""If a wall has a hole, a program reads the host's secrets, harms it, or pays itself.

Each probe tries one thing from inside and returns "held" if it could not. The same probes run on
every kind of host that can be had here: as root, as a plain user, and where namespaces are refused.
Probes are harmless where they succeed.
"""

import os
import platform
from collections.abc import Iterator

import pytest
from other_host import judge_there

_HEAD = """
import contextlib, ctypes, errno, mmap, os, resource, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
def refused(call, *numbers):
    ctypes.set_errno(0)
    result = call()
    if result != -1:
        return f"it worked: {result}"
    number = ctypes.get_errno()
    return "held" if number in (numbers or (errno.EPERM,)) else f"errno {number}"
def raises(function, *args):
    try:
        return f"it worked: {function(*args)!r}"
    except OSError:
        return "held"
def machine_code(text):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex(text))
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()
"""


def _refused_call(number: int, *errors: str) -> str:
    names = ", ".join(f"errno.{name}" for name in errors or ("EPERM",))
    return f"return refused(lambda: libc.syscall({number}, 0, 0, 0, 0, 0), {names})"


# name -> (body of a function, tiers); "" means every tier
PROBES = {
    "a network socket": ("import socket\n    return raises(socket.socket)", ""),
    "a packet socket": ("import socket\n    return raises(socket.socket, 17, 3, 0)", ""),
    "a new user namespace": ("return raises(os.unshare, 0x10000000)", ""),
    "a new mount namespace": ("return raises(os.unshare, 0x20000)", ""),
    "entering a namespace": ("return raises(os.setns, os.open('/proc/self/ns/net', 0))", "A C"),
    "mounting": ("return refused(lambda: libc.mount(b'x', b'/tmp', b'tmpfs', 0, None))", ""),
    "unmounting": ("return refused(lambda: libc.umount2(b'/tmp', 2))", ""),
    "chroot": ("return raises(os.chroot, '/tmp')", ""),
    "becoming root": ("return raises(os.setuid, 0)", ""),
    "tracing": ("return refused(lambda: libc.ptrace(0, 0, 0, 0))", ""),
    "System V memory": ("return refused(lambda: libc.shmget(1, 4096, 0o1600))", ""),
    "memory that no limit counts": ("return raises(os.memfd_create, 'x')", ""),
    "ending the parent": (
        # In a pid namespace its first process gets no signal of its children: nothing happens.
        "with contextlib.suppress(PermissionError):\n"
        "        os.kill(os.getppid(), signal.SIGKILL)\n"
        "    return 'held'",
        "",
    ),
    "signals to others": ("return raises(os.kill, os.getppid(), 0)", "A-root B"),
    "signals through a pidfd": (
        "return raises(lambda: signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0))",
        "A-root B",
    ),
    "limits of others": (
        "return raises(resource.prlimit, os.getppid(), resource.RLIMIT_NOFILE, (9, 9))",
        "A-root B",
    ),
    "new processes": ("return raises(os.fork)", "B"),
    "a signal to itself is not refused": (
        "hits = []\n"
        "    signal.signal(signal.SIGUSR1, lambda *_: hits.append(1))\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "    return 'held' if hits else 'it was refused'",
        "",
    ),
    "threads are not refused": (
        "import threading\n"
        "    done = []\n"
        "    thread = threading.Thread(target=done.append, args=(1,))\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "    return 'held' if done else 'no thread'",
        "",
    ),
    "processes of others": (
        "pids = [int(n) for n in os.listdir('/proc') if n.isdigit()]\n"
        "    return 'held' if set(pids) <= {1, os.getpid()} else str(pids)",
        "A C",
    ),
    "settings of the kernel": (
        "return raises(os.open, '/proc/sys/kernel/core_pattern', os.O_WRONLY)", ""
    ),
    "restarting the host": ("return raises(os.open, '/proc/sysrq-trigger', os.O_WRONLY)", ""),
    "memory of the kernel": ("return raises(open, '/proc/kcore', 'rb')", ""),
    "memory of the parent": ("return raises(open, f'/proc/{os.getppid()}/mem', 'rb')", "A B"),
    "the standard library": ("return raises(open, os.__file__, 'r+')", ""),
    "a file beside the interpreter": (
        "return raises(open, os.path.join(sys.base_prefix, 'left-behind'), 'w')", ""
    ),
    "files of the host": ("return raises(open, '/etc/passwd')", "A B"),
    "the root folder": ("return raises(open, '/left-behind', 'w')", ""),
    "a core dump": ("return 'held' if libc.prctl(3, 0, 0, 0, 0) != 1 else 'dumpable'", ""),
    "outliving the slot": (
        "number = ctypes.c_int()\n"
        "    libc.prctl(2, ctypes.byref(number), 0, 0, 0)\n"
        "    return 'held' if number.value == signal.SIGKILL else str(number.value)",
        "B",
    ),
    "privileges by exec": ("return 'held' if libc.prctl(39, 0, 0, 0, 0) == 1 else 'no'", ""),
    "capabilities": (
        "sets = (ctypes.c_uint32 * 6)()\n"
        "    result = libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), sets)\n"
        "    return 'held' if result == 0 and not any(sets) else str(list(sets))",
        "",
    ),
    "no filter": ("return 'held' if libc.prctl(21, 0, 0, 0, 0) == 2 else 'none'", ""),
    "sparing itself when memory runs out": (
        "def spare():\n"
        "        with open('/proc/self/oom_score_adj', 'w') as file:\n"
        "            file.write('-1000')\n"
        "    score = open('/proc/self/oom_score_adj').read().strip()\n"
        "    return raises(spare) if score == '1000' else score",
        "A-root C",
    ),
    "higher limits": (
        "names = ('NPROC', 'NOFILE', 'FSIZE', 'CORE', 'AS', 'CPU')\n"
        "    for name in names:\n"
        "        which = getattr(resource, 'RLIMIT_' + name)\n"
        "        hard = resource.getrlimit(which)[1]\n"
        "        if name == 'NPROC' and hard < 0:\n"
        "            continue\n"
        "        try:\n"
        "            resource.setrlimit(which, (hard + 1, hard + 1))\n"
        "        except (ValueError, OSError):\n"
        "            continue\n"
        "        return name\n"
        "    return 'held'",
        "",
    ),
    "a uid of others": ("return 'held' if os.getuid() >= 1 << 20 else 'no'", "A-root C"),
    "a lease on a file of all": (
        "import fcntl\n"
        "    file = os.open(os.__file__, os.O_RDONLY)\n"
        "    return refused(lambda: libc.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK))", ""
    ),
    "a watch on a folder of all": (
        "import fcntl\n"
        "    folder = os.open(os.path.dirname(os.__file__), os.O_RDONLY)\n"
        "    return refused(lambda: libc.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS))", ""
    ),
    "inotify": ("return refused(lambda: libc.inotify_init1(0))", ""),
    "pairs of network sockets": (
        "ends = (ctypes.c_int * 2)()\n"
        "    return refused(lambda: libc.socketpair(30, 1, 0, ends))", ""
    ),
    "pairs of unix sockets are not refused": (
        "import socket\n"
        "    a, b = socket.socketpair()\n"
        "    a.send(b'held')\n"
        "    return b.recv(9).decode()", ""
    ),
    "a core limit that lets the crash handler run": (
        "which = resource.RLIMIT_CORE\n"
        "    if resource.getrlimit(which) != (1, 1):\n"
        "        return str(resource.getrlimit(which))\n"
        "    limit = (ctypes.c_uint64 * 2)(0, 0)\n"
        "    calls = [lambda: libc.setrlimit(which, limit),\n"
        "             lambda: libc.prlimit(0, which, limit, None)]\n"
        "    if ctypes.sizeof(ctypes.c_long) == 8:  # a pointer whose lower half is 0\n"
        "        libc.mmap.restype = ctypes.c_void_p\n"
        "        place = ctypes.c_void_p(1 << 32)\n"
        "        libc.mmap(place, ctypes.c_size_t(4096), 3, 0x32, -1, ctypes.c_long(0))\n"
        "        calls.append(lambda: libc.prlimit(0, which, place, None))\n"
        "    answers = {refused(call) for call in calls}\n"
        "    return answers.pop() if len(answers) == 1 else str(answers)", ""
    ),
    "other limits are not refused": (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "    return 'held' if resource.getrlimit(resource.RLIMIT_FSIZE) == (4096, 4096) else 'no'",
        "",
    ),
    "memory by a device": ("return raises(open, '/dev/userfaultfd', 'rb')", ""),
    "clone3": (_refused_call(435, "ENOSYS"), ""),
    "io_uring": (_refused_call(425, "ENOSYS"), ""),
    "the new mount interface": (_refused_call(428), ""),
    "files of other processes": (_refused_call(438), ""),
}  # fmt: skip
if platform.machine() == "x86_64":
    PROBES |= {
        f"call {name}": (_refused_call(number), "")
        for name, number in {
            "keyctl": 250, "add_key": 248, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
            "process_vm_readv": 310, "kexec_load": 246, "open_by_handle_at": 304, "mq_open": 240,
            "reboot": 169, "init_module": 175, "personality": 135, "clock_settime": 227,
            "modify_ldt": 154, "sethostname": 170, "syslog": 103, "io_setup": 206,
        }.items()
    }  # fmt: skip
# What the kernel answers by ending the process.
KILLED = {
    "the 32-bit view": "return machine_code('b814000000cd80c3')",  # getpid by int 0x80
    "the x32 view": "return libc.syscall(0x40000000 | 39)",
}


def _cases(tier: str) -> Iterator[dict[str, object]]:
    for name, (body, tiers) in PROBES.items():
        if not tiers or any(tier.startswith(word) for word in tiers.split()):
            yield {"id": name, "program": f"{_HEAD}\ndef probe():\n    {body}\n", "want": "PASS"}
    if platform.machine() == "x86_64":
        for name, body in KILLED.items():
            yield {"id": name, "program": f"{_HEAD}\ndef probe():\n    {body}\n", "want": "CRASH"}


@pytest.mark.parametrize("tier", ["A-root", "A-user", "B", "C"])
def test_walls_hold(tier: str) -> None:
    """Every probe on every kind of host; one service each."""
    if os.getuid() != 0 and tier in ("A-root", "C"):
        pytest.skip("needs root")
    content = {"calls": ["probe()"], "expected": ["held"], "cases": list(_cases(tier))}
    done = judge_there(tier, content, "--min-tier", "C")
    if "no isolation tier" in done.stderr:
        pytest.skip(f"tier {tier} cannot be had here: {done.stderr.strip()}")
    wrong = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert done.returncode == 0, "\n".join(wrong) + done.stderr[-2000:]
