"""tensorflow-datasets builders of the data sets (ArrayRecord files), without TensorFlow.

A data set is prepared once per content: the builder's config name holds a digest of the source
files and the reading options, so that changed files are prepared anew and nothing stale is read.
Rows keep the order of the source (tfds would shuffle them otherwise): the cursor alone decides the
order of training.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import absl.logging
import tensorflow_datasets as tfds

from codea1_jax.data import evalplus, rows, sources
from codea1_jax.data.evalplus import EvalProblem, SuiteName
from codea1_jax.data.location import cache_dir
from codea1_jax.data.record import Problem

# Raise when the meaning of a prepared row changes.
FORMAT_VERSION = "1.0.0"


@dataclasses.dataclass(eq=False, kw_only=True)
class SourceConfig(tfds.core.BuilderConfig):
    """Which files to read and what to keep of them; `name` is a digest of both."""

    files: tuple[pathlib.Path, ...] = ()
    split: sources.Split = "train"
    options: sources.ReadOptions = dataclasses.field(default_factory=sources.ReadOptions)


class _Builder(
    tfds.core.GeneratorBasedBuilder,
    skip_registration=True,  # type: ignore[call-arg]
):
    """Writes one split from the rows of `_rows`."""

    VERSION = tfds.core.Version(FORMAT_VERSION)
    FEATURES: ClassVar[dict[str, Any]] = {}
    SOURCE: ClassVar[str] = ""

    @classmethod
    def _get_pkg_dir_path(cls) -> Any:  # no metadata files beside this module
        return tfds.core.Path(pathlib.Path(__file__).parent)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(self.FEATURES),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager  # files are found before (`sources.find_files`)
        return {self.builder_config.split: self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from enumerate(self._rows(self.builder_config))

    def _rows(self, config: SourceConfig) -> Iterator[dict[str, Any]]:
        raise NotImplementedError


class _ProblemBuilder(_Builder, skip_registration=True):  # type: ignore[call-arg]
    """Rows are `Problem`s."""

    FEATURES: ClassVar[dict[str, Any]] = {
        field.name: tfds.features.Text()
        for field in dataclasses.fields(Problem)
        if field.name != "golden_tests"
    } | {"golden_tests": tfds.features.Sequence(tfds.features.Text())}

    def _rows(self, config: SourceConfig) -> Iterator[dict[str, Any]]:
        found = sources.read_problems(self.SOURCE, config.files, config.split, config.options)
        yield from (problem.to_json() for problem in found)


class EmbeddedProblems(_ProblemBuilder, skip_registration=True):  # type: ignore[call-arg]
    """The problems that ship with the package."""

    SOURCE = "embedded"


class KodcodeHard(_ProblemBuilder, skip_registration=True):  # type: ignore[call-arg]
    """KodCode-V1, reduced to the wanted difficulties and to single plain functions."""

    SOURCE = "kodcode"


class Mbpp(_ProblemBuilder, skip_registration=True):  # type: ignore[call-arg]
    """MBPP, by default without the tasks of MBPP+."""

    SOURCE = "mbpp"


class _SuiteBuilder(_Builder, skip_registration=True):  # type: ignore[call-arg]
    """Rows are `EvalProblem`s; inputs are JSON text, because they have no common type."""

    FEATURES: ClassVar[dict[str, Any]] = {
        name: tfds.features.Text()
        for name in (
            "task_id",
            "prompt",
            "entry_point",
            "canonical_solution",
            "base_input",
            "plus_input",
            "atol",
            "contract",
        )
    }

    def _rows(self, config: SourceConfig) -> Iterator[dict[str, Any]]:
        for file in config.files:
            for row in rows.read_rows(file):
                evalplus.to_eval_problem(row, self.SOURCE)  # checks it
                yield evalplus.to_text_row(row)


class HumanevalPlus(_SuiteBuilder, skip_registration=True):  # type: ignore[call-arg]
    SOURCE = "humaneval_plus"


class MbppPlus(_SuiteBuilder, skip_registration=True):  # type: ignore[call-arg]
    SOURCE = "mbpp_plus"


BUILDERS: dict[str, type[_Builder]] = {
    cls.SOURCE: cls for cls in (EmbeddedProblems, KodcodeHard, Mbpp, HumanevalPlus, MbppPlus)
}


def _config(
    files: Sequence[pathlib.Path], split: sources.Split, options: sources.ReadOptions
) -> SourceConfig:
    digest = hashlib.sha256(json.dumps([split, dataclasses.asdict(options)]).encode())
    for file in files:
        content = hashlib.sha256(file.read_bytes())
        digest.update(content.digest())
    return SourceConfig(
        name=f"{split}_{digest.hexdigest()[:16]}",
        version=tfds.core.Version(FORMAT_VERSION),
        files=tuple(files),
        split=split,
        options=options,
    )


def prepare(
    name: str,
    files: Sequence[pathlib.Path],
    split: sources.Split,
    options: sources.ReadOptions = sources.DEFAULT_OPTIONS,
    prepared_dir: str | os.PathLike[str] | None = None,
) -> tfds.core.DatasetBuilder:
    """The prepared builder of a data set's split; writes its files when they are not there yet."""
    folder = pathlib.Path(prepared_dir) if prepared_dir else cache_dir() / "prepared"
    config = _config(files, split, options)
    with _quiet():
        builder = BUILDERS[name](data_dir=str(folder), config=config, file_format="array_record")
        builder.download_and_prepare()
    return builder


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps tfds' notices out of a command's output (its JSON or its progress line)."""
    before = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.ERROR)
    tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        absl.logging.set_verbosity(before)


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    """Text comes back as bytes; every other value as it is."""
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in row.items()}


def load_problems(
    name: str,
    files: Sequence[pathlib.Path],
    split: sources.Split,
    options: sources.ReadOptions = sources.DEFAULT_OPTIONS,
    prepared_dir: str | os.PathLike[str] | None = None,
) -> list[Problem]:
    """The problems of a split, in the source's order."""
    if name in sources.SUITES:  # a suite as plain problems: for prompts and the overlap check
        found = load_suite(name, files, prepared_dir)
        return [problem.to_problem() for problem in found]
    source = prepare(name, files, split, options, prepared_dir).as_data_source(split=split)
    problems = []
    for row in source:
        tests = [bytes(test).decode() for test in row["golden_tests"]]
        problems.append(Problem.from_json(_texts(row) | {"golden_tests": tests}))
    return problems


def load_suite(
    name: SuiteName,
    files: Sequence[pathlib.Path],
    prepared_dir: str | os.PathLike[str] | None = None,
) -> list[EvalProblem]:
    """The evaluation problems of HumanEval+ or MBPP+."""
    source = prepare(name, files, "test", prepared_dir=prepared_dir).as_data_source(split="test")
    return [evalplus.from_text_row(_texts(row), name) for row in source]
