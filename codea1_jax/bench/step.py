"""`codea1 bench step`: whole steps of a run file through the training loop itself, timed by phase.

codea1 bench step --gin_file=gin/runs/smoke.gin --steps=3 [--gin.NAME=VALUE ...]

`--warmup` steps that are not measured (they compile), then `--steps` that are; figures are means
over these. The accelerator counts as busy in rollouts, log-probs and updates, host work between its
programs included; the rest (waiting for verdicts, rewards, saving) is its idle share. The sandbox
is busy while any problem is judged, mostly beside the rollouts. Left out: evaluation. The last line
is JSON.
"""

import argparse
import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from codea1_jax import gin_io, train
from codea1_jax.config import TrainConfig
from codea1_jax.errors import UserError


def run(options: argparse.Namespace, flags: Sequence[str]) -> int:
    """Prints one JSON line. Raises UserError for a configuration that cannot run."""
    if options.steps < 1 or options.warmup < 0:
        raise UserError(
            f"--steps={options.steps} --warmup={options.warmup}; at least 1 and at least 0"
        )
    config = gin_io.build(TrainConfig, options.gin_file, gin_io.flag_bindings(flags))
    config = dataclasses.replace(
        config,
        num_steps=options.warmup + options.steps,
        save_every_steps=1,
        keep_best_checkpoints=0,
        evaluation=dataclasses.replace(config.evaluation, suite=""),
        wandb_project="",
    )
    rows: list[Mapping[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="codea1-bench-") as folder:
        code = train.train(config, pathlib.Path(folder), gin_io.bound_config(), rows.append)
    if code == 0:
        print(json.dumps(_summary(options, config, rows[options.warmup :])), flush=True)
    return code


def _summary(
    options: argparse.Namespace, config: TrainConfig, rows: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    def mean(name: str) -> float:
        return float(np.mean([row.get(name, 0.0) for row in rows]))

    times = {
        name: mean(name) for name in rows[0] if name.startswith("time/") and name != "time/step"
    }
    seconds = mean("time/step") + times["time/checkpoint"]
    num_tokens = mean("coder/sampled_tokens") + mean("tester/sampled_tokens")
    return {
        "bench": "step",
        "gin_files": options.gin_file,
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "problems": config.problems_per_step,
        "steps": len(rows),
        "seconds": round(seconds, 3),
        "seconds_of_steps": [round(row["time/step"] + row["time/checkpoint"], 3) for row in rows],
        "phases": {name.removeprefix("time/"): round(s, 3) for name, s in times.items()},
        "accelerator_idle_share": round(1.0 - train.accelerator_s(times) / seconds, 4),
        "verdicts_awaited_s": round(times["time/judging"], 3),
        "sandbox_busy_s": round(mean("speed/sandbox_busy_s"), 3),
        "sampled_tokens": round(num_tokens),
        "tokens_per_s": round(num_tokens / seconds, 1),
        "coder_rollout_tokens_per_s": round(mean("speed/coder_tokens_per_s"), 1),
        "tester_rollout_tokens_per_s": round(mean("speed/tester_tokens_per_s"), 1),
        "unknown_share": round(mean("verdicts/unknown_share"), 4),
    }
