"""Run folders without a run: made-up verdicts, written by the project's own writers."""

import math
import pathlib
from collections.abc import Sequence

import numpy as np

from codea1_jax.coevo.config import paper
from codea1_jax.coevo.rewards import problem_rewards
from codea1_jax.coevo.summary import step_summary
from codea1_jax.coevo.testcase import StoredTest, make_test
from codea1_jax.coevo.verdicts import (
    CodeVerdict,
    Judgement,
    ProblemVerdicts,
    StatementStatus,
    StatementVerdict,
    SuiteVerdict,
)
from codea1_jax.data.record import Problem
from codea1_jax.obs.metrics import MetricsWriter
from codea1_jax.obs.rollout_log import write_rollouts
from codea1_jax.play import Play
from codea1_jax.sandbox.verdict import Verdict

# What a hostile model may write. Each would do harm if it were markup, or break naive embedding.
HOSTILE = (
    "</script><script>window.isOwned = true</script>",
    "<img src=x onerror='window.isOwned = true'>",
    "<!--<script>",
    "]]>&lt;b&gt;&amp;",
    "NUL \0 and \x1b[31m escape",
    "lone \ud800 surrogate \udfff",
    "line \u2028 and \u2029 separators, \u202e reversed",
    "{{blocks}} {{script}} \\u003c",
    "' + alert(1) + '",
)
HOSTILE_TEXT = "\n".join(HOSTILE)
CONFIG = "SEED = {seed}\nALPHA = {alpha}\nTrainConfig.seed = %SEED\nEvalConfig.suite = 'embedded'\n"
STATUSES = tuple(StatementStatus)
VERDICTS = tuple(Verdict)


def write_run(
    run_dir: pathlib.Path,
    num_steps: int,
    num_problems: int = 4,
    num_codes: int = 4,
    num_suites: int = 2,
    seed: int = 0,
    alpha: float = 0.5,
    texts: Sequence[str] = ("return x",),
) -> pathlib.Path:
    """Writes a folder of a run of `num_steps` steps; `texts` are what the models say, in turn."""
    run_dir.mkdir(parents=True)
    (run_dir / "config.gin").write_text(CONFIG.format(seed=seed, alpha=alpha))
    rng = np.random.default_rng(seed)
    writer = MetricsWriter(run_dir, resume_step=0)
    writer.write(0, {"eval/coder/pass_rate": 0.4 + 0.01 * seed})
    for step in range(1, num_steps + 1):
        problems = [_problem(step, q, texts) for q in range(num_problems)]
        verdicts = [
            _verdicts(problem, num_codes, num_suites, texts, rng, has_history=q % 2 == 1)
            for q, problem in enumerate(problems)
        ]
        rewards = [problem_rewards(verdict, paper()) for verdict in verdicts]
        codes = [texts[m % len(texts)] for m in range(num_codes)]
        suites = [[texts[n % len(texts)] for n in range(num_suites)]] * num_codes
        plays = [
            Play(problem, [], codes, [], suites, 0, verdict, reward)
            for problem, verdict, reward in zip(problems, verdicts, rewards, strict=True)
        ]
        write_rollouts(run_dir, step, plays, dict.fromkeys(range(num_problems), np.array([0])))
        values = step_summary(verdicts, rewards) | _numbers(step, num_steps)
        if step == num_steps:
            values["eval/coder/pass_rate"] = 0.6 + 0.02 * seed
        writer.write(step, values)
    writer.close()
    return run_dir


def _problem(step: int, q: int, texts: Sequence[str]) -> Problem:
    text = texts[q % len(texts)]
    return Problem(
        question_id=f"made/{(step * 3 + q) % 97}",
        question=f"Double the number {q}.\n{text}",
        description="Double it.",
        entry_point="f",
        reference=f"def f(x):\n    return 2 * x  # {text}",
    )


def _verdicts(
    problem: Problem,
    num_codes: int,
    num_suites: int,
    texts: Sequence[str],
    rng: np.random.Generator,
    has_history: bool,
) -> ProblemVerdicts:
    history = [StoredTest(make_test("f", (-k,)), -2 * k) for k in range(3 if has_history else 0)]
    judged: list[dict[bytes, Judgement]] = [
        {stored.test.key: _judgement(rng) for stored in history} for _ in range(num_codes)
    ]
    groups = []
    for m in range(num_codes):
        suites = []
        for n in range(num_suites):
            rows = []
            for k in range(5):
                status = STATUSES[rng.integers(len(STATUSES))] if k > 2 else StatementStatus.VALID
                number = 100 * n + 10 * m + k
                stored = StoredTest(make_test("f", (number,)), 2 * number)
                is_test = status in (StatementStatus.VALID, StatementStatus.WRONG_ANSWER)
                if is_test:
                    judged[m][stored.test.key] = _judgement(rng)
                rows.append(
                    StatementVerdict(
                        f"assert f({number}) == {2 * number}  # {texts[k % len(texts)]}",
                        status,
                        "" if is_test else texts[m % len(texts)],
                        stored if is_test else None,
                        is_attacking=is_test,
                    )
                )
            suites.append(SuiteVerdict(tuple(rows), (m,)))
        groups.append(tuple(suites))
    codes = tuple(
        CodeVerdict(f"def f(x):\n    {texts[m % len(texts)]}", True, judgements=judged[m])
        for m in range(num_codes)
    )
    return ProblemVerdicts(problem.question_id, codes, tuple(groups), tuple(history))


def _judgement(rng: np.random.Generator) -> Judgement:
    verdict = VERDICTS[rng.choice(3, p=(0.6, 0.35, 0.05))]
    return Judgement(verdict, "" if verdict is Verdict.PASS else "got 3")


def _numbers(step: int, num_steps: int) -> dict[str, float]:
    share = step / num_steps
    values = {
        "book/size": 10.0 * step,
        "book/questions": 3.0 * step,
        "book/added": 12.0 * step,
        "book/removed": 2.0 * step,
        "book/evicted": 0.0,
        "time/step": 9.0 if step > 1 else 90.0,
        "time/coder_rollout": 3.0,
        "time/tester_rollout": 4.0,
        "time/judging": 1.0,
        "speed/sandbox_busy_s": 2.5,
        "time/coder_update": 0.5,
        "time/tester_update": 0.5,
    }
    for role in ("coder", "tester"):
        values |= {
            f"{role}/loss": 0.1 * math.sin(step),
            f"{role}/kl": 0.001 * step,
            f"{role}/entropy": 1.0 - 0.5 * share,
            f"{role}/clip_fraction_low": 0.01,
            f"{role}/clip_fraction_high": 0.02 * share,
            f"{role}/grad_norm": 1.0,
            f"{role}/response_tokens": 40.0 + step / 10,
            f"{role}/num_tokens": 1000.0,
            f"{role}/mismatch_kl": 1e-6,
        }
    return values
