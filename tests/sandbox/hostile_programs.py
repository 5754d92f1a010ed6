"""Hostile and accident-prone programs with the verdicts that are right, in families.

Each program should define `add(a, b)`; it is called as add(1, 2), add(-1, 1), add(0, 0) and must
return 3, 0, 0. What matters most: a wrong program is never PASS, a right one always is.
"""

FORGERY = {
    "exit in a call": ("import os\ndef add(a, b):\n    os._exit(0)\n", "NO_RESULT"),
    "exec of true": (
        "import os\ndef add(a, b):\n    os.execv('/bin/true', ['true'])\n",
        "NO_RESULT|ERROR",
    ),
    "forged records on every descriptor": (
        "import os, struct\n"
        "def add(a, b):\n"
        "    for fd in range(64):\n"
        "        try: os.write(fd, struct.pack('<8sBIQI', b'x' * 8, 2, 0, 0, 3) + b'i\\x01\\x03')\n"
        "        except OSError: pass\n"
        "    return 0\n",
        "NO_RESULT|FAIL",
    ),
    "forged records with the right tag and absurd lengths": (
        "import os, struct, sys\n"
        "def add(a, b):\n"
        "    f = sys._getframe()\n"
        "    while f:\n"
        "        for v in f.f_locals.values():\n"
        "            tag = getattr(v, 'nonce', None)\n"
        "            if type(tag) is bytes:\n"
        "                os.write(v.fd, struct.pack('<8sBIQI', tag, 2, 0, 0, 0xffffffff))\n"
        "                os.write(v.fd, struct.pack('<8sBIQI', tag, 7, 0, 0, 0))\n"
        "                os._exit(0)\n"
        "        f = f.f_back\n"
        "    return 0\n",
        "NO_RESULT",
    ),
    "end record twice and more outcomes than calls": (
        "import os, struct, sys\n"
        "f = sys._getframe()\n"
        "while f:\n"
        "    for v in list(f.f_locals.values()):\n"
        "        tag = getattr(v, 'nonce', None)\n"
        "        if type(tag) is bytes:\n"
        "            head = lambda *x: struct.pack('<8sBIQI', tag, *x)\n"
        "            r = lambda k, i, b: os.write(v.fd, head(k, i, 0, len(b)) + b)\n"
        "            r(1, 0, b'')\n"
        "            for i in range(9): r(2, i, b'i\\x01\\x03')\n"
        "            r(7, 0, b''); r(7, 0, b''); os._exit(0)\n"
        "    f = f.f_back\n",
        "NO_RESULT|ERROR",
    ),
    "all descriptors closed": (
        "import os\ndef add(a, b):\n    os.closerange(0, 64)\n    return a + b\n",
        "NO_RESULT|ERROR",
    ),
    "string subclass that lies": (
        "class S(str):\n"
        "    def __eq__(self, o): return True\n"
        "    __hash__ = str.__hash__\n"
        "def add(a, b):\n    return S('x')\n",
        "FAIL",
    ),
    "metaclass that lies": (
        "class M(type):\n"
        "    def __eq__(self, o): return True\n"
        "    def __hash__(self): return 0\n"
        "    def __instancecheck__(self, o): return True\n"
        "    def __subclasscheck__(self, o): return True\n"
        "class X(metaclass=M):\n    pass\n"
        "def add(a, b):\n    return X()\n",
        "FAIL",
    ),
    "list whose iterator never ends": (
        "class L(list):\n"
        "    def __iter__(self):\n        while True: yield 1\n"
        "    def __len__(self): return 10 ** 18\n"
        "def add(a, b):\n    return L([9])\n",
        "FAIL",
    ),
    "patched os and struct": (
        "import os, struct, time, marshal\n"
        "os.write = lambda *a: 10 ** 9\n"
        "struct.Struct = struct.pack = None\n"
        "marshal.dumps = marshal.loads = None\n"
        "time.process_time_ns = None\n"
        "def add(a, b):\n    return 7\n",
        "FAIL",
    ),
    "patched modules, right answer": (
        "import builtins, os, sys\n"
        "builtins.print = builtins.len = builtins.type = builtins.str = None\n"
        "os.write = os._exit = sys.stdout = None\n"
        "def add(a, b):\n    return a + b\n",
        "PASS",
    ),
    "profile hook that raises": (
        "import sys\n"
        "def hook(*a):\n    raise RuntimeError\n"
        "def add(a, b):\n    sys.setprofile(hook)\n    return a + b\n",
        "ERROR|PASS",
    ),
    "lists in all frames emptied": (
        "import sys\n"
        "def add(a, b):\n"
        "    f = sys._getframe(1)\n"
        "    while f:\n"
        "        for v in f.f_locals.values():\n"
        "            if type(v) in (list, dict, set) and '__name__' not in v: v.clear()\n"
        "        f = f.f_back\n"
        "    return a + b\n",
        "PASS|NO_RESULT",
    ),
    "fork and both return": (
        "import os\ndef add(a, b):\n    os.fork()\n    return a + b\n",
        "PASS",
    ),
    "fork, the child claims another value": (
        "import os, time\n"
        "def add(a, b):\n"
        "    if os.fork(): time.sleep(0.1); return a + b\n"
        "    return 99\n",
        "PASS",
    ),
}

