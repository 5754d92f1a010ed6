"""Golden tests of a problem as data, for the golden-tests baseline and hold-out evaluation.

Handed to the judge as history without suites, they make the coder's reward the share passed.
"""

from codea1_jax.coevo.extract import extract_suite
from codea1_jax.coevo.testcase import (
    InvalidTestError,
    StoredTest,
    parse_test,
    positional_parameters,
)
from codea1_jax.data.record import Problem


def golden_tests(problem: Problem) -> tuple[StoredTest, ...]:
    """The golden tests that are `call == literal`, each call once; others are left out.

    `Oracle.timed` checks them against the reference and adds the time it needs.
    """
    parameters = positional_parameters(problem.reference, problem.entry_point)
    tests: dict[bytes, StoredTest] = {}
    for text in problem.golden_tests:
        suite = extract_suite(f"```python\n{text}\n```", problem.entry_point)
        for statement in suite.statements:
            try:
                parsed = parse_test(statement, problem.entry_point, parameters)
            except InvalidTestError:
                continue
            tests.setdefault(parsed.test.key, StoredTest(parsed.test, parsed.answer))
    return tuple(tests.values())
