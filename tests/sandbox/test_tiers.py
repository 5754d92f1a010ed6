"""If a weaker tier fails, a host without root or namespaces runs hostile programs unguarded."""

import json
import pathlib

import pytest
from hostile_programs import FAMILIES

from codea1_jax.sandbox.client import SandboxClient
from codea1_jax.sandbox.local import local_service
from codea1_jax.sandbox.verdict import Call, Run, RunStatus
from sandbox_service import cage, judge, seccomp
from sandbox_service.proto import sandbox_pb2 as pb

# What a tier without namespaces cannot give to honest programs: processes of their own, /tmp.
NEEDS_PROCESSES = {
    "fork and both return",
    "fork, the child claims another value",
    "time used by a child process",
}


@pytest.mark.parametrize("tier", ["A-user", "B"])
def test_weaker_tiers_hold(
    tier: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forgery, secrets, touching the host, and honest accidents, one tier down."""
    cases = [
        {"id": name, "program": program, "want": want}
        for family in ("forgery", "secrets", "host", "accidents")
        for name, (program, want) in FAMILIES[family].items()
        if tier == "A-user" or name not in NEEDS_PROCESSES
    ]
    path = tmp_path / "cases.json"
    calls = {"calls": ["add(1, 2)", "add(-1, 1)", "add(0, 0)"], "expected": [3, 0, 0]}
    path.write_text(json.dumps({**calls, "cases": cases}))
    try:
        with local_service(slots=2, tier=tier) as address:
            with SandboxClient(address) as client:
                run = Run("def f(): return 1", (Call("f"),))
                result = client.submit(run).result()
                assert (result.status, result.tier) == (RunStatus.OK, tier)
            code = judge.judge_all(
                address,
                judge.load_cases(str(path)),
                num_parallel=2,
                run_limits=pb.Limits(cpu_s=2, call_cpu_s=1, wall_s=4),
            )
    except RuntimeError as error:
        pytest.skip(f"tier {tier} cannot be had here: {error}")
    assert code == 0, capsys.readouterr().out


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