SECRETS = {
    "read the host's files": (
        "def add(a, b):\n    return open('/etc/shadow').read()\n",
        "ERROR",
    ),
    "read the other end of the memory": (
        "def add(a, b):\n    return open('/proc/1/mem', 'rb').read(1)\n",
        "ERROR",
    ),
    "parent's descriptors": (
        "import os\ndef add(a, b):\n    return len(os.listdir('/proc/1/fd'))\n",
        "ERROR|FAIL",
    ),
    "more than the five descriptors": (
        "import os\n"
        "def add(a, b):\n"
        "    open_fds = 0\n"
        "    for fd in range(4, 256):\n"
        "        try: os.fstat(fd); open_fds += 1\n"
        "        except OSError: pass\n"
        "    return a + b if open_fds == 0 else -1\n",
        "PASS",
    ),
}

EXHAUSTION = {
    "one huge allocation": ("def add(a, b):\n    return [0] * 10 ** 11\n", "ERROR"),
    "endless printing": (
        "def add(a, b):\n    while True: print('z' * 10000)\n",
        "OUTPUT_LIMIT",
    ),
    "endless writing to the result pipe": (
        "import os\ndef add(a, b):\n    while True: os.write(3, b'z' * 65536)\n",
        "OUTPUT_LIMIT",
    ),
    "list that holds itself": (
        "def add(a, b):\n    x = []\n    x.append(x)\n    return x\n",
        "OUTPUT_LIMIT|FAIL|ERROR",
    ),
    "deep list": (
        "def add(a, b):\n    x = []\n    for _ in range(10 ** 5): x = [x]\n    return x\n",
        "OUTPUT_LIMIT|FAIL|ERROR",
    ),
    "shared parts blow up": (
        "def add(a, b):\n    x = [0]\n    for _ in range(60): x = [x, x]\n    return x\n",
        "OUTPUT_LIMIT",
    ),
    "huge string": ("def add(a, b):\n    return 'x' * (50 << 20)\n", "OUTPUT_LIMIT"),
    "huge integer": ("def add(a, b):\n    return 1 << (1 << 28)\n", "OUTPUT_LIMIT"),
    "huge message": ("def add(a, b):\n    raise ValueError('x' * (50 << 20))\n", "ERROR"),
    "one huge file": (
        "def add(a, b):\n"
        "    with open('/tmp/big', 'wb') as f:\n"
        "        f.truncate(1 << 40)\n"
        "    return a + b\n",
        "ERROR",
    ),
    "all descriptors used": (
        "def add(a, b):\n    x = [open('/dev/null') for _ in range(5000)]\n    return a + b\n",
        "ERROR",
    ),
    "stack of C": (
        "import sys, functools\n"
        "sys.setrecursionlimit(10 ** 8)\n"
        "def add(a, b):\n"
        "    x = []\n"
        "    for _ in range(10 ** 6): x = [x]\n"
        "    return len(repr(x))\n",
        "CRASH|ERROR|TIMEOUT",
    ),
    "null pointer": ("import ctypes\ndef add(a, b):\n    return ctypes.string_at(0)\n", "CRASH"),
    "kill itself": (
        "import os\ndef add(a, b):\n    os.kill(os.getpid(), 9)\n",
        "CRASH|MEMORY",
    ),
}

