"""What the coder and the tester are asked, as chat messages.

The tester's prompt has the five sections of Code-A1 (arXiv 2603.15611), appendix A.1: role, task,
strategy, context, output format. The wording is our own. Leaves out: tokenisation (the caller's)
and multi-turn dialogue.
"""

import ast
import dataclasses
import re
from collections.abc import Callable
from typing import Literal

from codea1_jax.coevo.config import CoEvolutionConfig
from codea1_jax.coevo.syntax import parse_python
from codea1_jax.data.record import Problem

Message = dict[str, str]

CODER_SYSTEM = "You are a programming assistant that completes Python functions."
TESTER_SYSTEM = "You are a programming assistant that writes test cases for Python functions."


def coder_messages(problem: Problem) -> list[Message]:
    """Messages that ask for a complete solution in one python block and nothing else."""
    return [
        {"role": "system", "content": CODER_SYSTEM},
        {
            "role": "user",
            "content": (
                "Read the question below and complete the function it asks for. Answer with the "
                "complete function, its imports included, inside one '```python ... ```' block "
                "and write nothing else.\n\n"
                f"Question:\n{problem.question.strip()}"
            ),
        },
    ]


def tester_messages(
    problem: Problem,
    code: str | None,
    num_tests: int,
    style: Literal["attack", "simple"] = "attack",  # noqa: PT028 (not a test function)
    predicted_answer: bool = True,  # noqa: PT028
) -> list[Message]:
    """Messages that ask for a suite of `num_tests` tests.

    Args:
      problem: the question; its reference solution is never shown.
      code: the solution under attack, always presented as buggy (white box); None for black box,
        where the function's name and signature are shown instead.
      num_tests: K.
      style: "attack" is the five-section prompt, "simple" the short one used for fine-tuning.
      predicted_answer: False asks for bare calls without the expected answer.
    """
    if style == "simple":
        content = _simple_request(problem, code, num_tests, predicted_answer)
    elif style == "attack":
        content = _attack_request(problem, code, num_tests, predicted_answer)
    else:
        raise ValueError(f"style={style!r} is not one of 'attack', 'simple'")
    return [
        {"role": "system", "content": TESTER_SYSTEM},
        {"role": "user", "content": content},
    ]


def _test_form(predicted_answer: bool) -> str:
    if predicted_answer:
        return "assert function_name(parameters) == answer"
    return "function_name(parameters)"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _attack_request(
    problem: Problem, code: str | None, num_tests: int, predicted_answer: bool
) -> str:
    kind = "assertion-based test" if predicted_answer else "test call"
    wanted = _plural(num_tests, kind)
    if code is None:
        role = (
            "You find inputs on which a wrong implementation of the `Question` gives itself away."
        )
        task = (
            f"Write {wanted} for the function described in the `Question`, so that "
            "implementations with defects fail them."
        )
        gaps = (
            "**Aim at likely mistakes.** Think of how a solution may be simpler than the "
            "`Question` demands: a forgotten constraint, a misread rule, an oversimplified case. "
            "Build parameters that hit exactly these points."
        )
    else:
        role = (
            "You find inputs on which the `Buggy Code` behaves differently from what the "
            "`Question` demands."
        )
        task = (
            f"Write {wanted} for the function in the `Buggy Code`, so that they reveal its defects."
        )
        gaps = (
            "**Attack the logic gaps.** Look for places where the code is simpler than the "
            "`Question`: a missing constraint, a misread rule, an oversimplified case. Build "
            "parameters that hit exactly these points."
        )
    strategy = "\n".join(
        [
            f"1. {gaps}",
            "2. **Prefer demanding parameters.** Boundary values, deep loops, combined "
            "conditions and rarely taken branches; put every branch under stress.",
            "3. **No redundancy.** No brute force and no trivial variations. Only the first "
            f"{_plural(num_tests, 'test')} will be evaluated, so order and quality matter more "
            "than number.",
        ]
    )
    sections = [
        ("Role", role),
        ("Task", task),
        ("Strategy", strategy),
        ("Context", _context(problem, code)),
        (
            "Output Format",
            f"Put all {kind}s inside ONE '```python ... ```' block, one per line, each of the form "
            f"'{_test_form(predicted_answer)}', with literal values and nothing else.",
        ),
    ]
    return "\n\n".join(f"# {title}\n{body}" for title, body in sections)


