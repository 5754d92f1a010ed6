"""Judging beside sampling, in the whole loop: nothing but time may differ from judging at the end.

What overlaps is told by the order of events, not by clocks.
"""

import os
import pathlib
import random
import signal
import threading
import time

import jax
import pytest

from codea1_jax import cli, play
from codea1_jax.coevo.judging import Judge
from codea1_jax.judgement import Judging
from codea1_jax.obs.metrics import comparable, read_jsonl
from codea1_jax.roles import Role
from codea1_jax.sandbox.client import SandboxClient

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Few rows, so that problems are finished one after the other.
FLAGS = (
    "--gin.TrainConfig.num_steps=2",
    "--gin.EvalConfig.suite=''",
    "--gin.MeshConfig.fsdp=1",
    "--gin.MeshConfig.data=8",
    "--gin.coder/RolloutConfig.rows=8",
    "--gin.coder/RolloutConfig.min_rows=8",
    "--gin.tester/RolloutConfig.rows=8",
    "--gin.tester/RolloutConfig.min_rows=8",
)
HANG_S = 300.0


class Barrier(Judging):
    """The schedule without overlap: everything is judged when everything is sampled."""

    def __init__(self, num_questions, give_up):
        super().__init__(num_questions, give_up)
        self._later = []

    def start(self, question, judge):
        self._later.append((question, judge))

    def verdicts(self, *arguments):
        for question, judge in self._later:
            super().start(question, judge)
        return super().verdicts(*arguments)


@pytest.fixture(scope="module", autouse=True)
def compile_cache(tmp_path_factory):
    """The same programs in every run."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(tmp_path_factory.mktemp("xla")), 0.2), strict=True):
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def events(monkeypatch):
    """What begins and ends, in order; judging takes a random time longer."""
    found: list[str] = []
    rng = random.Random(0)

    def note(owner, name, begins, ends, most_s):
        plain = getattr(owner, name)

        def noted(self, *arguments, **options):
            found.append(begins(self))
            time.sleep(rng.uniform(0.0, most_s))
            result = plain(self, *arguments, **options)
            found.append(ends(self))
            return result

        monkeypatch.setattr(owner, name, noted)

    note(Role, "sample", lambda r: f"{r.name} samples", lambda r: f"{r.name} has sampled", 0.0)
    for name in ("judge_problem", "judge_golden"):
        note(Judge, name, lambda _: "judge starts", lambda _: "judge ends", 0.5)
    return found


def train(small_run: list[str], run_dir: pathlib.Path, *flags: str) -> int:
    return cli.main(["train", *small_run, *FLAGS, *flags, f"--run_dir={run_dir}"])


def assert_same_run(first: pathlib.Path, other: pathlib.Path) -> None:
    rows, other_rows = (read_jsonl(run / "metrics.jsonl") for run in (first, other))
    assert len(rows) == 2
    assert [comparable(row) for row in rows] == [comparable(row) for row in other_rows]
    names = sorted(path.name for path in (first / "rollouts").iterdir())
    assert len(names) == 2
    for name in names:
        assert (first / "rollouts" / name).read_text() == (other / "rollouts" / name).read_text()


def assert_no_judge_thread() -> None:
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("judge")]


@pytest.fixture(scope="module")
def barrier(small_run, tmp_path_factory):
    """A run that judges at the end of each step's sampling."""
    run_dir = tmp_path_factory.mktemp("barrier") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play, "Judging", Barrier)
        assert train(small_run, run_dir) == 0
    return run_dir


def test_verdicts_that_come_at_any_time_change_nothing(barrier, small_run, tmp_path, events):
    assert train(small_run, tmp_path) == 0
    half = len(events) // 2
    for of_step in (events[:half], events[half:]):
        assert of_step.count("judge ends") == 4
        assert of_step.index("judge starts") < of_step.index("tester has sampled")
    assert_same_run(barrier, tmp_path)
    for row in read_jsonl(tmp_path / "metrics.jsonl"):
        assert row["speed/sandbox_busy_s"] > 0
    assert_no_judge_thread()


def test_golden_tests_are_run_while_the_coder_samples(small_run, tmp_path, events):
    names = ("runs/smoke_wide", "baselines/golden")
    files = [f"--gin_file={ROOT}/gin/{name}.gin" for name in names]
    arguments = [small_run[0], *files, *small_run[1:]]
    assert train(arguments, tmp_path, "--gin.TrainConfig.num_steps=1") == 0
    assert "tester samples" not in events
    assert events.index("judge starts") < events.index("coder has sampled")
    assert events.count("judge ends") >= 4


def test_a_broken_judge_ends_the_step_while_the_tester_samples(
    small_run, tmp_path, events, monkeypatch
):
    is_closed = threading.Event()
    let_go(monkeypatch, is_closed)

    calls = []

    def broken(self, request):
        calls.append(request)
        if len(calls) == 1:
            raise ZeroDivisionError("a bug of ours")
        assert is_closed.wait(HANG_S)

    monkeypatch.setattr(Judge, "judge_problem", broken)
    with pytest.raises(ZeroDivisionError, match="of ours"):
        train(small_run, tmp_path)
    assert "tester samples" in events
    assert "tester has sampled" not in events
    assert not (tmp_path / "rollouts").exists()
    assert_no_judge_thread()


def test_an_interrupt_drops_the_step_and_its_judges(barrier, small_run, tmp_path, monkeypatch):
    """The sandbox still works on the step when Ctrl-C ends it; the next start is exact."""
    is_closed, plain = threading.Event(), Judge.judge_problem
    let_go(monkeypatch, is_closed)

    calls = []

    def interrupting(self, request):
        calls.append(request)
        if len(calls) == 1:  # a second signal would end the process at once
            os.kill(os.getpid(), signal.SIGINT)
        assert is_closed.wait(HANG_S)
        return plain(self, request)

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "judge_problem", interrupting)
        assert train(small_run, tmp_path) == 130
    assert_no_judge_thread()
    assert not (tmp_path / "rollouts").exists()
    assert train(small_run, tmp_path) == 0
    assert_same_run(barrier, tmp_path)


def test_a_dead_sandbox_costs_the_step_and_nothing_else(
    small_run, tmp_path, events, monkeypatch, capsys
):
    """All problems give up at their own deadline; the run stops with what it had before."""
    plain = SandboxClient.submit
    with SandboxClient("127.0.0.1:1", deadline_s=1.0) as lost:
        monkeypatch.setattr(SandboxClient, "submit", lambda self, run: plain(lost, run))
        assert train(small_run, tmp_path) == 2
    assert "no verdict for 100%" in capsys.readouterr().err
    assert events.count("judge ends") == 4
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["0"]
    assert not (tmp_path / "rollouts").exists()
    assert_no_judge_thread()


def let_go(monkeypatch, is_closed: threading.Event) -> None:
    """Sets the event when the client of the sandbox is closed."""
    plain = SandboxClient.close

    def close(self):
        is_closed.set()
        plain(self)

    monkeypatch.setattr(SandboxClient, "close", close)
