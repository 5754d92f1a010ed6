"""Readers of public formats: a wrong entry point or a lost test gives wrong rewards, silently."""

import gzip
import json

import pytest

from codea1_jax.data import evalplus, kodcode, mbpp, python_text, rows, sources
from codea1_jax.data.location import DataError
from codea1_jax.data.record import Problem
from codea1_jax.data.sources import ReadOptions

MBPP_ROW = {
    "text": "Write a function to find the shared elements.",
    "code": "import math\r\ndef helper(x):\r\n  return x\r\ndef shared(a, b=()):\r\n  return "
    "helper(tuple(set(a) & set(b)))\r\n",
    "task_id": 609,
    "test_setup_code": "",
    "test_list": [
        "assert set(shared((3, 4), (5, 4))) == set((4,))",
        "assert shared((1, 2), (2, 5)) == (2,)",
    ],
    "challenge_test_list": ["assert shared((), ()) == ()"],
}

KODCODE_ROW = {
    "style": "instruct",
    "subset": "Prefill",
    "question_id": "Prefill_7_I",
    "question": "Sort numbers.\n\n```python\n>>> sort_it([2, 1])\n```\nUse `def sort_it(xs):`.",
    "solution": "def sort_it(xs, reverse=False):\n    return sorted(xs, reverse=reverse)\n",
    "test": (
        "from solution import sort_it\n"
        "def test_plain():\n"
        "    xs = [2, 1]\n"
        "    assert sort_it(xs) == [1, 2]\n"
        "    assert sort_it(xs, reverse=True) == [2, 1], 'message'\n"
        "def test_none():\n"
        "    assert sort_it([]) != [1]\n"
        "    ys = list(range(3))\n"
        "    assert sort_it(ys) == ys\n"
        "    assert (sort_it([3]) is None) == False\n"
    ),
    "test_info": [{"function_name": "sort_it", "docstring": "Sorts."}],
    "gpt_difficulty": "hard",
}


def test_mbpp_entry_point_is_what_the_tests_call():
    """A helper taken for the entry point makes every candidate fail."""
    problem = mbpp.to_problem(MBPP_ROW)
    assert problem.entry_point == "shared"
    assert problem.question_id == "Mbpp/609"
    assert problem.signature == "def shared(a, b=()):"
    assert problem.golden_tests == (
        "assert shared((1, 2), (2, 5)) == (2,)",
        "assert shared((), ()) == ()",
    )


def test_mbpp_windows_line_ends_are_gone():
    """A stray carriage return in a docstring reaches the prompt's tokens."""
    problem = mbpp.to_problem(MBPP_ROW)
    assert "\r" not in json.dumps(problem.to_json())
    assert python_text.parse(problem.question) is not None


def test_mbpp_without_a_called_function_is_refused():
    """An unusable row must be named, not turned into a problem with an empty entry point."""
    row = MBPP_ROW | {"test_list": ["assert sorted([1]) == [1]"]}
    with pytest.raises(DataError, match="task 609"):
        mbpp.to_problem(row)


def test_kodcode_row_becomes_plain_tests():
    """A test with its set-up lost or its operator changed would be a wrong golden test."""
    problem = kodcode.to_problem(KODCODE_ROW)
    assert problem.golden_tests == (
        "assert sort_it([2, 1]) == [1, 2]",
        "assert sort_it([2, 1], reverse=True) == [2, 1]",
    )
    assert problem.description == "Sort numbers."
    assert problem.question.endswith(
        "Use `def sort_it(xs):`."
    )  # the question names it: nothing to add


@pytest.mark.parametrize(
    "change",
    [
        {"gpt_difficulty": "easy"},
        {"test_info": None},
        {"test_info": KODCODE_ROW["test_info"] * 2},
        {"solution": KODCODE_ROW["solution"] + "def other(): pass\n"},
        {"solution": "class A: pass\n" + KODCODE_ROW["solution"]},
        {"solution": "def sort_it(:\n"},
    ],
)
def test_kodcode_unusable_rows_are_left_out(change):
    """Rows about classes or several functions cannot be judged by calls of one entry point."""
    assert kodcode.is_usable(KODCODE_ROW, ("hard",))
    assert not kodcode.is_usable(KODCODE_ROW | change, ("hard",))


def test_kodcode_prefers_the_complete_style():
    """Both styles of one question would be seen twice per epoch."""
    complete = KODCODE_ROW | {
        "style": "complete",
        "question_id": "Prefill_7_C",
        "question": 'def sort_it(xs, reverse=False):\n    """Sorts the numbers.\n\n    More."""\n',
    }
    found = list(kodcode.problems([KODCODE_ROW, complete]))
    assert [p.question_id for p in found] == ["Prefill_7_C"]
    assert found[0].description == "Sorts the numbers.\n\nMore."
    assert found[0].question == complete["question"].strip()


def test_names_reassigned_between_asserts_are_not_inlined():
    """Inlining a stale value invents a test that the author never wrote."""
    source = "xs = [1]\nxs.append(2)\nassert f(xs) == 3\nys = [1]\nys = g()\nassert f(ys) == 1\n"
    assert python_text.plain_asserts(source, "f") == []


def test_missing_field_names_row_and_field():
    """Without the row's name a broken file of 10,000 rows cannot be repaired."""
    with pytest.raises(DataError, match=r"MBPP task 609: the field 'code' is missing"):
        mbpp.to_problem({k: v for k, v in MBPP_ROW.items() if k != "code"})


