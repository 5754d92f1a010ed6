"""The training loop: one adversarial step after the other, top to bottom.

A step, in this order: the coder samples solutions; the tester, shown each solution, samples suites,
while the sandbox judges the problems that are finished (`play.py`); rewards; TopVar selection; the
coder and the tester learn; the Mistake Book is updated. Then metrics, evaluation, checkpoint.

Every start is a resume: with a checkpoint in the run folder the run goes on after it, bit for bit
(on the same number of devices), otherwise from step 0. Left out: updates that start before the last
verdict: what is scored and packed depends on all rewards.
"""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np

from codea1_jax import distributed
from codea1_jax.ckpt.manager import CheckpointManager
from codea1_jax.coevo.selection import (
    filled_batch,
    questions_with_variance,
    top_variance_groups,
)
from codea1_jax.coevo.summary import step_summary
from codea1_jax.config import TrainConfig, validate
from codea1_jax.interrupt import Interrupted, InterruptGuard
from codea1_jax.learning import (
    Lesson,
    MismatchTooLarge,
    prepare,
    prepare_jointly,
    update,
)
from codea1_jax.mesh import make_mesh
from codea1_jax.obs.metrics import MetricsWriter
from codea1_jax.obs.plots import write_report
from codea1_jax.obs.progress import Progress
from codea1_jax.obs.rollout_log import write_rollouts
from codea1_jax.obs.wandb_log import WandbLog
from codea1_jax.play import Play, TooManyUnknown, play_problems
from codea1_jax.run import Run, build, connect, restore, save

EXIT_INTERRUPTED = 130


def check(config: TrainConfig) -> None:
    """Every check that needs neither weights nor data (`--dry_run`)."""
    validate(config, jax.device_count())


def train(
    config: TrainConfig,
    run_dir: pathlib.Path,
    config_text: str,
    on_step: Callable[[Mapping[str, float]], None] = lambda values: None,
) -> int:
    """Trains to `config.num_steps`, continuing what is in `run_dir`. Returns the exit code.

    Args:
      on_step: gets each step's metrics and phase times, the checkpoint's included.

    Raises:
      UserError: bad configuration, data or checkpoint; before anything expensive starts.
    """
    check(config)
    with contextlib.ExitStack() as stack:
        progress = Progress(config.num_steps, is_silent=not distributed.is_leader())
        guard = stack.enter_context(InterruptGuard(progress.say))
        client = stack.enter_context(connect(config.sandbox))
        mesh = make_mesh(**dataclasses.asdict(config.mesh))
        stack.enter_context(jax.set_mesh(mesh))
        run = build(config, run_dir, mesh, client, progress, guard)

        if distributed.is_leader():
            run_dir.mkdir(parents=True, exist_ok=True)
        manager = CheckpointManager(
            run_dir / "checkpoints", config.keep_checkpoints, config.keep_best_checkpoints
        )
        stack.callback(manager.close)
        start = restore(run, manager, config_text)
        write = stack.enter_context(run_log(run_dir, start, config_text, config.wandb_project))

        if start == 0 and run.holdout.is_due(0, config.num_steps):
            progress.start_step(0)
            values = run.holdout.evaluate(run.coder, client, 0, config.seed, progress)
            write(0, values)
            progress.say(f"step 0/{config.num_steps}  {_evaluation_words(values)}")
        score = None  # of the state as it is
        for step in range(start + 1, config.num_steps + 1):
            try:
                values = train_step(run, step)
            except (Interrupted, TooManyUnknown, MismatchTooLarge) as stop:
                save(run, manager, step - 1, config_text, score)
                progress.say(f"saved after step {step - 1}; the same command goes on from there")
                if isinstance(stop, Interrupted):
                    return EXIT_INTERRUPTED
                raise
            score = None
            if run.holdout.is_due(step, config.num_steps):
                values |= run.holdout.evaluate(run.coder, client, step, config.seed, progress)
                score = values["eval/coder/pass_rate"]
            values |= _phase_times(progress)
            write(step, values)
            progress.finish_step(_step_words(values))
            if step % config.save_every_steps == 0 or step == config.num_steps:
                with progress.phase("checkpoint"):
                    save(run, manager, step, config_text, score)
            on_step(values | _phase_times(progress))
        best = manager.best_step() if config.keep_best_checkpoints else None
        if best is not None:
            progress.say(f"best on the hold-out: the checkpoint of step {best}")
    return 0


