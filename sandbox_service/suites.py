"""Finds the tests in a source text and runs them, one outcome each; in the sandboxed process.

A test is, in this order: a top-level statement that holds an `assert` or a `raise`, or is a call of
something named assert*, check* or test* (where a source has no other tests, any call), in its place
among the other statements, but not under `if __name__ == ...`; a top-level function `test*`; a
method `test*` of a `unittest.TestCase` or of a class named `Test*`, by name. Fixtures, parameters
of pytest and async tests are not supported: such tests end with an error, never with a pass.

Used for tests in a cage of their own (proxy.py) and in the program's interpreter. Imported by the
zygote; standard library only, and no `ast`, which is costly to import.
"""

from __future__ import annotations

import _ast
import builtins
import sys
import time
import types

from sandbox_service import protocol
from sandbox_service.lean import Any, Callable, signal, suppress

_FILE_NAME = "<tests>"
_ONLY_AST = 0x400
_CHECKS = ("assert", "check", "test")
_SCOPES = (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.ClassDef, _ast.Lambda)

_setitimer = signal.setitimer
_ITIMER_PROF = signal.ITIMER_PROF
_process_time_ns = time.process_time_ns


class Suite:
    """The tests of one source: `prepare`, then `run` in a namespace; outcomes go to `reporter`.

    Tests before `first_index` are skipped: their outcomes are known from an earlier process.
    `describe` turns an exception into a record's body; `is_foreign` tells the exceptions that the
    program raised from those of the tests.
    """

    def __init__(
        self,
        reporter: Any,
        describe: Callable[[BaseException, str], bytes],
        source: bytes,
        first_index: int,
        call_cpu_s: float,
        stop_on_first_failure: bool,
        is_foreign: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        self._reporter = reporter
        self._describe = describe
        self._source = source
        self._first_index = first_index
        self._call_cpu_s = call_cpu_s
        self._stop_on_first_failure = stop_on_first_failure
        self._is_foreign = is_foreign
        self.found: list[str] = []  # the names of the program that the tests were given
        self._index = 0
        self._is_stopped = False
        self._lines: list[str] = []
        self._statements: list[Any] = []
        self._functions: list[str] = []
        self._classes: list[str] = []
        self._test_ids: set[int] = set()  # of statements that are tests

    def prepare(self) -> bool:
        """Parses the source and says how many tests it has at least; False if it does not parse."""
        try:
            text = self._source.decode("utf-8", "surrogatepass")
            self._lines = text.split("\n")
            statements = compile(text, _FILE_NAME, "exec", _ONLY_AST, dont_inherit=True).body
            names = _names(statements, _ast.FunctionDef, _ast.AsyncFunctionDef)
            self._functions = [name for name in names if name.startswith("test")]
            self._classes = _names(statements, _ast.ClassDef)
            tests = [s for s in statements if _can_fail(s) or _called_name(s).startswith(_CHECKS)]
            if not tests and not self._functions and not self._classes:
                tests = [s for s in statements if _called_name(s)]
            self._statements = statements
            self._test_ids = {id(s) for s in tests}
            self._plan(len(tests) + len(self._functions), is_all=False)
        except BaseException as error:
            self._reporter.send(protocol.TESTS_ERROR, body=self._describe(error, ""))
            return False
        return True

    def run(
        self,
        namespace: dict[str, Any],
        names: tuple[str, ...] | None = (),
        find: Callable[[str], Any] = vars,
    ) -> None:
        """Runs all tests; what the source raises outside of them is reported as TESTS_ERROR.

        If it is the program that raised there, the tests that are left end with its exception.

        The `names` are put into `namespace` first, as `find` finds them; None: all those that the
        source uses and does not have.
        """
        try:
            if names is None:
                text = "\n".join(self._lines)
                names = _missing_names(compile(text, _FILE_NAME, "exec", dont_inherit=True))
            for name in names:
                with suppress(NameError):
                    namespace[name] = find(name)
                    self.found.append(name)
            for statement in self._statements:
                module = _ast.Module([statement], [])
                code = compile(module, _FILE_NAME, "exec", dont_inherit=True)
                if id(statement) in self._test_ids:
                    self._case(lambda code=code: exec(code, namespace))  # type: ignore[misc]
                else:
                    exec(code, namespace)
            cases = [namespace[name] for name in self._functions if name in namespace]
            cases += _methods(self._classes, namespace)
            self._plan(self._index + len(cases), is_all=True)
        except BaseException as error:
            body = self._describe(error, self._place(error))
            if self._is_foreign(error):
                self._fail_rest(body)
            else:
                self._reporter.send(protocol.TESTS_ERROR, body=body)
            return
        for case in cases:
            self._case(case)

    def _plan(self, num_tests: int, *, is_all: bool) -> None:
        if num_tests > protocol.MAX_TESTS:
            raise ValueError(f"{num_tests} tests; at most {protocol.MAX_TESTS} in one run")
        self._reporter.send(protocol.PLAN, num_tests, is_all)

    def _fail_rest(self, body: bytes) -> None:
        num_tests = max(len(self._test_ids) + len(self._functions), self._index + 1)
        self._reporter.send(protocol.PLAN, num_tests, 1)
        for index in range(max(self._index, self._first_index), num_tests):
            self._reporter.send(protocol.ERROR, index, 0, body)

    def _case(self, action: Callable[[], Any]) -> None:
        index = self._index
        self._index += 1
        if index < self._first_index or self._is_stopped:
            return
        _setitimer(_ITIMER_PROF, self._call_cpu_s)
        start_ns = _process_time_ns()
        try:
            result = action()
            if isinstance(result, types.CoroutineType):
                result.close()
                raise TypeError("async tests are not supported")
            kind, body = protocol.VALUE, b""
        except BaseException as error:
            is_failure = isinstance(error, AssertionError) and not self._is_foreign(error)
            kind = protocol.FAILED if is_failure else protocol.ERROR
            body = self._describe(error, self._place(error))
        cpu_us = (_process_time_ns() - start_ns) // 1000
        _setitimer(_ITIMER_PROF, 0)
        self._is_stopped = self._stop_on_first_failure and kind != protocol.VALUE
        self._reporter.send(kind, index, cpu_us, body)

    def _place(self, error: BaseException) -> str:
        """The last line of the tests that an exception passed through."""
        number = 0
        step = error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename == _FILE_NAME:
                number = step.tb_lineno
            step = step.tb_next
        if not 0 < number <= len(self._lines):
            return ""
        return f"line {number}: {self._lines[number - 1].strip()[:200]}"


def _methods(names: list[str], namespace: dict[str, Any]) -> list[Callable[[], Any]]:
    unittest = sys.modules.get("unittest")
    cases: list[Callable[[], Any]] = []
    for name in names:
        kind = namespace.get(name)
        if not isinstance(kind, type):
            continue
        methods = [m for m in dir(kind) if m.startswith("test") and callable(getattr(kind, m))]
        if unittest is not None and issubclass(kind, unittest.TestCase):
            cases += [lambda kind=kind, m=m: _run_test_case(kind, m) for m in methods]  # type: ignore[misc]
        elif name.startswith("Test"):
            cases += [lambda kind=kind, m=m: getattr(kind(), m)() for m in methods]  # type: ignore[misc]
    return cases


def _missing_names(code: types.CodeType) -> tuple[str, ...]:
    """Names that some code of the source reads but none of it, and no builtin, defines."""
    used: set[str] = set()
    left = [code]
    while left:
        part = left.pop()
        used.update(part.co_names)
        left += [const for const in part.co_consts if type(const) is types.CodeType]
    return tuple(sorted(used - set(dir(builtins))))


def _names(statements: list[Any], *kinds: type) -> list[str]:
    return list(dict.fromkeys(s.name for s in statements if type(s) in kinds))


def _called_name(statement: Any) -> str:
    """The last name of what a call statement calls; "" for other statements."""
    if type(statement) is not _ast.Expr or type(statement.value) is not _ast.Call:
        return ""
    target = statement.value.func
    return getattr(target, "attr", None) or getattr(target, "id", None) or "call"


def _can_fail(statement: Any) -> bool:
    """Whether a top-level statement holds an assert or a raise outside of definitions."""
    condition = getattr(statement, "test", None)
    if type(condition) is _ast.Compare and getattr(condition.left, "id", "") == "__name__":
        return False  # never runs here: it would pass whatever the program does
    left = [statement]
    while left:
        node = left.pop()
        kind = type(node)
        if kind in (_ast.Assert, _ast.Raise):
            return True
        if kind in _SCOPES:
            continue
        for name in node._fields:
            child = getattr(node, name, None)
            parts = child if type(child) is list else [child]
            left += [part for part in parts if isinstance(part, _ast.AST)]
    return False


def _run_test_case(kind: Any, method: str) -> None:
    """Runs one method with its fixtures; raises what it or they failed with."""
    import unittest

    problems: list[BaseException] = []

    class Result(unittest.TestResult):
        def addError(self, test: Any, err: Any) -> None:
            problems.append(err[1])

        addFailure = addError

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                problems.append(err[1])

        def addSkip(self, test: Any, reason: str) -> None:
            problems.append(unittest.SkipTest(reason))

        def addUnexpectedSuccess(self, test: Any) -> None:
            problems.append(AssertionError("an expected failure did not happen"))

    unittest.TestSuite([kind(method)]).run(Result())
    if problems:
        raise problems[0]
