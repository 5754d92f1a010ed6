"""The data sets by name, and how to get their problems.

    problems = load_problems("mbpp", path="/data/mbpp", split="train")
    suite = load_suite("humaneval_plus", path="/data/evalplus")

An empty path means the public home: the installed package for `embedded`, else one download.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from codea1_jax.data import embedded, evalplus, kodcode, mbpp, rows
from codea1_jax.data.evalplus import EvalProblem, SuiteName
from codea1_jax.data.location import DataError, fetch_hub, fetch_url, local_files
from codea1_jax.data.record import Problem

Split = Literal["train", "test"]
PROBLEM_SOURCES = ("embedded", "kodcode", "mbpp")
SUITES: tuple[SuiteName, ...] = ("humaneval_plus", "mbpp_plus")
SOURCES = (*PROBLEM_SOURCES, *SUITES)


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """What a reader keeps. Options of other data sets are ignored.

    Attributes:
      exclude_mbpp_plus: MBPP: leave the 378 tasks of MBPP+ out of "train".
      kodcode_difficulties: KodCode: the values of `gpt_difficulty` to keep.
    """

    exclude_mbpp_plus: bool = True
    kodcode_difficulties: tuple[str, ...] = ("hard",)


DEFAULT_OPTIONS = ReadOptions()


def find_files(
    name: str, path: str | os.PathLike[str] = "", path_key: str = "data path"
) -> list[pathlib.Path]:
    """The files of a data set, at a local path or from its public home."""
    if name not in SOURCES:
        raise DataError(f"unknown data set {name!r}; known: {', '.join(SOURCES)}")
    if path:
        names = dict(evalplus.FILE_NAMES.items()) | {"mbpp": mbpp.FILE_NAMES}
        return local_files(path, names.get(name, ()), rows.SUFFIXES, path_key)
    if name == "embedded":
        return local_files(embedded.folder(), (), (".jsonl",), path_key)
    if name == "kodcode":
        return fetch_hub(kodcode.HUB_ID, kodcode.HUB_PATTERN, path_key)
    url = mbpp.URL if name == "mbpp" else evalplus.URLS[name]
    return [fetch_url(url, path_key)]


def read_problems(
    name: str, files: Iterable[pathlib.Path], split: Split, options: ReadOptions = DEFAULT_OPTIONS
) -> list[Problem]:
    """Parses files straight into problems (what the builders write, and tests compare with)."""
    if split not in ("train", "test"):
        raise DataError(f"unknown split {split!r}; use 'train' or 'test'")
    read = (row for file in files for row in rows.read_rows(file))
    found: Iterator[Problem]
    if name == "embedded":
        found = embedded.problems(read, split=split)
    elif name == "kodcode":
        found = (
            kodcode.problems(read, difficulties=options.kodcode_difficulties)
            if split == "train"
            else iter(())
        )
    elif name == "mbpp":
        found = mbpp.problems(read, split=split, exclude_mbpp_plus=options.exclude_mbpp_plus)
    elif name in SUITES:
        suite = evalplus.eval_problems(read, name)
        found = (p.to_problem() for p in suite) if split == "test" else iter(())
    else:
        raise DataError(f"unknown data set {name!r}; known: {', '.join(SOURCES)}")
    problems = list(found)
    if not problems:
        raise DataError(f"the data set {name!r} has no problems in split {split!r}")
    _check_unique(name, problems)
    return problems


def _check_unique(name: str, problems: list[Problem]) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.question_id in seen:
            raise DataError(f"{name}: the question id {problem.question_id!r} occurs twice")
        seen.add(problem.question_id)


def load_problems(
    name: str,
    path: str | os.PathLike[str] = "",
    split: Split = "train",
    *,
    options: ReadOptions = DEFAULT_OPTIONS,
    path_key: str = "data path",
    prepared_dir: str | os.PathLike[str] | None = None,
) -> list[Problem]:
    """The problems of a data set, through its prepared (tensorflow-datasets, ArrayRecord) form.

    Args:
      path: local file or folder; empty for the public home.
      path_key: the configuration key that `path` came from, named in errors.
      prepared_dir: where the prepared form lives; by default under `location.cache_dir()`.
    """
    # Imported here: tensorflow-datasets takes a second to import, and parsing needs none of it.
    from codea1_jax.data import builders

    files = find_files(name, path, path_key)
    return builders.load_problems(name, files, split, options, prepared_dir)


def load_suite(
    name: SuiteName,
    path: str | os.PathLike[str] = "",
    *,
    path_key: str = "suite path",
    prepared_dir: str | os.PathLike[str] | None = None,
) -> list[EvalProblem]:
    """HumanEval+ or MBPP+ with its structured inputs, through its prepared form."""
    from codea1_jax.data import builders

    if name not in SUITES:
        raise DataError(f"unknown suite {name!r}; known: {', '.join(SUITES)}")
    files = find_files(name, path, path_key)
    return builders.load_suite(name, files, prepared_dir)


def dataset_fingerprint(problems: Iterable[Problem]) -> str:
    """sha256 over the canonical rows in order: what a checkpoint records about its data."""
    digest = hashlib.sha256()
    for problem in problems:
        row: dict[str, Any] = problem.to_json()
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()
