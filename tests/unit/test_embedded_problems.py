"""A wrong reference or an ambiguous text here teaches both roles the wrong thing from step one."""

import ast
import json

import pytest

from codea1_jax.data import embedded_problems as embedded
from codea1_jax.data.mutations import mutants
from codea1_jax.data.record import Problem


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return embedded.load_embedded()


def test_asset_is_what_the_generator_writes(problems):
    """Two training problems a family and the first hold-out ones; the draw is sequential."""
    made = embedded.embedded_set(num_train=24, num_test=80)
    by_id = {problem.question_id: problem for problem in problems}
    for row in made:
        assert by_id[row.problem.question_id] == row.problem
    assert [problem.split for problem in problems].count("train") == 300
    assert [problem.split for problem in problems].count("test") == 80


def test_ids_entry_points_and_texts_are_unique(problems):
    for field in ("question_id", "entry_point", "question", "description"):
        assert len({getattr(problem, field) for problem in problems}) == len(problems), field


def test_golden_tests_are_literal_and_hold_for_the_reference(problems):
    for problem in problems:
        assert len(problem.golden_tests) >= 5
        assert len(set(problem.golden_tests)) == len(problem.golden_tests)
        function = embedded.load(problem.reference, problem.entry_point)
        for test in problem.golden_tests:
            (statement,) = ast.parse(test).body
            assert isinstance(statement, ast.Assert)
            compare = statement.test
            assert isinstance(compare, ast.Compare)
            call = compare.left
            assert isinstance(call, ast.Call)
            assert isinstance(call.func, ast.Name)
            assert call.func.id == problem.entry_point
            args = [ast.literal_eval(arg) for arg in call.args]
            expected = ast.literal_eval(compare.comparators[0])
            value = function(*args)
            assert value == expected
            assert type(value) is type(expected)


def test_golden_tests_expose_moved_boundaries_and_constants(problems):
    """Every single fault of the reference that changes some small answer fails a golden test."""
    for problem in problems[::7]:
        calls = [_parts(test) for test in problem.golden_tests]
        grid = _grid(problem)
        for mutant in mutants(problem.reference):
            if all(_same(problem, mutant, args, value) for args, value in grid):
                continue  # equivalent as far as the grid sees
            assert not all(_same(problem, mutant, args, value) for args, value in calls), (
                problem.question,
                mutant,
            )


def _parts(test: str) -> tuple[list, object]:
    compare = ast.parse(test).body[0].test  # type: ignore[attr-defined]
    args = [ast.literal_eval(arg) for arg in compare.left.args]
    return args, ast.literal_eval(compare.comparators[0])


def _grid(problem: Problem) -> list[tuple[list, object]]:
    params = problem.signature.partition("(")[2].rstrip("):").split(", ")
    kinds = {
        "x": list(range(21)),
        "y": [0, 2, 5, 7],
        "n": [0, 1, 2, 3, 4],
        "xs": [[], *([n] for n in range(10)), [1, 5, 9], [9, 4, 0, 2], [3, 3, 8, 1, 6]],
        "s": ["", "x", "y", "z", "xyz", "xxyy", "zzzq", "wq"],
    }
    grid: list[list] = [[]]
    for name in params:
        grid = [[*row, value] for row in grid for value in kinds[name]]
    function = embedded.load(problem.reference, problem.entry_point)
    return [(args, function(*args)) for args in grid]


def _same(problem: Problem, program: str, args: list, expected: object) -> bool:
    try:
        return embedded.load(program, problem.entry_point)(*args) == expected
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False


def test_hold_out_shares_no_text_with_training_or_warm_up(problems):
    held = [problem for problem in problems if problem.split == "test"]
    train = [problem for problem in problems if problem.split == "train"]
    held_runs = set().union(*(embedded.word_runs(problem.description) for problem in held))
    train_runs = set().union(*(embedded.word_runs(problem.description) for problem in train))
    assert not held_runs & train_runs
    warm_up = embedded.warm_up_set(500, seed=3, num_tests=6, held_out=held)
    assert not {row.problem.description for row in warm_up} & {p.description for p in held}
    assert not {row.problem.entry_point for row in warm_up} & {p.entry_point for p in held}


def test_solutions_of_a_problem_agree(problems):
    held = [problem for problem in problems if problem.split == "test"]
    for row in embedded.warm_up_set(240, seed=1, num_tests=20, held_out=held):
        for solution in row.solutions:
            for test in row.problem.golden_tests:
                args, expected = _parts(test)
                assert _same(row.problem, solution, args, expected), (solution, test)
        for slip in row.slips:
            assert slip not in row.solutions


def test_rows_survive_json(problems):
    for problem in problems[:5]:
        assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem
