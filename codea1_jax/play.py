"""What both roles did on one problem in one step, and what came of it."""

import dataclasses

from codea1_jax.coevo.rewards import ProblemRewards
from codea1_jax.coevo.verdicts import ProblemVerdicts
from codea1_jax.data.record import Problem
from codea1_jax.rollout.types import Sample


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
