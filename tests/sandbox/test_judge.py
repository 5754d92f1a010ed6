"""If a case here fails, a wrong program earns reward or a right one loses it."""

import json
import pathlib

import pytest
from hostile_programs import FAMILIES

from sandbox_service import cli, judge, packages
from sandbox_service.proto import sandbox_pb2 as pb

# Hanging programs cost all that they may: with the defaults the tests take twice as long.
QUICK = pb.Limits(cpu_s=3.0, call_cpu_s=1.5, wall_s=4.0)

CALLS = {"calls": ["add(1, 2)", "add(-1, 1)", "add(0, 0)"], "expected": [3, 0, 0]}


@pytest.fixture(autouse=True)
def _needs_full_isolation(sandbox_client) -> None:  # type: ignore[no-untyped-def]
    tier = sandbox_client.info()["tier"]
    if not tier.startswith("A"):
        pytest.skip(f"tier {tier} cannot hold every case: no process namespace here")


def _write(path: pathlib.Path, cases: list[dict[str, object]]) -> str:
    path.write_text(json.dumps({"entry_point": "add", **CALLS, "cases": cases}))
    return str(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_family(
    family: str, service: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hostile and accidental programs, judged through the service."""
    if family == "arrays" and not packages.find().folder:
        pytest.skip("no numpy beside the service")
    cases: list[dict[str, object]] = [
        {"id": name, "program": program, "want": want}
        for name, (program, want) in FAMILIES[family].items()
    ]
    loaded = judge.load_cases(_write(tmp_path / "cases.json", cases))
    code = judge.judge_all(service, loaded, num_parallel=2, run_limits=QUICK)
    assert code == 0, capsys.readouterr().out


def test_shared_cases(
    attack_cases: pathlib.Path, service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shared catalogue of attacks."""
    loaded = judge.load_cases(str(attack_cases))
    code = judge.judge_all(service, loaded, num_parallel=2, run_limits=QUICK)
    assert code == 0, capsys.readouterr().out


def test_command_line(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 is what automation sees of a wrong verdict."""
    right = {"id": 1, "program": "def add(a, b): return a + b", "want": "PASS or ERROR"}
    own = {
        "id": 2,
        "program": "def twice(x): return [x, x]",
        "entry_point": "twice",
        "calls": ["twice(1)"],
        "expected": [[1, 1]],
        "want": "PASS",
    }
    wrong = {"id": 3, "program": "def add(a, b): return 0", "want": "PASS"}
    path = _write(tmp_path / "right.json", [right, own])
    assert cli.main(["judge", "--cases", path, "--slots", "1"]) == 0
    assert "2 cases: 2 right, 0 wrong" in capsys.readouterr().out
    path = _write(tmp_path / "wrong.json", [right, wrong])
    assert cli.main(["judge", "--cases", path, "--slots", "1"]) == 1
    assert "1 right, 1 wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "not a file of cases"),
        ("{}", "not a file of cases"),
        ('{"cases": [{"id": 5, "want": "PASS"}]}', "0 calls"),
        ('{"cases": [{"id": 5, "calls": ["f()"], "expected": [1], "want": "PASS"}]}', "no program"),
        (
            '{"cases": [{"calls": ["f()"], "expected": [1], "program": "", "want": "OK"}]}',
            "not a verdict",
        ),
    ],
)
def test_bad_files(
    content: str, word: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error in a file of cases must not look like a wrong verdict."""
    path = tmp_path / "cases.json"
    path.write_text(content)
    assert cli.main(["judge", "--cases", str(path)]) == 2
    assert word in capsys.readouterr().err
