"""If a weaker tier fails, a host without root or namespaces runs hostile programs unguarded."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from hostile_programs import FAMILIES
from other_host import HOSTS, ROOT, judge_there, run_there

from sandbox_service import cage, cgroup, packages, seccomp

# What a tier without namespaces cannot give to honest programs: processes of their own, /tmp.
NEEDS_PROCESSES = {
    "fork and both return",
    "fork, the child claims another value",
    "time used by a child process",
}


def _skip_unless_possible(tier: str) -> None:
    if os.getuid() != 0 and tier in ("A-root", "C"):
        pytest.skip("needs root")


@pytest.mark.parametrize("tier", ["A-user", "B"])
def test_weaker_tiers_hold(tier: str) -> None:
    """Forgery, secrets, touching the host, and honest accidents, one tier down."""
    families = ["forgery", "secrets", "host", "accidents"]
    if tier == "A-user":
        families += ["tricks", *["arrays"] * bool(packages.find().folder)]
    cases = [
        {"id": name, "program": program, "want": want}
        for family in families
        for name, (program, want) in FAMILIES[family].items()
        if tier == "A-user" or name not in NEEDS_PROCESSES
    ]
    calls = {"calls": ["add(1, 2)", "add(-1, 1)", "add(0, 0)"], "expected": [3, 0, 0]}
    done = judge_there(tier, {**calls, "cases": cases})
    if "no isolation tier" in done.stderr:
        pytest.skip(f"tier {tier} cannot be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr


# Of the shared catalogue: what needs new processes, and what may run without any isolation.
SHARED_NEEDS_PROCESSES = {35, 56}
HARMLESS = {
    *(1, 4, 5, 7, 8, 11, 16, 17, 19, 20, 37, 38, 44, 49, 50, 52, 55, 58),
    *(73, 74, 76, 77, 79, 80, 82, 83, 85, 86, 88, 89, 91, 92),
}


@pytest.mark.slow
@pytest.mark.parametrize(("tier", "num_cases"), [("A-user", 62), ("B", 60), ("D", 32)])
def test_shared_cases_on_weaker_tiers(
    tier: str, num_cases: int, attack_cases: pathlib.Path
) -> None:
    """The shared catalogue of attacks, but for what a tier cannot hold."""
    content = json.loads(attack_cases.read_text())
    if tier == "B":
        content["cases"] = [c for c in content["cases"] if c["id"] not in SHARED_NEEDS_PROCESSES]
    if tier == "D":
        content["cases"] = [c for c in content["cases"] if c["id"] in HARMLESS]
    done = judge_there(tier, content, "--min-tier", "D")
    if "no isolation tier" in done.stderr:
        pytest.skip(f"tier {tier} cannot be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{num_cases} right, 0 wrong" in done.stdout


SUMS = """
import asyncio, sys
sys.path.insert(0, "tests/sandbox")
from pool_runs import GREEDY, run, started_pool
async def main():
    async with started_pool(1, sys.argv[1]) as pool:
        for limits in ({"memory_bytes": 100 << 20}, {"cpu_s": 1.0, "memory_bytes": 1 << 30}):
            done = await run(pool, GREEDY, "f()", **{"cpu_s": 30, "call_cpu_s": 30, **limits})
            print(done.status.name, end=" ")
asyncio.run(main())
"""


def test_processes_are_counted_together_without_root() -> None:
    """Hidden from its slot, a fork bomb would have all memory and processors for the wall limit."""
    done = run_there("A-user", sys.executable, "-c", SUMS, "A-user")
    if "TierUnavailable" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout.split() == ["MEMORY", "TIMEOUT"], done.stderr


FIND = """
import asyncio, sys
from sandbox_service.pool import Pool, TierUnavailable
pool = Pool(1, sys.argv[1])
pool.prestart()
try:
    asyncio.run(pool.start())
    print(pool.tier, *pool.notes, sep="\\n")
except TierUnavailable as error:
    print("none", error, sep="\\n")
