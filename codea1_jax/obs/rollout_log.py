"""What the models did to each other: one JSON-lines file per step, one row per problem.

A row holds prompts, responses, codes, suites, verdicts and rewards by term. A step that is run
again after a resume writes its file again.
"""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from codea1_jax.coevo.rewards import ProblemRewards
from codea1_jax.coevo.verdicts import ProblemVerdicts
from codea1_jax.data.record import Problem


def write_rollouts(
    run_dir: pathlib.Path,
    step: int,
    problems: Sequence[Problem],
    code_responses: Sequence[Sequence[str]],
    suite_responses: Sequence[Sequence[Sequence[str]]],
    verdicts: Sequence[ProblemVerdicts],
    rewards: Sequence[ProblemRewards],
    selected: Sequence[np.ndarray],
) -> None:
    """Writes `rollouts/step_000012.jsonl` for one step."""
    folder = run_dir / "rollouts"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step_{step:06d}.jsonl"
    scratch = target.with_suffix(".tmp")
    with scratch.open("w") as file:
        for q, problem in enumerate(problems):
            row = {
                "step": step,
                "question_id": problem.question_id,
                "question": problem.question,
                "reference": problem.reference,
                "code_responses": list(code_responses[q]),
                "suite_responses": [list(group) for group in suite_responses[q]],
                "verdicts": verdicts[q].to_json(),
                "rewards": _rewards(rewards[q]),
                "selected_groups": selected[q].tolist(),
            }
            file.write(json.dumps(row) + "\n")
    scratch.replace(target)


def _rewards(rewards: ProblemRewards) -> dict[str, Any]:
    return {name: _plain(value.tolist()) for name, value in vars(rewards).items()}


def _plain(value: Any) -> Any:
    """Rounded numbers; NaN, which has no JSON form, becomes null."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value
