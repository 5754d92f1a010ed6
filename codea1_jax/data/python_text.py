"""Facts read off Python source without running it: signatures, docstrings, plain asserts."""

import ast
import copy
import warnings


def parse(source: str) -> ast.Module | None:
    """The syntax tree, or None when the text is not Python (or too deep, or holds NUL)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "invalid escape sequence" in other people's text
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def find_function(source: str, name: str) -> ast.FunctionDef | None:
    """The last top-level function of that name (the one a caller gets)."""
    tree = parse(source)
    if tree is None:
        return None
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    return found[-1] if found else None


def signature_line(function: ast.FunctionDef) -> str:
    """`def name(args) -> returns:` on one line, without decorators."""
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"def {function.name}({ast.unparse(function.args)}){returns}:"


def normal_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def called_functions(source: str, defined: set[str]) -> list[str]:
    """Names out of `defined` in the order in which the text calls them, outermost first."""
    tree = parse(source)
    if tree is None:
        return []
    return [
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in defined
    ]


class _Inline(ast.NodeTransformer):
    """Replaces names by the literals they were assigned."""

    def __init__(self, values: dict[str, ast.expr]):
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.values.get(node.id, node))


def _inlined(node: ast.expr, values: dict[str, ast.expr]) -> ast.expr:
    return _Inline(values).visit(copy.deepcopy(node)) if values else node


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        # `set()` and `float("inf")` are the two plain values without a literal of their own.
        return ast.unparse(node) in ("set()", "float('inf')", "-float('inf')", "float('nan')")
    return True


def plain_asserts(source: str, entry_point: str) -> list[str]:
    """Every `assert entry_point(literals) == literal` of a test text, one string each.

    Looks at the top level and into `test...` functions (pytest style); literals bound to a name
    before are put in place; `is True/False/None` reads as `==`. Asserts of any other form are left
    out: they cannot be kept as data.
    """
    tree = parse(source)
    if tree is None:
        return []
    found: list[str] = []
    scopes: list[list[ast.stmt]] = [tree.body]
    scopes += [
        n.body for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test")
    ]
    for body in scopes:
        values: dict[str, ast.expr] = {}
        for statement in body:
            if isinstance(statement, ast.Assign):
                _bind(statement, values)
            elif isinstance(statement, ast.Assert):
                found += _plain_assert(statement, entry_point, values)
            else:  # it may change what a name holds (`xs.append(1)`)
                for name in ast.walk(statement):
                    if isinstance(name, ast.Name):
                        values.pop(name.id, None)
    return list(dict.fromkeys(found))


def _bind(statement: ast.Assign, values: dict[str, ast.expr]) -> None:
    value = _inlined(statement.value, values)
    for target in statement.targets:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                values.pop(name.id, None)
        if isinstance(target, ast.Name) and _is_literal(value):
            values[target.id] = value


def _plain_assert(
    statement: ast.Assert, entry_point: str, values: dict[str, ast.expr]
) -> list[str]:
    test = statement.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return []
    call, right = test.left, test.comparators[0]
    is_identity = (
        isinstance(test.ops[0], ast.Is)
        and isinstance(right, ast.Constant)
        and (right.value is None or isinstance(right.value, bool))
    )
    if not (isinstance(test.ops[0], ast.Eq) or is_identity):
        return []
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        return []
    if call.func.id != entry_point:
        return []
    args = [_inlined(arg, values) for arg in call.args]
    keywords = [ast.keyword(arg=k.arg, value=_inlined(k.value, values)) for k in call.keywords]
    expected = _inlined(right, values)
    plain = [*args, *(k.value for k in keywords), expected]
    if any(k.arg is None for k in keywords) or not all(_is_literal(node) for node in plain):
        return []
    bare = ast.Call(func=ast.Name(id=entry_point, ctx=ast.Load()), args=args, keywords=keywords)
    return [f"assert {ast.unparse(bare)} == {ast.unparse(expected)}"]
