"""Which problems a run trains on: none that it is evaluated on, and short enough for both prompts.

Lengths are counted by the roles' own tokenizers. Left out: loading (`data/sources.py`).
"""

from collections.abc import Callable, Sequence

from codea1_jax.coevo.golden import golden_tests
from codea1_jax.coevo.prompts import (
    CUT_MARK,
    Message,
    coder_messages,
    configured_tester_prompt,
)
from codea1_jax.config import TrainConfig
from codea1_jax.data.overlap import check_overlap, without_overlap
from codea1_jax.data.record import Problem
from codea1_jax.gin_io import ConfigurationError
from codea1_jax.holdout import Holdout, load_holdout
from codea1_jax.roles import Role


def select_problems(
    config: TrainConfig, coder: Role, problems: Sequence[Problem], say: Callable[[str], None]
) -> tuple[list[Problem], Holdout]:
    """(training problems that the coder can be asked, hold-out).

    Raises:
      ConfigurationError: too few are left for one step, or an unknown suite.
      OverlapError: training and evaluation problems meet, and `DataConfig.overlap` is "refuse".
    """

    def fits(problem: Problem) -> bool:
        length = len(coder.tokenizer.encode_chat(coder_messages(problem)))
        return length <= coder.config.max_prompt_tokens

    holdout = load_holdout(config.evaluation, fits)
    if config.data.overlap == "drop":
        problems, _ = without_overlap(problems, holdout.records)
    elif config.data.overlap == "refuse":
        check_overlap(problems, holdout.records)
    kept = [problem for problem in problems if fits(problem)]
    if len(kept) < len(problems):
        say(f"{len(problems) - len(kept)} problems left out: prompt too long")
    if config.coevolution.test_source == "golden":
        kept = [problem for problem in kept if golden_tests(problem)]
    kept = kept[: config.data.max_problems or None]
    if len(kept) < config.problems_per_step:
        raise ConfigurationError(
            f"TrainConfig.problems_per_step={config.problems_per_step} is more than the "
            f"{len(kept)} problems of DataConfig.dataset={config.data.dataset!r}; lower it"
        )
    return kept, holdout


def with_tester_prompt(config: TrainConfig, tester: Role, problems: list[Problem]) -> list[Problem]:
    """The problems whose question fits the tester's prompt, with all of the code cut away.

    Raises:
      ConfigurationError: too few are left for one step.
    """
    limit = tester.config.max_prompt_tokens

    def count_tokens(messages: list[Message]) -> int:
        return len(tester.tokenizer.encode_chat(messages))

    def fits(problem: Problem) -> bool:
        return not configured_tester_prompt(
            config.coevolution, count_tokens, problem, CUT_MARK, limit
        ).is_too_long

    kept = [problem for problem in problems if fits(problem)]
    if len(kept) < config.problems_per_step:
        raise ConfigurationError(
            f"tester/RoleConfig.max_prompt_tokens={limit}: the tester's prompt has room for "
            f"{len(kept)} of {len(problems)} questions, fewer than TrainConfig.problems_per_step="
            f"{config.problems_per_step}; raise TESTER_PROMPT and the tester's prompt_buckets"
        )
    return kept
