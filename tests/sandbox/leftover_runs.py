"""Programs that leave something for the next run of their slot: `python leftover_runs.py [TIER]`.

Each runs in the only slot of a pool, and after it a program that looks around. Prints what that one
saw, by what had run before it ("" is before any), as a JSON object.
"""

import asyncio
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from pool_runs import run, started_pool

_HEAD = """
import contextlib, ctypes, os, resource, signal, socket, stat, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
here = os.getcwd()
"""
# What can be seen of a slot; anything that differs was left by somebody.
LOOK = """
def f():
    status = os.stat(here)
    pids = [name for name in os.listdir('/proc') if name.isdigit()]
    seen = {
        'folder': sorted(os.listdir(here)),
        'mode': stat.S_IMODE(status.st_mode),
        'owner': status.st_uid == os.getuid(),
        'time': abs(status.st_mtime - time.time()) < 3e8 or status.st_mtime == 0,
        'attributes': os.listxattr(here),
        'limits': [resource.getrlimit(n) for n in range(16) if n not in (0,)],
        'nice': os.getpriority(os.PRIO_PROCESS, 0),
        'processors': sorted(os.sched_getaffinity(0)),
        'umask': os.umask(0o22),
        'descriptors': [fd for fd in range(64) if _is_open(fd)],
        'signals': [str(signal.getsignal(n)) for n in range(1, 32)],
        'blocked': sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        'environment': dict(os.environ),
        'timers': [signal.getitimer(n)[0] > 9 for n in (0, 1)],
        'threads': threading.active_count(),
        'processes': len(pids) <= 2,
        'lock': _lock(),
    }
    # Usable as well: a slot that refuses the next program its files makes a wrong verdict.
    with open('file', 'w') as file:
        file.write('text')
    return repr(seen)

def _is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True

def _lock():
    import fcntl
    with open(os.__file__) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno
"""
LEAVE = {
    "rights of the folder": "os.chmod(here, 0o1000)",
    "a letter in the folder's times": "os.utime(here, (1, 1))",
    "a letter in the folder's attributes": "os.setxattr(here, 'user.letter', b'x' * 100)",
    "deep folders": (
        "for _ in range(300):\n        os.mkdir('d'); os.chdir('d')\n    os.chmod('.', 0)"
    ),
    "links to the outside": "os.symlink('/usr', 'usr'); os.symlink('/proc/1/root', 'root')",
    "a name of its own": "os.mkfifo('pipe'); os.link('pipe', 'other')",
    "a bound socket": (
        "a, b = socket.socketpair()\n    a.bind('\\0name')\n"
        "    c, d = socket.socketpair()\n    c.bind('name')"
    ),
    "a daemon": (
        "if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        "            for fd in range(64):\n"
        "                with contextlib.suppress(OSError): os.close(fd)\n"
        "            while True: time.sleep(1)\n        os._exit(0)"
    ),
    "a stopped process": (
        "pid = os.fork()\n    os.kill(pid, signal.SIGSTOP) if pid else time.sleep(9)"
    ),
    "a lock on a file of all": (
        "import fcntl\n    fcntl.flock(os.open(os.__file__, 0), fcntl.LOCK_SH)\n    os.fork()"
    ),
    "limits of everybody": (
        "for n in (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CPU):\n"
        "        with contextlib.suppress(OSError):\n"
        "            resource.prlimit(1, n, (9, resource.getrlimit(n)[1]))"
    ),
    "priority of everybody": (
        "for which, who in ((os.PRIO_USER, 0), (os.PRIO_PROCESS, 1), (os.PRIO_PGRP, 1)):\n"
        "        with contextlib.suppress(OSError): os.setpriority(which, who, 19)"
    ),
    "processors of everybody": "os.sched_setaffinity(1, {0})",
    "shared memory": (
        "import mmap\n    mmap.mmap(-1, 1 << 20).write(b'x' * (1 << 20))\n    os.fork()"
    ),
    "a timer of wall clock": "signal.setitimer(signal.ITIMER_REAL, 100)",
    "signals to the whole session": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    os.killpg(os.getpgid(1), signal.SIGTERM)"
    ),
    "memory of the first process": "open('/proc/1/mem', 'r+b').write(b'x')",
    "a dead thread": "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "an oom score": "open('/proc/1/oom_score_adj', 'w').write('-1000')",
    "environment of the harness": (
        "os.environ['LEFT'] = '1'; sys.path.insert(0, '/tmp'); os.umask(0)"
    ),
    "a crash": "ctypes.string_at(0)",
    "its own group stopped": "os.killpg(0, signal.SIGSTOP)",
}


async def look_after_each(tier: str) -> dict[str, str]:
    """Status and value of the look, by what ran before it."""
    seen = {}
    async with started_pool(1, tier) as pool:
        for name, body in {"": "pass", **LEAVE}.items():
            leave = f"{_HEAD}\ndef f():\n    {body}\n    return 'left'\n"
            first = await run(pool, leave, "f()", cpu_s=0.6, wall_s=0.6)
            look = await run(pool, _HEAD + LOOK, "f()")
            outcome = look.outcomes[0]
            seen[name] = (
                f"{outcome.status.name} {outcome.error_type} {outcome.message} {outcome.value!r}"
            )
            print(name, first.status.name, first.outcomes[0].error_type, file=sys.stderr)
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(look_after_each(*sys.argv[1:] or [""]))))
