"""Prepared data sets: a row that changes on its way through ArrayRecord is trained on wrongly."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow_datasets")

from codea1_jax.data import builders, evalplus, sources
from codea1_jax.data.record import Problem


def _write(path, problems):
    path.write_text("\n".join(json.dumps(p.to_json()) for p in problems) + "\n")


def _problem(number: int, **changes) -> Problem:
    fields = {
        "question_id": f"p{number}",
        "entry_point": f"f{number}",
        "question": "Überraschung:\n\t\\d 💡",
        "description": "text",
        "reference": f"def f{number}():\n    return {number}\n",
        "golden_tests": [f"assert f{number}() == {number}"] * (number % 3),
        "source": "embedded",
    }
    return Problem.from_json(fields | changes)


def test_rows_come_back_unchanged_and_in_order(tmp_path):
    """Shuffling or decoding errors here would break the resumable order or the prompts."""
    problems = [_problem(i) for i in range(50)]
    held_out = [_problem(99, split="test")]
    _write(tmp_path / "a.jsonl", problems + held_out)
    load = sources.load_problems
    prepared = tmp_path / "prepared"
    assert load("embedded", tmp_path / "a.jsonl", prepared_dir=prepared) == problems
    assert load("embedded", tmp_path / "a.jsonl", "test", prepared_dir=prepared) == held_out
    files = list(prepared.rglob("*.array_record*"))
    assert files
    before = {f: f.stat().st_mtime_ns for f in files}
    assert load("embedded", tmp_path / "a.jsonl", prepared_dir=prepared) == problems
    assert {f: f.stat().st_mtime_ns for f in prepared.rglob("*.array_record*")} == before


def test_changed_source_is_prepared_anew(tmp_path):
    """A stale prepared copy would hide an edit of the problems."""
    prepared = tmp_path / "prepared"
    path = tmp_path / "a.jsonl"
    _write(path, [_problem(1)])
    assert sources.load_problems("embedded", path, prepared_dir=prepared) == [_problem(1)]
    _write(path, [_problem(2)])
    assert sources.load_problems("embedded", path, prepared_dir=prepared) == [_problem(2)]


def test_suite_inputs_survive(tmp_path):
    """Structured inputs hold tuples, huge integers and infinities; each decides a verdict."""
    rows = [
        {
            "task_id": "Mbpp/2",
            "prompt": '"""text"""\n',
            "entry_point": "f",
            "canonical_solution": "def f(a, b):\n    return a\n",
            "base_input": [[[1, 2], [3]]],
            "plus_input": [[[10**30], [float("inf"), 1e-300]]],
            "atol": 0.0001,
            "contract": "\n  assert True\n",
        },
        {
            "task_id": "Mbpp/793",
            "prompt": "",
            "entry_point": "g",
            "canonical_solution": "def g(a):\n    return a\n",
            "base_input": [[[1, 2]]],
            "plus_input": {},
            "atol": 0,
            "contract": "",
        },
    ]
    path = tmp_path / "MbppPlus.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    suite = sources.load_suite("mbpp_plus", tmp_path, prepared_dir=tmp_path / "prepared")
    assert suite == list(evalplus.eval_problems(rows, "mbpp_plus"))
    assert suite[0].base_input == (((1, 2), (3,)),)
    assert suite[0].plus_input == (((10**30,), (float("inf"), 1e-300)),)
    assert suite[0].atol == 0.0001
    assert suite[1].plus_input == ()


def test_one_builder_per_source():
    """A name in the configuration without a builder would fail only when used."""
    assert set(builders.BUILDERS) == set(sources.SOURCES)


def test_tensorflow_is_never_imported(tmp_path):
    """TensorFlow would take the accelerator's memory (and is not a dependency)."""
    _write(tmp_path / "a.jsonl", [_problem(1)])
    script = (
        "import sys\n"
        "from codea1_jax.data import sources\n"
        f"sources.load_problems('embedded', {str(tmp_path / 'a.jsonl')!r}, "
        f"prepared_dir={str(tmp_path / 'prepared')!r})\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "notices of the data library leak into a command's output"


def test_public_suites_equal_their_raw_files(data_dir, tmp_path):
    """The prepared form must be the release, all 542 problems of it."""
    for name in sources.SUITES:
        suite = sources.load_suite(name, data_dir / "evalplus", prepared_dir=tmp_path)
        files = sources.find_files(name, data_dir / "evalplus")
        raw = [row for file in files for row in sources.rows.read_rows(file)]
        expected = list(evalplus.eval_problems(raw, name))
        assert evalplus.suite_fingerprint(suite) == evalplus.suite_fingerprint(expected)