def _simple_request(
    problem: Problem, code: str | None, num_tests: int, predicted_answer: bool
) -> str:
    kind = "assert test" if predicted_answer else "test call"
    target = "the Buggy Code" if code is not None else "implementations of the Question"
    lines = [
        f"Given the following Question, write {_plural(num_tests, kind)} that reveal defects in "
        f"{target}. Each has the form '{_test_form(predicted_answer)}' and stands on a line of its "
        "own inside one '```python ... ```' block. Write nothing else.",
        "",
        f"Question:\n{problem.description.strip()}",
    ]
    if code is None:
        lines += ["", f"Function:\n{signature_line(problem)}"]
    else:
        lines += ["", f"Buggy Code:\n{code.strip()}"]
    return "\n".join(lines)


def _context(problem: Problem, code: str | None) -> str:
    question = f"Question:\n{problem.description.strip()}"
    if code is None:
        signature = signature_line(problem)
        return f"{question}\n\nFunction:\n{fenced(signature)}"
    return f"{question}\n\nBuggy Code:\n{fenced(code.strip())}"


def fenced(code: str) -> str:
    """`code` in a python fence that the code itself cannot close."""
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{code}\n{fence}"


def signature_line(problem: Problem) -> str:
    """`def name(args):` of the problem, taken from its reference when the record has none."""
    if problem.signature.strip():
        return problem.signature.strip()
    tree = parse_python(problem.reference)
    if tree is not None:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == problem.entry_point:
                arguments = ast.unparse(node.args)
                returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
                return f"def {node.name}({arguments}){returns}:"
    return f"def {problem.entry_point}(...):"


def strip_prose(code: str) -> str:
    """`code` without comments and docstrings; unparsable code loses whole-line comments only."""
    tree = parse_python(code)
    if tree is None:
        kept = [line for line in code.splitlines() if not line.lstrip().startswith("#")]
        return "\n".join(kept)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.body = [item for item in node.body if not _is_prose(item)]
            if not node.body and not isinstance(node, ast.Module):
                node.body = [ast.Pass()]
    try:
        return ast.unparse(tree)
    except (RecursionError, ValueError, MemoryError):
        return code


def _is_prose(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@dataclasses.dataclass(frozen=True)
class FittedPrompt:
    """A tester prompt made to fit a token limit.

    Attributes:
      messages: the chat messages.
      num_tokens: their length in tokens.
      is_code_cut: the end of the code was left out.
      is_too_long: even without code the prompt exceeds the limit (the question is too long).
    """

    messages: list[Message]
    num_tokens: int
    is_code_cut: bool
    is_too_long: bool


CUT_MARK = "# ... (rest of the code left out)"


def fit_tester_prompt(
    count_tokens: Callable[[list[Message]], int],
    problem: Problem,
    code: str | None,
    num_tests: int,
    max_tokens: int,
    style: Literal["attack", "simple"] = "attack",
    predicted_answer: bool = True,
) -> FittedPrompt:
    """The tester prompt, with the end of the code cut until it fits `max_tokens`. Never raises.

    Args:
      count_tokens: length in tokens of templated messages.
    """

    def build(shown: str | None) -> tuple[list[Message], int]:
        messages = tester_messages(problem, shown, num_tests, style, predicted_answer)
        return messages, count_tokens(messages)

    messages, length = build(code)
    if length <= max_tokens or code is None:
        return FittedPrompt(messages, length, False, length > max_tokens)
    low, high = 0, len(code)  # characters kept: `low` is the best known to fit
    fitted, fitted_length = build(CUT_MARK)
    if fitted_length > max_tokens:
        return FittedPrompt(fitted, fitted_length, True, True)
    while high - low > 1:
        middle = (low + high) // 2
        kept = code[:middle].rstrip()
        candidate, candidate_length = build(f"{kept}\n{CUT_MARK}")
        if candidate_length <= max_tokens:
            low, fitted, fitted_length = middle, candidate, candidate_length
        else:
            high = middle
    return FittedPrompt(fitted, fitted_length, True, False)


def configured_tester_prompt(
    config: CoEvolutionConfig,
    count_tokens: Callable[[list[Message]], int],
    problem: Problem,
    code: str | None,
    max_tokens: int,
) -> FittedPrompt:
    """The tester prompt that `config` asks for: K, style, white or black box, comments or not."""
    shown = code if config.white_box else None
    if shown is not None and config.strip_comments:
        shown = strip_prose(shown)
    return fit_tester_prompt(
        count_tokens,
        problem,
        shown,
        config.tests_per_suite,
        max_tokens,
        config.prompt_style,
        config.predicted_answer,
    )
