"""HumanEval+ and MBPP+ verdicts: where they differ from EvalPlus' own, scores mean nothing.

The public files are read from the data folder; `evalplus_verdicts.json` holds EvalPlus' own
verdicts on two thousand wrong and odd samples (`make_evalplus_verdicts.py`).
"""

import argparse
import json
import pathlib

import pytest
from make_evalplus_verdicts import FIXTURE, build, digest

from codea1_jax.data import sources
from codea1_jax.data.evalplus import EvalProblem
from codea1_jax.errors import UserError
from codea1_jax.eval import command, evalplus, runner
from codea1_jax.eval.samples import EvalSample, write_samples
from codea1_jax.sandbox.client import SandboxClient
from codea1_jax.sandbox.verdict import CallStatus, Outcome, RunResult, RunStatus


def _problem(solution: str, base: list, plus: list, **changes) -> EvalProblem:
    fields = {
        "task_id": "HumanEval/0",
        "suite": "humaneval_plus",
        "prompt": "def f(x):\n",
        "entry_point": "f",
        "canonical_solution": solution,
        "base_input": tuple(map(tuple, base)),
        "plus_input": tuple(map(tuple, plus)),
    }
    return EvalProblem(**(fields | changes))


SORT = _problem("    return sorted(x)\n", [[[2, 1]], [[]]], [[[3, 1, 2]], [[1]], [[5, 4]]])


def _statuses(problem, solutions, client, tmp_path) -> list[tuple[str, str]]:
    answers = runner.reference_answers([problem], client, folder=tmp_path)
    samples = [EvalSample(problem.task_id, solution) for solution in solutions]
    verdicts = runner.judge_samples(samples, [problem], answers, client)
    return [(v["base"].status, v["plus"].status) for v in verdicts]


@pytest.mark.parametrize(
    ("solution", "base", "plus"),
    [
        ("def f(x):\n    x.sort()\n    return x\n", "pass", "pass"),
        ("f = sorted\n", "pass", "pass"),
        ("def f(x):\n    return x[::-1]\n", "pass", "fail"),
        ("def f(x):\n    return tuple(sorted(x))\n", "fail", "fail"),
        ("def g(x):\n    return sorted(x)\n", "fail", "fail"),
        ("def f(x):\n    return sorted(x\n", "fail", "fail"),
        ("@staticmethod", "fail", "fail"),
        ("import sys\nsys.exit(0)\n", "fail", "fail"),
        ("def f(x):\n    import os\n    os._exit(0)\n", "fail", "fail"),
        ("def f(x):\n    while True: pass\n", "timeout", "timeout"),
        ("def f(x):\n    return sorted(x) if len(x) < 3 else f(x)\n", "pass", "fail"),
        ("def f(x):\n    print(x, 'y' * 10**5)\n    return sorted(x)\n", "pass", "pass"),
        # Equal to everything by its own word, and replacing what ships the value.
        ("class A(list):\n    __eq__ = lambda s, o: True\ndef f(x):\n    return A()\n",)
        + ("fail",) * 2,
        ("def f(x):\n    return object()\n", "fail", "fail"),
        (
            "def f(x):\n    globals()['_codea1_adapter'] = lambda *a: 1\n    return 0\n",
            "fail",
            "fail",
        ),
        (
            "n = 0\ndef f(x):\n    global n\n    n += 1\n    return sorted(x) if n < 3 else 0\n",
            "pass",
            "fail",
        ),
    ],
)
def test_statuses_of_one_sample(client, tmp_path, solution, base, plus):
    """Every way to be right, wrong, slow or hostile, on base and plus inputs apart."""
    assert _statuses(SORT, [solution], client, tmp_path) == [(base, plus)]


def test_arguments_are_fresh_for_every_part(client, tmp_path):
    """A sample that ruins its argument must not ruin the next input or the next sample."""
    ruin = "def f(x):\n    y = sorted(x)\n    x.clear()\n    return y\n"
    found = _statuses(SORT, [ruin, ruin], client, tmp_path)
    assert found == [("pass", "pass")] * 2


def test_time_limit_follows_the_canonical_solution(client, tmp_path):
    """A limit for all tasks alike fails right answers to the slow ones, or lets hangs pass."""
    spin = (
        "    from time import process_time\n    end = process_time() + {}\n"
        "    while process_time() < end: pass\n"
    )
    problem = _problem(spin.format("x") + "    return x\n", [[0.4]], [])
    solution = "def f(x):\n" + spin
    found = _statuses(
        problem,
        [solution.format(1.2) + "    return x\n", solution.format(3.0) + "    return x\n"],
        client,
        tmp_path,
    )
    assert found == [("pass", "pass"), ("timeout", "pass")]