def test_json_lines_of_any_packing(tmp_path):
    """Releases come plain or gzipped, as lines or as one array."""
    wanted = [{"a": 1}, {"a": "é"}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, wanted)) + "\n\n")
    (tmp_path / "x.json").write_text(json.dumps(wanted))
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, wanted)))
    for name in ("x.jsonl", "x.json", "x.jsonl.gz"):
        assert list(rows.read_rows(tmp_path / name)) == wanted
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2"):
        list(rows.read_rows(tmp_path / "bad.jsonl"))


def test_parquet_rows(tmp_path):
    """The hub serves KodCode as Parquet with nested test_info."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pyarrow.Table.from_pylist([KODCODE_ROW]), tmp_path / "train-00000-of-00001.parquet"
    )
    files = sources.find_files("kodcode", tmp_path)
    assert sources.read_problems("kodcode", files, "train") == [kodcode.to_problem(KODCODE_ROW)]


def test_missing_path_and_unknown_names_are_one_clear_error(tmp_path):
    """A typing error in a path must stop the run before anything is loaded."""
    with pytest.raises(DataError, match=r"DataConfig\.path=.*no such file"):
        sources.find_files("mbpp", tmp_path / "nowhere", path_key="DataConfig.path")
    with pytest.raises(DataError, match=r"holds none of mbpp\.jsonl"):
        sources.find_files("mbpp", tmp_path)
    with pytest.raises(DataError, match="known: embedded, kodcode"):
        sources.find_files("codcode")


def test_offline_download_names_the_key(monkeypatch, tmp_path):
    """Without network the fix is a local copy: the error has to say where to put it."""
    import urllib.request

    def refuse(*args, **kwargs):
        raise OSError("network is unreachable")

    monkeypatch.setenv("CODEA1_CACHE", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(DataError, match=r"set DataConfig\.path to a local copy"):
        sources.find_files("mbpp", path_key="DataConfig.path")


def test_restored_arguments():
    """A list where a tuple belongs changes what a correct solution returns."""
    restore = evalplus.restore_arguments
    assert restore(2, [[[3, 4], [5]]]) == [[(3, 4), (5,)]]
    assert restore(63, [[[[1, 2], [3]]]]) == [[[(1, 2), (3,)]]]
    assert restore(106, [[[1], [2]]]) == [[[1], (2,)]]
    assert restore(115, [[[[1, 1], []]]]) == [[[{1}, {}]]]
    assert restore(252, [["(1+2j)"]]) == [[1 + 2j]]
    assert restore(124, [["1.5", "2j"]]) == [[1.5, 2j]]
    assert restore(259, [[[[1, 2]], [[3]]]]) == [[((1, 2),), ((3,),)]]
    assert restore(580, [[[1, [2, [3]]]]]) == [[(1, (2, (3,)))]]
    assert restore(722, [[{"a": [1, 2]}, 3]]) == [[{"a": (1, 2)}, 3]]
    assert restore(3, [[[1], "x"]]) == [[[1], "x"]]


def test_duplicate_ids_are_refused(tmp_path):
    """The Mistake Book's key must be unique, or two questions share their tests."""
    (tmp_path / "mbpp.jsonl").write_text((json.dumps(MBPP_ROW) + "\n") * 2)
    with pytest.raises(DataError, match="'Mbpp/609' occurs twice"):
        sources.read_problems("mbpp", [tmp_path / "mbpp.jsonl"], "train")


def test_fingerprint_sees_every_field_and_the_order():
    """A checkpoint resumed on other data would replay the wrong questions."""
    first = mbpp.to_problem(MBPP_ROW)
    second = kodcode.to_problem(KODCODE_ROW)
    fingerprint = sources.dataset_fingerprint
    assert fingerprint([first, second]) == fingerprint([first, second])
    changed = Problem.from_json(second.to_json() | {"reference": second.reference + "\n"})
    assert len({fingerprint(x) for x in ([first, second], [second, first], [first, changed])}) == 3


def test_public_files(data_dir):
    """The sizes that the documentation promises; a reader that loses rows trains on less."""
    mbpp_files = sources.find_files("mbpp", data_dir / "mbpp")
    outside = sources.read_problems("mbpp", mbpp_files, "train")
    official = sources.read_problems(
        "mbpp", mbpp_files, "train", ReadOptions(exclude_mbpp_plus=False)
    )
    test = sources.read_problems("mbpp", mbpp_files, "test")
    assert (len(outside), len(official), len(test)) == (596, 474, 500)
    assert sum(not p.golden_tests for p in outside) < 10
    suites = {
        name: sources.read_problems(name, sources.find_files(name, data_dir / "evalplus"), "test")
        for name in sources.SUITES
    }
    assert {name: len(found) for name, found in suites.items()} == {
        "humaneval_plus": 164,
        "mbpp_plus": 378,
    }
    plus_ids = {p.question_id for p in suites["mbpp_plus"]}
    assert plus_ids == {f"Mbpp/{number}" for number in mbpp.MBPP_PLUS_IDS}
    assert not plus_ids & {p.question_id for p in outside}
    demo = sources.read_problems(
        "kodcode",
        sources.find_files("kodcode", data_dir / "kodcode"),
        "train",
        ReadOptions(kodcode_difficulties=("easy", "medium", "hard")),
    )
    assert len(demo) > 90
    for problem in [*outside, *test, *suites["humaneval_plus"], *suites["mbpp_plus"]]:
        assert python_text.find_function(problem.reference, problem.entry_point)
        assert problem.description
        assert problem.entry_point in problem.question
