"""Presets and switches. If this breaks, a run trains another method than its config says."""

import dataclasses

import pytest

from codea1_jax.coevo.config import CoEvolutionConfig, official, paper


def test_paper_follows_the_text():
    config = paper()
    assert config == CoEvolutionConfig()
    assert (config.tests_per_suite, config.groups_kept, config.alpha) == (5, 1, 0.5)
    assert (config.num_solutions, config.num_suites) == (8, 8)
    assert config.adv_denominator == "tests_per_suite"
    assert (config.validity, config.empty_suite, config.book_rule) == ("strict", "skip", "per_step")
    assert (config.executed_statements, config.num_executed) == ("first_k", 5)
    assert (config.non_printable_penalty, config.filter_zero_variance) == ("off", False)
    assert config.keep_wrong_answer
    assert config.count_dropped


def test_official_follows_the_released_system():
    config = official()
    assert (config.tests_per_suite, config.groups_kept, config.alpha) == (8, 1, 0.5)
    assert (config.validity, config.empty_suite) == ("official_min", "zero")
    assert (config.book_rule, config.book_cap) == ("official", 0)
    assert (config.executed_statements, config.num_executed) == ("all", 64)
    assert config.non_printable_penalty == "ascii"
    assert not config.count_dropped


def test_overrides():
    assert paper(tests_per_suite=3).num_executed == 3
    assert official(alpha=0.0).alpha == 0.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tests_per_suite", 0), ("tests_per_suite", 2.5), ("tests_per_suite", True),
        ("tests_per_suite", 65), ("num_solutions", 0), ("num_suites", -1), ("groups_kept", 9),
        ("alpha", 1.5), ("alpha", "0.5"), ("adv_denominator", "k"), ("validity", "lax"),
        ("empty_suite", None), ("book_rule", "steps"), ("retrieval", "best"), ("book_cap", -1),
        ("keep_wrong_answer", 1), ("white_box", "no"), ("prompt_style", "long"),
        ("max_unknown_share", -0.1), ("non_printable_penalty", "on"),
    ],
)  # fmt: skip
def test_errors_name_the_key(key, value):
    with pytest.raises(ValueError, match=key):
        paper(**{key: value})


def test_configuration_is_hashable_and_frozen():
    assert hash(paper()) == hash(paper())
    with pytest.raises(dataclasses.FrozenInstanceError):
        paper().alpha = 1.0