TIME = {
    "count in C": ("def add(a, b):\n    return sum(range(10 ** 12))\n", "TIMEOUT"),
    "exception swallowed for ever": (
        "def add(a, b):\n"
        "    while True:\n"
        "        try:\n            while True: pass\n"
        "        except BaseException: pass\n",
        "TIMEOUT",
    ),
    "time signals ignored": (
        "import signal\n"
        "def add(a, b):\n"
        "    for s in (signal.SIGPROF, signal.SIGXCPU, signal.SIGVTALRM, signal.SIGALRM):\n"
        "        signal.signal(s, signal.SIG_IGN)\n"
        "    while True: pass\n",
        "TIMEOUT",
    ),
    "time used by a child process": (
        "import os\n"
        "def add(a, b):\n"
        "    if os.fork() == 0:\n        while True: pass\n"
        "    os.wait()\n",
        "TIMEOUT",
    ),
    "hangs while its message is made": (
        "class E(Exception):\n"
        "    def __str__(self):\n        while True: pass\n"
        "def add(a, b):\n    raise E\n",
        "TIMEOUT",
    ),
    "hangs in a destructor": (
        "class D:\n"
        "    def __del__(self):\n        while True: pass\n"
        "def add(a, b):\n    D()\n    return a + b\n",
        "TIMEOUT",
    ),
    "a thread spins on after the answer": (
        "import threading\n"
        "def spin():\n    while True: pass\n"
        "def add(a, b):\n"
        "    if threading.active_count() < 2: threading.Thread(target=spin).start()\n"
        "    return a + b\n",
        "PASS|TIMEOUT",
    ),
}

HOST = {
    "unix socket": (
        "import socket\n"
        "def add(a, b):\n    socket.socket(socket.AF_UNIX).bind('\\0x')\n    return a + b\n",
        "ERROR",
    ),
    "datagram": (
        "import socket\n"
        "def add(a, b):\n"
        "    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))\n"
        "    return a + b\n",
        "ERROR",
    ),
    "kill everyone": (
        "import os\n"
        "def add(a, b):\n"
        "    for pid in (1, os.getppid()): os.kill(pid, 9)\n"
        "    return a + b\n",
        "ERROR|PASS",  # refused, or without effect
    ),
    "device file": (
        "import os, stat\n"
        "def add(a, b):\n"
        "    os.mknod('/tmp/mem', 0o600 | stat.S_IFCHR, os.makedev(1, 1))\n"
        "    return a + b\n",
        "ERROR",
    ),
    "become root again": (
        "import os\ndef add(a, b):\n    os.setuid(0)\n    return a + b\n",
        "ERROR",
    ),
    "shared memory of System V": (
        "import ctypes\n"
        "def add(a, b):\n"
        "    if ctypes.CDLL(None).shmget(1234, 4096, 0o1666) >= 0: return a + b\n"
        "    raise OSError\n",
        "ERROR",
    ),
    "higher priority": ("import os\ndef add(a, b):\n    os.nice(-5)\n    return a + b\n", "ERROR"),
    "chroot": ("import os\ndef add(a, b):\n    os.chroot('/tmp')\n    return a + b\n", "ERROR"),
    "library file": (
        "import os\ndef add(a, b):\n    open(os.__file__, 'a').close()\n    return a + b\n",
        "ERROR",
    ),
}

ACCIDENTS = {
    "empty program": ("", "ERROR"),
    "raw NUL": ("x = 1\0\ndef add(a, b):\n    return a + b\n", "ERROR"),
    "lone surrogate": ("x = '\udc80'\ndef add(a, b):\n    return a + b\n", "ERROR"),
    "coroutine": ("async def add(a, b):\n    return a + b\n", "FAIL"),
    "wrong signature": ("def add(a):\n    return a\n", "ERROR"),
    "recursion limit of its own": (
        "import sys\n"
        "sys.setrecursionlimit(50000)\n"
        "def deep(n):\n    return 0 if n == 0 else 1 + deep(n - 1)\n"
        "def add(a, b):\n    return a + b + deep(20000) - 20000\n",
        "PASS",
    ),
    "right answer as a subclass": (
        "import enum\n"
        "class E(enum.IntEnum):\n    ZERO = 0\n    THREE = 3\n"
        "def add(a, b):\n    return E(a + b)\n",
        "PASS",
    ),
    "dataclass and typing": (
        "from dataclasses import dataclass\n"
        "from typing import List, Optional\n"
        "@dataclass\nclass Pair:\n    a: int\n    b: Optional[int] = None\n"
        "def add(a: int, b: int) -> int:\n    p = Pair(a, b)\n    return p.a + p.b\n",
        "PASS",
    ),
    "pickle of its own class": (
        "import pickle\n"
        "class P:\n    def __init__(self, v): self.v = v\n"
        "def add(a, b):\n    return pickle.loads(pickle.dumps(P(a + b))).v\n",
        "PASS",
    ),
    "thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def add(a, b):\n"
        "    with ThreadPoolExecutor(4) as pool:\n"
        "        return sum(pool.map(int, [a, b]))\n",
        "PASS",
    ),
    "event loop": (
        "import asyncio\n"
        "async def work(a, b):\n    await asyncio.sleep(0)\n    return a + b\n"
        "def add(a, b):\n    return asyncio.run(work(a, b))\n",
        "PASS",
    ),
    "files of its own": (
        "import os, tempfile\n"
        "def add(a, b):\n"
        "    with tempfile.TemporaryDirectory() as d:\n"
        "        with open(os.path.join(d, 'x'), 'w') as f: f.write(str(a + b))\n"
        "        with open(os.path.join(d, 'x')) as f: return int(f.read())\n",
        "PASS",
    ),
    "decimal answer": (
        "from decimal import Decimal\ndef add(a, b):\n    return Decimal(a) + Decimal(b)\n",
        "PASS",
    ),
    "star imports": (
        "from math import *\nfrom typing import *\nfrom collections import *\n"
        "def add(a, b):\n    return int(fsum([a, b]))\n",
        "PASS",
    ),
    "quits": ("def add(a, b):\n    quit()\n", "ERROR"),
    "true for one": ("def add(a, b):\n    return a + b if a != 1 else True\n", "FAIL"),
    "deletes itself": (
        "def add(a, b):\n    global add\n    del add\n    return a + b\n",
        "ERROR",
    ),
}

