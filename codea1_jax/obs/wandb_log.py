"""A run's metrics on Weights & Biases, as another view of `metrics.jsonl` (extra `wandb`).

Trouble with W&B (no login, no network) never stops a run: one warning, and the record goes on
without it. Its own settings are environment variables: WANDB_MODE=offline, WANDB_ENTITY, ...
"""

import importlib.util
import pathlib
import uuid
import warnings
from collections.abc import Callable, Mapping
from typing import Any

_ID_FILE = "wandb_id"
_FINISH_S = 300.0  # a slice must not be held by an upload that does not come to an end


def is_installed() -> bool:
    return importlib.util.find_spec("wandb") is not None


class WandbLog:
    """One W&B run for one run folder, also after a restart: its id is kept in the folder.

    Steps that an interrupted run had logged after its last checkpoint are logged again with the
    same numbers; curves are drawn over `step`.
    """

    def __init__(self, project: str, run_dir: pathlib.Path, config_text: str):
        self._run: Any = None
        self._guarded(lambda: self._start(project, run_dir, config_text))

    def _start(self, project: str, run_dir: pathlib.Path, config_text: str) -> None:
        import wandb

        id_file = run_dir / _ID_FILE
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex)
        self._run = wandb.init(
            project=project,
            name=run_dir.resolve().name,
            id=id_file.read_text(),
            resume="allow",
            dir=str(run_dir),
            config={"gin": config_text},
            settings={"finish_timeout": _FINISH_S},
        )
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Logs what are numbers; `values` as in `metrics.jsonl`."""
        numbers = {key: value for key, value in values.items() if isinstance(value, (int, float))}
        if self._run is not None:
            self._guarded(lambda: self._run.log({"step": step, **numbers}))

    def close(self) -> None:
        if self._run is not None:
            self._guarded(self._run.finish)

    def _guarded(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:  # whatever a tracker does, the run goes on
            self._run = None
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            warnings.warn(f"W&B is off for the rest of this run: {reason}", stacklevel=3)
