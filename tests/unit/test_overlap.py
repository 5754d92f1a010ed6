"""Train/eval overlap: a missed one makes every validation figure worthless."""

import random
import time

import pytest

from codea1_jax.data.overlap import OverlapError, check_overlap, find_overlaps, without_overlap
from codea1_jax.data.record import Problem


def _problem(question_id: str, name: str, text: str) -> Problem:
    return Problem(question_id, name, f"def {name}(): ...", text, f"def {name}():\n    pass\n")


WORDS = [f"word{i}" for i in range(14)]
EVAL = [_problem("Mbpp/2", "similar", " ".join(WORDS))]


@pytest.mark.parametrize(
    ("train", "sign"),
    [
        (_problem("MBPP/2", "other", "text"), "id"),
        (_problem("a", "similar", "text"), "function name"),
        (_problem("a", "other", "Then WORD0, word1; " + " ".join(WORDS[2:13]) + " end"), "n-gram"),
    ],
)
def test_each_sign_is_found(train, sign):
    """Each way a question leaks must be refused on its own."""
    found = find_overlaps([train], EVAL)
    assert [o.sign for o in found] == [sign]
    with pytest.raises(OverlapError, match=r"DataConfig\.overlap") as error:
        check_overlap([train], EVAL)
    assert train.question_id in str(error.value)
    assert "Mbpp/2" in str(error.value)
    assert check_overlap([train], EVAL, is_allowed=True) == found


def test_twelve_shared_words_are_no_overlap():
    """Too eager a check refuses ordinary data and is then switched off."""
    train = _problem("a", "other", " ".join([*WORDS[:12], "different", *WORDS[2:]]))
    assert find_overlaps([train], EVAL) == []
    assert check_overlap([train], EVAL) == []


def test_offenders_are_left_out():
    """Dropping must keep exactly the clean problems, in order."""
    clean = [_problem(f"c{i}", f"g{i}", "text") for i in range(3)]
    train = [clean[0], _problem("x", "similar", "text"), clean[1], EVAL[0], clean[2]]
    kept, overlaps = without_overlap(train, EVAL)
    assert kept == clean
    assert {o.train_id for o in overlaps} == {"x", "Mbpp/2"}


def test_long_error_is_cut():
    """9,688 offenders must not print 9,688 lines."""
    train = [_problem(f"x{i}", "similar", "") for i in range(100)]
    with pytest.raises(OverlapError, match="100 training problems") as error:
        check_overlap(train, EVAL)
    assert "and 80 more" in str(error.value)
    assert len(error.value.overlaps) == 100


def test_ten_thousand_against_the_benchmarks_takes_seconds():
    """The check runs at every start; quadratic time would be switched off."""
    rng = random.Random(0)
    vocabulary = [f"w{i}" for i in range(2000)]

    def make(kind: str, count: int) -> list[Problem]:
        return [
            _problem(f"{kind}{i}", f"{kind}{i}", " ".join(rng.choices(vocabulary, k=120)))
            for i in range(count)
        ]

    train, evaluation = make("t", 10_000), make("e", 542)
    start = time.process_time()
    assert find_overlaps(train, evaluation) == []
    assert time.process_time() - start < 20
