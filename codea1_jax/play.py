"""What both roles do on the problems of a step, and what comes of it.

    coder rollout      tester rollout           the last verdicts    rewards
                         └ suites of a question are whole: it is judged in the background

Nothing here changes a run's state. Left out: running codes on remembered tests while the tester
still samples: a code runs once, in one process, on all its tests.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from codea1_jax.coevo.extract import extract_code
from codea1_jax.coevo.judging import JudgeRequest
from codea1_jax.coevo.prompts import Message, coder_messages, configured_tester_prompt
from codea1_jax.coevo.rewards import ProblemRewards, problem_rewards
from codea1_jax.coevo.testcase import StoredTest
from codea1_jax.coevo.verdicts import ProblemVerdicts, unknown_share
from codea1_jax.data.record import Problem
from codea1_jax.errors import UserError
from codea1_jax.judgement import Judging
from codea1_jax.rollout.types import Sample
from codea1_jax.run import Run


class TooManyUnknown(UserError):
    """The sandbox gave so few verdicts in a step that nothing was learnt from it."""


@dataclasses.dataclass(frozen=True)
class Play:
    """One problem's solutions and suites, with their verdicts and rewards.

    Attributes:
      solutions, responses: M samples of the coder, and their texts.
      suites, suite_responses: groups of N samples of the tester, and their texts.
      num_cut_prompts: tester prompts that did not show the whole code.
    """

    problem: Problem
    solutions: list[Sample]
    responses: list[str]
    suites: list[list[Sample]]
    suite_responses: list[list[str]]
    num_cut_prompts: int
    verdicts: ProblemVerdicts
    rewards: ProblemRewards


def play_problems(run: Run, step: int, problems: list[Problem]) -> list[Play]:
    """Solutions, suites, verdicts and rewards of some problems.

    A problem is judged from the moment when nothing more is sampled for it, so that in the end only
    the last verdicts are waited for.

    Raises:
      Interrupted: a stop was asked for.
      TooManyUnknown: the sandbox gave too few verdicts.
    """
    evolution = run.config.coevolution
    responses: list[list[str]] = [[] for _ in problems]
    suite_responses: list[list[list[str]]] = [[] for _ in problems]
    suites: list[list[list[Sample]]] = [[] for _ in problems]
    num_cut = [0] * len(problems)
    with Judging(len(problems), give_up=run.client.close) as judging:

        def on_sample() -> None:
            run.progress.advance()
            judging.check()

        def on_solutions(q: int, group: list[Sample]) -> None:
            responses[q] = run.coder.texts(group)
            if evolution.test_source == "golden":
                judging.start(q, lambda: run.judge.judge_golden(problems[q], responses[q]))

        def on_suites(q: int, groups: list[list[Sample]]) -> None:
            suites[q] = groups
            suite_responses[q] = [run.tester.texts(group) for group in groups]
            history = remembered(run, step, problems[q])
            request = JudgeRequest(
                problems[q], responses[q], suite_responses[q], history, evolution.targets
            )
            judging.start(q, lambda: run.judge.judge_problem(request))

        solutions = sample_solutions(run, step, problems, on_sample, on_solutions)
        run.guard.check()
        if evolution.test_source == "tester":
            num_cut = sample_suites(run, step, problems, responses, on_sample, on_suites)
            run.guard.check()
        with run.progress.phase("judging", total=judging.num_own):
            verdicts = judging.verdicts(run.progress.advance)
    run.progress.sandbox_s += judging.busy_s
    check_unknown(run, step, unknown_share(verdicts))
    rewards = [problem_rewards(verdict, evolution) for verdict in verdicts]
    columns = (problems, solutions, responses, suites, suite_responses, num_cut, verdicts, rewards)
    return [Play(*row) for row in zip(*columns, strict=True)]


def sample_solutions(
    run: Run,
    step: int,
    problems: list[Problem],
    on_sample: Callable[[], None],
    on_solutions: Callable[[int, list[Sample]], None],
) -> list[list[Sample]]:
    """M solutions of each problem, [Q][M].

    Args:
      on_solutions: gets a problem's index and its M solutions as soon as these are finished.
    """
    count = run.config.coevolution.num_solutions
    prompts = [run.coder.tokenizer.encode_chat(coder_messages(problem)) for problem in problems]
    ids = [f"{step}/{problem.question_id}" for problem in problems]
    with run.progress.phase("coder rollout", total=len(problems) * count):
        return run.coder.sample(
            prompts, ids, count, run.config.seed, on_sample=on_sample, on_group=on_solutions
        )


def sample_suites(
    run: Run,
    step: int,
    problems: list[Problem],
    responses: list[list[str]],
    on_sample: Callable[[], None],
    on_suites: Callable[[int, list[list[Sample]]], None],
) -> list[int]:
    """Samples N suites for each solution; how many prompts of each problem had to be cut.

    Args:
      on_suites: gets a problem's index and its groups of suites, [M][N], as soon as all of them are
        finished; [1][N] with `suites_for="question"`.
    """
    config = run.config.coevolution
    if config.suites_for == "question":
        responses = [group[:1] for group in responses]  # one prompt, which does not show the code
    tokenizer = run.tester.tokenizer

    def count_tokens(messages: list[Message]) -> int:
        return len(tokenizer.encode_chat(messages))

    prompts, ids, num_cut = [], [], []
    for problem, codes in zip(problems, responses, strict=True):
        num_cut.append(0)
        for m, response in enumerate(codes):
            code = extract_code(response, problem.entry_point).text
            fitted = configured_tester_prompt(
                config, count_tokens, problem, code, run.tester.config.max_prompt_tokens
            )
            num_cut[-1] += fitted.is_code_cut
            prompts.append(tokenizer.encode_chat(fitted.messages))
            ids.append(f"{step}/{problem.question_id}/{m}")

    size = len(responses[0])
    suites: list[list[list[Sample]]] = [[[] for _ in range(size)] for _ in problems]

    def on_group(index: int, group: list[Sample]) -> None:
        q, m = divmod(index, size)
        suites[q][m] = group
        if all(suites[q]):
            on_suites(q, suites[q])

    with run.progress.phase("tester rollout", total=len(prompts) * config.num_suites):
        run.tester.sample(
            prompts, ids, config.num_suites, run.config.seed, None, on_sample, on_group
        )
    return num_cut


def remembered(run: Run, step: int, problem: Problem) -> tuple[StoredTest, ...]:
    """Tests of the Mistake Book that every solution of `problem` is replayed on."""
    config = run.config.coevolution
    if not config.use_book:
        return ()
    rng = None
    if config.retrieval == "sampled":
        rng = np.random.default_rng([run.config.seed, step, *problem.question_id.encode()])
    return run.book.retrieve(problem.question_id, config.tests_per_suite, config.retrieval, rng)


def check_unknown(run: Run, step: int, share: float) -> None:
    """Stops the run when the sandbox fails too often for rewards to mean anything."""
    limit = run.config.coevolution.max_unknown_share
    if share > limit:
        raise TooManyUnknown(
            f"step {step}: the sandbox gave no verdict for {share:.0%} of codes and tests, more "
            f"than max_unknown_share={limit:.0%}. Nothing of this step was learnt; check the "
            "sandbox service and start the same command again"
        )
