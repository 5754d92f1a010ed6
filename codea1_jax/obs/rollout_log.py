"""What the models did to each other: one JSON-lines file per step, one row per problem.

A row holds prompts, responses, codes, suites, verdicts and rewards by term. A step that is run
again after a resume writes its file again.
"""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from codea1_jax.coevo.rewards import ProblemRewards
from codea1_jax.play import Play


def write_rollouts(
    run_dir: pathlib.Path,
    step: int,
    plays: Sequence[Play],
    selected: Mapping[int, np.ndarray],
) -> None:
    """Writes `rollouts/step_000012.jsonl` for one step.

    Args:
      selected: groups of suites that the tester learns from, by the number of the play; a play that
        is not named is not part of the update.
    """
    folder = run_dir / "rollouts"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"step_{step:06d}.jsonl"
    scratch = target.with_suffix(".tmp")
    with scratch.open("w") as file:
        for q, play in enumerate(plays):
            row = {
                "step": step,
                "question_id": play.problem.question_id,
                "question": play.problem.question,
                "reference": play.problem.reference,
                "code_responses": play.responses,
                "suite_responses": play.suite_responses,
                "verdicts": play.verdicts.to_json(),
                "rewards": _rewards(play.rewards),
                "selected_groups": selected[q].tolist() if q in selected else [],
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