def test_large_values_are_compared(client, tmp_path):
    """HumanEval+ asks for values far above what may leave a sandbox."""
    problem = _problem("    return list(range(x))\n", [[10], [2_000_000]], [])
    solutions = [
        "def f(x):\n    return [float(i) for i in range(x)]\n",
        "def f(x):\n    return list(range(x - 1)) + [x]\n",
    ]
    assert _statuses(problem, solutions, client, tmp_path) == [("pass", "pass"), ("fail", "pass")]


def test_answers_are_cached_by_content(client, tmp_path):
    """Running 542 canonical solutions takes minutes; a stale cache judges against other inputs."""
    first = runner.reference_answers([SORT], client, folder=tmp_path)
    with SandboxClient("127.0.0.1:1", deadline_s=0.2) as lost:
        assert runner.reference_answers([SORT], lost, folder=tmp_path) == first
        changed = _problem("    return sorted(x)\n", [[[2, 1]]], [])
        with pytest.raises(evalplus.ReferenceFailed, match="the sandbox failed"):
            runner.reference_answers([changed], lost, folder=tmp_path)
    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged")
    again = runner.reference_answers([SORT], client, folder=tmp_path)["HumanEval/0"]
    assert [(part, a.values) for part, a in again.items()] == [
        (part, a.values) for part, a in first["HumanEval/0"].items()
    ]


def test_failing_canonical_solution_is_named(client, tmp_path):
    """A damaged suite must not judge everything as wrong."""
    broken = _problem("    return 1 // x\n", [[1]], [[2], [0]])
    with pytest.raises(evalplus.ReferenceFailed, match=r"HumanEval/0: .* plus input 1 .*Zero"):
        runner.reference_answers([broken], client, folder=tmp_path)


def test_unknown_is_neither_pass_nor_fail(client, tmp_path):
    """An outage in the middle must lower no score."""
    answers = runner.reference_answers([SORT], client, folder=tmp_path)
    with SandboxClient("127.0.0.1:1", deadline_s=0.2) as lost:
        samples = [EvalSample("HumanEval/0", SORT.program)]
        result = runner.evaluate(samples, [SORT], answers, lost)
    assert result["num_unknown"] == 1
    assert result["pass_at_k"] == {"base": {}, "plus": {}}
    row = result["eval"]["HumanEval/0"][0]
    assert (row["base_status"], row["plus_status"]) == ("unknown", "unknown")


def test_a_failure_before_an_unknown_call_is_a_failure():
    """What is known to be wrong stays wrong, whatever the sandbox lost later."""
    answers = evalplus.Answers(([1, 2], []), (0.0, 0.0))
    value = Outcome(CallStatus.VALUE, (True, [2, 1]))
    unknown = Outcome(CallStatus.UNKNOWN)
    found = RunResult(RunStatus.OK, (value, unknown))
    assert evalplus.judge_part(SORT, "base", answers, [found]).status == "fail"
    found = RunResult(RunStatus.OK, (unknown, value))
    assert evalplus.judge_part(SORT, "base", answers, [found]).status == "unknown"


# --- the public suites --------------------------------------------------------------------------

# Every oracle, every restored argument type, the largest values, and the two tasks that the
# benchmark's own script form cannot judge (HumanEval/32, Mbpp/56).
NOTABLE_HUMANEVAL = (2, 4, 32, 83, 100, 148)
NOTABLE_MBPP = (2, 7, 56, 63, 75, 106, 124, 232, 252, 259, 278, 558, 580, 581, 722, 769, 793)
NOTABLE = [f"HumanEval/{n}" for n in NOTABLE_HUMANEVAL] + [f"Mbpp/{n}" for n in NOTABLE_MBPP]


@pytest.fixture(scope="module")
def suites(data_dir) -> dict[str, list[EvalProblem]]:
    folder = data_dir / "evalplus"
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing: the EvalPlus release files")
    return {name: sources.load_suite(name, folder) for name in sources.SUITES}


def _failures(suite, samples, client, tmp_path) -> list[str]:
    answers = runner.reference_answers(suite, client, folder=tmp_path)
    result = runner.evaluate(samples, suite, answers, client)
    assert result["num_unknown"] == 0
    return [
        f"{row['task_id']}: {row['base_status']} {row['plus_status']} {row.get('base_reason')} "
        f"{row.get('plus_reason')}"
        for rows in result["eval"].values()
        for row in rows
        if (row["base_status"], row["plus_status"]) != ("pass", "pass")
    ]


def test_notable_references_pass(suites, client, tmp_path):
    """Each of these was once judged wrong by some harness; then every model fails it."""
    for suite in suites.values():
        chosen = [problem for problem in suite if problem.task_id in NOTABLE]
        samples = [EvalSample(problem.task_id, problem.program) for problem in chosen]
        assert _failures(chosen, samples, client, tmp_path) == []
    assert set(NOTABLE) <= {p.task_id for suite in suites.values() for p in suite}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sources.SUITES)
