"""Metrics of a run: JSON lines are the record, TensorBoard and W&B are views of it.

`metrics.jsonl` has one object per step. Keys under `time/` and `speed/` depend on the machine;
everything else is a function of the configuration and the checkpoint, so two runs can be compared
line by line (`comparable`).
"""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from codea1_jax.obs.wandb_log import WandbLog

MACHINE_PREFIXES = ("time/", "speed/")


class JsonlLog:
    """An append-only JSON-lines file that a resumed run first cuts back to its checkpoint."""

    def __init__(self, path: pathlib.Path, resume_step: int):
        """Opens `path`, dropping rows of steps after `resume_step` and a half-written last row."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            kept = [row for row in read_jsonl(path) if row["step"] <= resume_step]
            scratch = path.with_suffix(".tmp")
            scratch.write_text("".join(json.dumps(row) + "\n" for row in kept))
            scratch.replace(path)
        self._file = path.open("a")

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_jsonl(path: pathlib.Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; a last line cut off by a crash is left out."""
    rows = []
    with path.open() as file:
        for line in file:
            if not line.endswith("\n"):
                break
            rows.append(json.loads(line))
    return rows


def comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a metrics row that does not depend on the machine's speed."""
    return {key: value for key, value in row.items() if not key.startswith(MACHINE_PREFIXES)}


class MetricsWriter:
    """Writes one row per step to `metrics.jsonl`; its numbers to TensorBoard and, if given, W&B."""

    def __init__(self, run_dir: pathlib.Path, resume_step: int, wandb: WandbLog | None = None):
        from tensorboardX import SummaryWriter

        self._log = JsonlLog(run_dir / "metrics.jsonl", resume_step)
        # purge_step hides what an interrupted run wrote after its last checkpoint.
        self._board = SummaryWriter(str(run_dir / "tensorboard"), purge_step=resume_step + 1)
        self._wandb = wandb

    def write(self, step: int, values: Mapping[str, float]) -> None:
        row = {key: _plain(value) for key, value in sorted(values.items())}
        self._log.write({"step": step, **row})
        for key, value in row.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(key, value, step)
        self._board.flush()
        if self._wandb:
            self._wandb.write(step, row)

    def close(self) -> None:
        self._log.close()
        self._board.close()
        if self._wandb:
            self._wandb.close()


def _plain(value: Any) -> Any:
    """A JSON value: NaN and infinity have no JSON form and become null."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