@contextlib.contextmanager
def run_log(
    run_dir: pathlib.Path, start: int, config_text: str, wandb_project: str
) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """Where a step's metrics go; writes the report at the end. Only the leading process writes."""
    if not distributed.is_leader():
        yield lambda step, values: None
        return
    (run_dir / "config.gin").write_text(config_text)
    wandb = WandbLog(wandb_project, run_dir, config_text) if wandb_project else None
    # A run that goes on from step 0 evaluates again, so its row of step 0 goes as well.
    with contextlib.closing(MetricsWriter(run_dir, start or -1, wandb)) as writer:
        try:
            yield writer.write
        finally:
            write_report(run_dir)


def train_step(run: Run, step: int) -> dict[str, float]:
    """One adversarial step. The order of the phases is the method's; do not change it.

    Raises:
      Interrupted: a stop was asked for.
      TooManyUnknown: the sandbox gave too few verdicts.
      MismatchTooLarge: sampler and learner disagree too much.
      In all cases nothing of this step has changed the run's state.
    """
    config, evolution, progress = run.config, run.config.coevolution, run.progress
    progress.start_step(step)
    started = time.monotonic()
    plays, num_batches = play_batches(run, step)
    values = play_values(run, plays, num_batches)
    chosen = filled_batch(varied(plays), config.problems_per_step)
    batch = [plays[q] for q in chosen]
    selected = [
        top_variance_groups(play.rewards.tester, play.rewards.tester_mask, evolution.groups_kept)
        for play in batch
    ]
    lessons = prepare_lessons(run, batch, selected)
    run.guard.check()  # the last point at which this step has changed nothing

    for name, lesson in lessons.items():
        with progress.phase(f"{name} update"):
            learned = update(lesson, step, config.num_minibatches)
            values |= {f"{lesson.role.name}/{key}": value for key, value in learned.items()}
    if config.share_weights:
        run.tester.follow(run.coder)

    if evolution.use_book:
        for play in plays:
            run.book.update(play.verdicts)
    run.cursor.step += num_batches
    if distributed.is_leader():
        selected_of = dict(zip(chosen.tolist(), selected, strict=True))
        write_rollouts(run.run_dir, step, plays, selected_of)
    return values | book_values(run) | speed_values(run, plays, started)


def play_batches(run: Run, step: int) -> tuple[list[Play], int]:
    """What is played in a step, and how many batches of the data order that took.

    One batch; more, as `max_extra_batches` allows, while too few questions have codes of different
    rewards. A question that an extra batch would bring a second time is left out.
    """
    plays: list[Play] = []
    for extra in range(run.config.coevolution.max_extra_batches + 1):
        _, indices = run.cursor.batch_at(run.cursor.step + extra)
        seen = {play.problem.question_id for play in plays}
        problems = [run.problems[index] for index in indices]
        problems = [problem for problem in problems if problem.question_id not in seen]
        if problems:
            plays += play_problems(run, step, problems)
        if varied(plays).sum() >= run.config.problems_per_step:
            break
    return plays, extra + 1


def varied(plays: list[Play]) -> np.ndarray:
    """bool[Q]: the question's codes earned different rewards."""
    return questions_with_variance(*coder_rewards(plays))


def coder_rewards(plays: list[Play]) -> tuple[np.ndarray, np.ndarray]:
    """The coder's rewards [Q, M], and which of them are known."""
    rewards = [play.rewards for play in plays]
    return np.stack([r.coder for r in rewards]), np.stack([r.coder_mask for r in rewards])


