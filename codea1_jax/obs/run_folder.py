"""Reading a run folder, also one of a run that was killed in the middle of a write.

The loop's own reader (`metrics.read_jsonl`) trusts what the loop wrote; this one does not: lines
that are no JSON object are left out and counted.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from codea1_jax.errors import UserError

_ROLLOUT_NAME = re.compile(r"step_(\d+)\.jsonl")


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """What a run folder holds, except its rollouts, which are read one step at a time.

    Attributes:
      rows: metrics by step, in order; of a step written twice, the later row.
      num_broken_lines: lines of `metrics.jsonl` that could not be read.
      config: `config.gin`, or "" where the run was killed before it was written.
      rollouts: rollout file by step, in order.
    """

    path: pathlib.Path
    rows: list[dict[str, Any]]
    num_broken_lines: int
    config: str
    rollouts: dict[int, pathlib.Path]

    @property
    def name(self) -> str:
        return self.path.resolve().name


def read_run(path: pathlib.Path) -> RunFolder:
    """Reads a run folder.

    Raises:
      UserError: the folder does not exist, or nothing in it comes from a run.
    """
    if not path.is_dir():
        raise UserError(f"{path} is no folder; name the --run_dir of a run")
    config, metrics = path / "config.gin", path / "metrics.jsonl"
    if not config.exists() and not metrics.exists():
        raise UserError(
            f"{path} holds neither config.gin nor metrics.jsonl; name the --run_dir of a run"
        )
    by_step: dict[int, dict[str, Any]] = {}
    num_broken = 0
    for row in read_objects(metrics) if metrics.exists() else ():
        if row is None or not is_count(row.get("step")):
            num_broken += 1
        else:
            by_step[row["step"]] = row
    rollouts = {}
    for file in sorted((path / "rollouts").glob("step_*.jsonl")):
        if match := _ROLLOUT_NAME.fullmatch(file.name):
            rollouts[int(match[1])] = file
    return RunFolder(
        path,
        [by_step[step] for step in sorted(by_step)],
        num_broken,
        config.read_text(errors="replace") if config.exists() else "",
        dict(sorted(rollouts.items())),
    )


def read_objects(path: pathlib.Path) -> Iterator[dict[str, Any] | None]:
    """JSON objects of a JSON-lines file in order; None for a line that is not one.

    NaN and infinity, which are no JSON, become None.
    """
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            try:
                row = json.loads(line, parse_constant=lambda _: None)
            except (ValueError, RecursionError):
                row = None
            yield row if isinstance(row, dict) else None


def number(row: Mapping[str, Any], key: str) -> float | None:
    """A metric of a row; None where there is none or it is no finite number."""
    value = row.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < float("inf") else None


def is_count(value: Any) -> bool:
    """Whether `value` is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
