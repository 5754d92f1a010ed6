"""A long step that prints nothing looks like a hang."""

import io

from codea1_jax.obs import progress as module
from codea1_jax.obs.progress import Progress, duration


def test_durations_read_well():
    assert [duration(s) for s in (7, 185, 7800)] == ["7s", "3m05s", "2h10m"]


def test_a_long_phase_says_how_far_it_is(monkeypatch):
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    stream = io.StringIO()
    progress = Progress(num_steps=4, stream=stream)
    progress.start_step(1)
    with progress.phase("coder rollout", total=8):
        progress.advance(2)
    progress.finish_step("reward 0.5")
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("step 1/4  coder rollout 2/8  left ")
    assert lines[1].startswith("step 1/4  reward 0.5  left ")
    assert set(progress.phase_s) == {"coder rollout"}


def test_a_short_phase_leaves_no_line_in_a_log():
    stream = io.StringIO()
    progress = Progress(num_steps=1, stream=stream)
    progress.start_step(1)
    with progress.phase("judging", total=2):
        progress.advance()
    assert stream.getvalue() == ""


def test_times_are_of_one_step():
    progress = Progress(num_steps=2, is_silent=True)
    progress.start_step(1)
    with progress.phase("judging"):
        progress.sandbox_s += 2.5
    progress.start_step(2)
    assert progress.phase_s == {}
    assert progress.sandbox_s == 0.0