def prepare_lessons(run: Run, plays: list[Play], selected: list[np.ndarray]) -> dict[str, Lesson]:
    """What each trained role will learn from; all of it before any role changes.

    Args:
      selected: per play the groups of suites that the tester learns from.

    Raises:
      MismatchTooLarge: sampler and learner disagree too much.
    """
    rewards, mask = coder_rewards(plays)  # [Q, M]
    is_varied = varied(plays) if run.config.coevolution.filter_zero_variance else None
    kept = [(play, m) for play, groups in zip(plays, selected, strict=True) for m in groups]
    if run.config.share_weights:
        with run.progress.phase("joint log-probs"):
            if is_varied is not None:
                mask &= is_varied[:, None]
            parts = [(q, play.solutions, rewards[q], mask[q]) for q, play in enumerate(plays)]
            for q, play in enumerate(plays):
                tester = play.rewards.tester, play.rewards.tester_mask
                parts += [(q, play.suites[m], *(rows[m] for rows in tester)) for m in selected[q]]
            return {"joint": prepare_jointly(run.coder, parts)}
    lessons = {}
    if run.coder.config.is_trained:
        with run.progress.phase("coder log-probs"):
            solutions = [play.solutions for play in plays]
            lessons["coder"] = prepare(run.coder, solutions, rewards, mask, is_varied)
    if run.tester.config.is_trained and kept:
        with run.progress.phase("tester log-probs"):
            lessons["tester"] = prepare(
                run.tester,
                [play.suites[m] for play, m in kept],
                np.stack([play.rewards.tester[m] for play, m in kept]),  # [groups, N]
                np.stack([play.rewards.tester_mask[m] for play, m in kept]),
            )
    return lessons


def play_values(run: Run, plays: list[Play], num_batches: int) -> dict[str, float]:
    """Metrics of all that was played, also of questions that the update leaves out."""
    evolution = run.config.coevolution
    values = step_summary([play.verdicts for play in plays], [play.rewards for play in plays])
    if evolution.test_source == "tester":
        values["tester/cut_prompts"] = float(sum(play.num_cut_prompts for play in plays))
    if evolution.max_extra_batches:
        values["sampling/num_extra_batches"] = num_batches - 1.0
        values["sampling/num_questions"] = float(len(plays))
        values["sampling/num_varied_questions"] = float(varied(plays).sum())
    return values


def book_values(run: Run) -> dict[str, float]:
    book = run.book
    return {
        "book/size": float(len(book)),
        "book/questions": float(book.num_questions),
        "book/added": float(book.num_added),
        "book/removed": float(book.num_removed),
        "book/evicted": float(book.num_evicted),
    }


def speed_values(run: Run, plays: list[Play], started: float) -> dict[str, float]:
    seconds = time.monotonic() - started
    values = {
        "time/step": seconds,
        "speed/accelerator_idle_share": 1.0 - accelerator_s(_phase_times(run.progress)) / seconds,
        "speed/sandbox_busy_s": run.progress.sandbox_s,
    }
    flat = {
        "coder": [sample for play in plays for sample in play.solutions],
        "tester": [sample for play in plays for group in play.suites for sample in group],
    }
    for role in run.roles:
        samples = flat[role.name]
        if samples:
            num_tokens = [len(sample.tokens) for sample in samples]
            values[f"{role.name}/response_tokens"] = float(np.mean(num_tokens))
            values[f"{role.name}/sampled_tokens"] = float(np.sum(num_tokens))
            stopped = [sample.finish_reason == "stop" for sample in samples]
            values[f"{role.name}/stopped_share"] = float(np.mean(stopped))
        values[f"speed/{role.name}_tokens_per_s"] = role.engine.stats.tokens_per_s
        values[f"speed/{role.name}_occupancy"] = role.engine.stats.occupancy
    return values


def accelerator_s(times: Mapping[str, float]) -> float:
    """Seconds of the phases that use the accelerator, host work between its programs included."""
    kinds = ("_rollout", "_log-probs", "_update")
    return sum(s for name, s in times.items() if name.startswith("time/") and name.endswith(kinds))


def _phase_times(progress: Progress) -> dict[str, float]:
    return {f"time/{name.replace(' ', '_')}": s for name, s in progress.phase_s.items()}


def _evaluation_words(values: dict[str, float]) -> str:
    rate = values.get("eval/coder/pass_rate")
    return "" if rate is None else f"hold-out {rate:.1%}  "


def _step_words(values: dict[str, float]) -> str:
    tokens_per_s = values["speed/coder_tokens_per_s"], values["speed/tester_tokens_per_s"]
    return (
        f"coder {values['coder/reward/mean']:.3f}  tester {values['tester/reward/mean']:.3f}  "
        f"valid {values['tester/valid_share']:.0%}  "
        f"exposing {values['tester/exposing_share']:.0%}  book {values['book/size']:.0f}  "
        f"{_evaluation_words(values)}{tokens_per_s[0]:.0f}/{tokens_per_s[1]:.0f} tokens/s  "
        f"{values['time/step']:.1f}s, sandbox {values['speed/sandbox_busy_s']:.1f}s "
        f"({values['time/judging']:.1f}s waited)"
    )