pool.close()
"""


def _find(tier: str, minimum: str) -> tuple[str, str, str]:
    """What a pool says on the host of a tier: its tier, its notes, its warnings."""
    done = run_there(tier, sys.executable, "-c", FIND, minimum)
    found, _, notes = done.stdout.partition("\n")
    if tier == "A-user" and found in ("B", "D"):
        pytest.skip(f"no user namespaces here: {notes}")
    return found, notes, done.stderr


@pytest.mark.parametrize("tier", HOSTS)
def test_strongest_tier_is_found(tier: str) -> None:
    """A service that takes a weaker tier, or says another one, guards less than it says."""
    _skip_unless_possible(tier)
    found, notes, warnings = _find(tier, "D")
    assert found == tier, notes + warnings
    assert "control groups" in notes
    assert ("WEAK ISOLATION" in warnings) == (not tier.startswith("A"))
    assert ("no stronger tier" in notes) == (not tier.startswith("A"))


@pytest.mark.parametrize(("tier", "minimum"), [("B", "A"), ("C", "B"), ("D", "C")])
def test_minimum_fails_closed(tier: str, minimum: str) -> None:
    """A service weaker than asked for must not start, and must say what to do."""
    _skip_unless_possible(tier)
    found, reason, warnings = _find(tier, minimum)
    assert found == "none"
    assert "A-user: " in reason
    assert "weaker --min-tier" in reason
    # Beside what a checkout below /tmp is told about numpy.
    assert all(line.startswith("no numpy for programs") for line in warnings.splitlines())


def test_order_of_tiers() -> None:
    """--min-tier would let a weaker tier through."""
    assert [cage.is_at_least(tier, "A") for tier in cage.TIERS] == [True, True, False, False, False]
    order = [cage.is_at_least(tier, "B") for tier in cage.TIERS]
    assert order == [True, True, True, False, False]
    assert all(cage.is_at_least(tier, "D") for tier in cage.TIERS)


def test_filter_is_well_formed() -> None:
    """A jump beyond the end is refused by the kernel, and the tier with it."""
    for code in (seccomp.denylist(), seccomp.alone(1234)):
        if not code:
            pytest.skip("no system-call table for this machine")
        size = len(code) // 8
        assert len(code) == 8 * size <= 8 * 4096
        for index in range(size):
            kind, if_true, if_false = code[8 * index], code[8 * index + 2], code[8 * index + 3]
            if kind & 7 == 5:
                assert index + 1 + max(if_true, if_false) < size
        assert code[-8] == 6  # the last instruction returns


MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
35 31 0:32 / {root}/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 /docker/abc {root}/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / {root}/unified rw,relatime - cgroup2 cgroup2 rw
"""
OWN = "8:pids:/docker/abc/inner\n4:memory:/service\n0::/slice\n"


def test_groups_are_found_where_this_process_is(tmp_path: pathlib.Path) -> None:
    """Limits in the wrong group would bind others, or nobody."""
    (tmp_path / "mounts").write_text(MOUNTS.format(root=tmp_path))
    (tmp_path / "own").write_text(OWN)
    slice_ = tmp_path / "unified" / "slice"
    slice_.mkdir(parents=True)
    (slice_ / "cgroup.controllers").write_text("cpu hugetlb\n")
    paths = (str(tmp_path / "mounts"), str(tmp_path / "own"))
    found = {"memory": f"{tmp_path}/memory/service", "pids": f"{tmp_path}/pids/inner"}
    assert cgroup._parents(*paths) == found
    (slice_ / "cgroup.controllers").write_text("cpu memory pids\n")
    assert cgroup._parents(*paths) == {"": str(slice_)}  # the unified tree, where it has all
    groups = cgroup.Groups(*paths)  # a tree of plain files: nothing can be controlled here
    assert groups.version == "none"
    assert "no control groups" in groups.note


def test_unified_groups() -> None:
    """The second version has rules of its own; tried here with whatever controller it has."""
    code = (
        "import os\n"
        "from sandbox_service import cgroup\n"
        "names = open('/sys/fs/cgroup/unified/cgroup.controllers').read().split()\n"
        "cgroup._CONTROLLERS = tuple(names[:1])\n"
        "groups = cgroup.Groups()\n"
        "print(groups.version, groups.note)\n"
        "group = groups.make('slot', 8)\n"
        "group.set_memory(1 << 30)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    for path in group.paths:\n"
        "        open(path + '/cgroup.procs', 'w').write('0')\n"
        "    print(open('/proc/self/cgroup').read(), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "groups.leave(group)\n"
        "groups.close()\n"
        "print([path for path in group.paths if os.path.exists(os.path.dirname(path))])\n"
        "print(open('/proc/self/cgroup').read())\n"
    )
    tree = pathlib.Path("/sys/fs/cgroup/unified/cgroup.controllers")
    if os.getuid() != 0 or not tree.exists() or not tree.read_text().split():
        pytest.skip("needs root and a unified tree beside the first version's")
    before = pathlib.Path("/proc/self/cgroup").read_text()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("v2 ")
    assert "codea1-sandbox-" in done.stdout
    assert f"[]\n{before}" in done.stdout  # all folders gone, and back where it came from