# Tried only where every run is caged whole (tier A).
TRICKS = {
    "forges when it ends": (
        "import atexit, os, weakref\n"
        "class D:\n    def __del__(self, w=os.write): w(3, b'x' * 25)\n"
        "d = D()\n"
        "atexit.register(os.write, 3, b'y' * 25)\n"
        "weakref.finalize(d, os.write, 3, b'z' * 25)\n"
        "def add(a, b):\n    return 0 if a else 9\n",
        "FAIL",
    ),
    "a thread writes over the answers": (
        "import os, threading\n"
        "def write():\n    while True: os.write(3, b'\\0' * 25)\n"
        "def add(a, b):\n"
        "    threading.Thread(target=write, daemon=True).start()\n"
        "    for _ in range(10 ** 6): pass\n"
        "    return 9\n",
        "NO_RESULT|FAIL|OUTPUT_LIMIT|CRASH",
    ),
    "the parent leaves, its child answers": (
        "import os\ndef add(a, b):\n    if os.fork(): os._exit(0)\n    return a + b\n",
        "NO_RESULT",
    ),
    "a child claims first, with the right tag": (
        "import os, struct, sys\n"
        "def add(a, b):\n"
        "    f = sys._getframe()\n"
        "    while f:\n"
        "        for v in list(f.f_locals.values()):\n"
        "            if type(getattr(v, 'nonce', None)) is bytes and os.fork() == 0:\n"
        "                for i in range(3):\n"
        "                    value = b'i\\x01' + bytes([3 if i == 0 else 0])\n"
        "                    os.write(v.fd, struct.pack('<8sBIQI', v.nonce, 2, i, 0, 3) + value)\n"
        "                os.write(v.fd, struct.pack('<8sBIQI', v.nonce, 7, 0, 0, 0))\n"
        "                os._exit(0)\n"
        "        f = f.f_back\n"
        "    os.wait()\n"
        "    return 9\n",
        "NO_RESULT|FAIL",
    ),
    "its whole group stopped": (
        "import os, signal\ndef add(a, b):\n    os.killpg(0, signal.SIGSTOP)\n    return a + b\n",
        "TIMEOUT",
    ),
    "audit hook that leaves": (
        "import os, sys\n"
        "def hook(*a, e=os._exit):\n    e(0)\n"
        "def add(a, b):\n    sys.addaudithook(hook)\n    return a + b\n",
        "NO_RESULT|PASS",
    ),
    "collector's callback that lies": (
        "import gc, os\n"
        "gc.set_threshold(1)\n"
        "gc.callbacks.append(lambda *a: os.write(3, b'x' * 25))\n"
        "def add(a, b):\n    gc.collect()\n    return 9\n",
        "NO_RESULT|FAIL",
    ),
    "representation that lies": (
        "class R:\n"
        "    def __repr__(self): return '3'\n"
        "    __str__ = __format__ = __repr__\n"
        "    def __int__(self): return 3\n"
        "    __index__ = __hash__ = __int__\n"
        "    def __eq__(self, o): return True\n"
        "    __class__ = int\n"
        "def add(a, b):\n    return R()\n",
        "FAIL",
    ),
    "number whose parts lie": (
        "class I(int):\n"
        "    def bit_length(self): return 2\n"
        "    def to_bytes(self, *a, **k): return b'\\x03'\n"
        "    def __eq__(self, o): return True\n"
        "    def __hash__(self): return 3\n"
        "def add(a, b):\n    return I(77)\n",
        "FAIL",
    ),
    "the digits of a number overwritten": (
        "import ctypes\n"
        "def add(a, b):\n"
        "    ctypes.c_uint32.from_address(id(77) + 24).value = 3\n"
        "    return 77\n",
        "FAIL|CRASH|NO_RESULT|ERROR",
    ),
    "its own memory overwritten": (
        "def add(a, b):\n"
        "    with open('/proc/self/mem', 'r+b', buffering=0) as memory:\n"
        "        memory.seek(id(type(a)) + 24)\n"
        "        memory.write(b'\\xff' * 8)\n"
        "    return 77\n",
        "FAIL|CRASH|NO_RESULT|ERROR",
    ),
    "modules that the codec wants replaced, right answer": (
        "import sys\n"
        "for name in ('datetime', 'decimal', 'fractions', 'numpy', 'math', 'typing'):\n"
        "    sys.modules[name] = type('Liar', (), {'__getattr__': lambda s, n: 1 / 0})()\n"
        "def add(a, b):\n    return a + b\n",
        "PASS",
    ),
    "import hook that leaves": (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, *a): os._exit(0)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "def add(a, b):\n    return a + b\n",
        "PASS|NO_RESULT",
    ),
    "exception whose class lies": (
        "class M(type):\n"
        "    __name__ = property(lambda s: 1 / 0)\n"
        "    def __str__(s): return 1\n"
        "class E(Exception, metaclass=M):\n"
        "    __class__ = property(lambda s: 1 / 0)\n"
        "    def with_traceback(self, t): raise SystemExit(0)\n"
        "    def __str__(self): raise SystemExit(0)\n"
        "def add(a, b):\n    raise E\n",
        "ERROR",
    ),
    "generator that hangs when it is dropped": (
        "def g():\n    try: yield 1\n    finally:\n        while True: pass\n"
        "def add(a, b):\n    x = g()\n    next(x)\n    return x\n",
        "TIMEOUT",
    ),
    "deep recursion in C": (
        "import itertools\n"
        "def add(a, b):\n"
        "    x = iter([1])\n"
        "    for _ in range(10 ** 6): x = itertools.chain(x)\n"
        "    return next(x) + a + b - 1\n",
        "CRASH|ERROR|PASS|MEMORY|TIMEOUT",
    ),
    "regular expression that never ends": (
        "import re\ndef add(a, b):\n    return len(re.findall('(a+)+b', 'a' * 60)) + a + b\n",
        "TIMEOUT",
    ),
    "huge arguments and environment": (
        "import os\n"
        "def add(a, b):\n"
        "    environment = {str(i): 'y' * 999 for i in range(999)}\n"
        "    os.execve('/bin/true', ['x' * 120000] * 400, environment)\n",
        "ERROR|NO_RESULT",
    ),
    "limits of its own": (
        "import resource\n"
        "def add(a, b):\n"
        "    for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):\n"
        "        resource.setrlimit(n, (0, 0))\n"
        "    return a + b\n",
        "PASS",
    ),
}

# What is returned is an array; programs have numpy where `packages.find().folder` says so.
ARRAYS = {
    "array of liars": (
        "import numpy\n"
        "class L:\n    def __eq__(self, o): return True\n"
        "def add(a, b):\n    return numpy.array([L()], dtype=object)\n",
        "FAIL",
    ),
    "array whose bytes lie": (
        "import numpy\n"
        "class A(numpy.ndarray):\n"
        "    shape = ()\n"
        "    def tobytes(self, *a): return b'\\x03' + bytes(7)\n"
        "    def __eq__(self, o): return True\n"
        "def add(a, b):\n    return numpy.arange(5).view(A)\n",
        "FAIL",
    ),
}

FAMILIES = {
    "forgery": FORGERY,
    "secrets": SECRETS,
    "exhaustion": EXHAUSTION,
    "time": TIME,
    "host": HOST,
    "accidents": ACCIDENTS,
    "tricks": TRICKS,
    "arrays": ARRAYS,
}