def test_all_references_pass(suites, service, tmp_path, name):
    """The ceiling of the benchmark must be 100 %, all 542 problems."""
    samples = [EvalSample(problem.task_id, problem.program) for problem in suites[name]]
    with SandboxClient(service, deadline_s=1800.0) as client:
        assert _failures(suites[name], samples, client, tmp_path) == []


def _disagreements(entries, suites, client, tmp_path) -> list[str]:
    """Where this package and EvalPlus differ on (base passes, plus passes)."""
    found = []
    for name, suite in suites.items():
        by_id = {problem.task_id: problem for problem in suite}
        own = [entry for entry in entries if entry["suite"] == name]
        chosen = [by_id[task_id] for task_id in dict.fromkeys(e["task_id"] for e in own)]
        answers = runner.reference_answers(chosen, client, folder=tmp_path)
        samples = []
        for entry in own:
            solution = build(by_id[entry["task_id"]], entry)
            assert digest(solution) == entry["sha256"], "the recipe gives another sample"
            samples.append(EvalSample(entry["task_id"], solution))
        verdicts = runner.judge_samples(samples, chosen, answers, client)
        for entry, verdict in zip(own, verdicts):
            ours = tuple(verdict[part].status == "pass" for part in evalplus.PARTS)
            theirs = tuple(entry[part] == "pass" for part in evalplus.PARTS)
            if ours != theirs:
                found.append(f"{entry['task_id']} {entry['sha256']}: {verdict}, EvalPlus {theirs}")
    return found


def _entries() -> list[dict]:
    # EvalPlus v0.3.1 fails every solution of HumanEval/32; here it can be solved.
    return [e for e in json.loads(FIXTURE.read_text()) if e["task_id"] != "HumanEval/32"]


def test_agrees_with_evalplus_on_a_selection(suites, client, tmp_path):
    """Wrong and odd samples: mutants, other types, state between inputs, exits."""
    entries = _entries()
    chosen = entries[::20]
    assert len(chosen) > 80
    assert len({(e["base"], e["plus"]) for e in chosen}) >= 3
    assert _disagreements(chosen, suites, client, tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_agrees_with_evalplus_on_everything(suites, service, tmp_path):
    """Two thousand samples, 1,660 of them mutants."""
    with SandboxClient(service, deadline_s=1800.0) as client:
        assert _disagreements(_entries(), suites, client, tmp_path) == []


# --- the command --------------------------------------------------------------------------------


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_command_judges_a_samples_file(suites, service, tmp_path, capsys, monkeypatch):
    """`codea1 eval --samples` is how a score is published."""
    monkeypatch.setenv("CODEA1_CACHE", str(tmp_path / "cache"))
    suite = suites["mbpp_plus"][:3]
    release = tmp_path / "MbppPlus.jsonl"
    rows = [
        {
            "task_id": p.task_id,
            "prompt": p.prompt,
            "entry_point": p.entry_point,
            "canonical_solution": p.canonical_solution,
            "base_input": p.base_input[:2],
            "plus_input": p.plus_input[:2],
            "atol": p.atol,
            "contract": "",
        }
        for p in suite
    ]
    release.write_text("\n".join(map(json.dumps, rows)))
    samples = [EvalSample(suite[0].task_id, suite[0].program), EvalSample(suite[1].task_id, "")]
    write_samples(tmp_path / "samples.jsonl.gz", samples)
    output = tmp_path / "deep" / "out.json"
    code = _run(
        "--suite=mbpp_plus",
        f"--suite_path={release}",
        f"--samples={tmp_path / 'samples.jsonl.gz'}",
        f"--output={output}",
        f"--sandbox_address={service}",
    )
    assert code == 0
    result = json.loads(output.read_text())
    assert result["pass_at_k"]["plus"] == {"pass@1": 0.5}
    assert result["missing"] == [suite[2].task_id]
    assert result["sandbox"]["tier"]
    printed = capsys.readouterr()
    assert "mbpp_plus plus: pass@1 50.0" in printed.out
    assert "1 problems have no sample" in printed.err


def test_command_errors_name_the_option(tmp_path, service):
    """A typing error must be one line, not a traceback."""
    common = ["--suite=embedded", f"--output={tmp_path / 'o.json'}", f"--sandbox_address={service}"]
    with pytest.raises(UserError, match=r"--samples=.*no such file"):
        _run(*common, f"--samples={tmp_path / 'missing.jsonl'}")
    with pytest.raises(UserError, match=r"--suite_path=.*no such file"):
        _run(*common, "--samples=x", f"--suite_path={tmp_path / 'nowhere'}")
    pathlib.Path(tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match="no sample of a problem of embedded"):
        _run(*common, f"--samples={tmp_path / 'empty.jsonl'}")
