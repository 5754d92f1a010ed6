"""The problems that ship with this package (`codea1_jax/assets/problems/*.jsonl`).

Each line is `Problem.to_json()`; a problem's split is part of its row.
"""

import importlib.resources
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from codea1_jax.data.location import DataError
from codea1_jax.data.record import Problem


def folder() -> pathlib.Path:
    """The folder of problem files inside the installed package."""
    return pathlib.Path(str(importlib.resources.files("codea1_jax.assets"))) / "problems"


def problems(
    rows: Iterable[dict[str, Any]], *, split: Literal["train", "test"] = "train"
) -> Iterator[Problem]:
    for number, row in enumerate(rows):
        try:
            problem = Problem.from_json(row)
        except TypeError as error:
            name = row.get("question_id", f"number {number}")
            raise DataError(f"embedded problem {name}: {error}") from error
        if problem.split == split:
            yield problem
