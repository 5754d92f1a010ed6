"""A pure module that starts to read files, or a sandbox that imports JAX, breaks quietly."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PURE = (
    *sorted((ROOT / "codea1_jax" / "rl").glob("*.py")),
    ROOT / "codea1_jax" / "coevo" / "rewards.py",
    ROOT / "codea1_jax" / "coevo" / "selection.py",
    ROOT / "codea1_jax" / "coevo" / "summary.py",
    ROOT / "codea1_jax" / "coevo" / "mistake_book.py",
    ROOT / "codea1_jax" / "rollout" / "scheduler.py",
)
IO_MODULES = {"os", "pathlib", "io", "socket", "subprocess", "shutil", "tempfile", "grpc", "urllib"}


def imported(path: pathlib.Path) -> set[str]:
    """Full names of the modules a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.stem)
def test_pure_modules_do_no_io(path):
    assert not {name.partition(".")[0] for name in imported(path)} & IO_MODULES
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "exec", "eval", "print", "input"}


def test_the_scheduler_needs_no_jax():
    names = imported(ROOT / "codea1_jax" / "rollout" / "scheduler.py")
    assert not {name for name in names if name.partition(".")[0] in ("jax", "flax")}


def test_the_service_knows_nothing_of_the_trainer():
    for path in (ROOT / "sandbox_service").rglob("*.py"):
        tops = {name.partition(".")[0] for name in imported(path)}
        assert not tops & {"codea1_jax", "jax", "numpy", "flax"}, path


def test_service_and_client_import_without_the_trainer_extras():
    """The base install has no JAX and no NumPy."""
    program = (
        "import sys\n"
        "for name in ('jax', 'jaxlib', 'numpy', 'flax', 'gin', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "import codea1_jax.sandbox.client, codea1_jax.sandbox.local, sandbox_service.server\n"
        "import sandbox_service.cli\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_model_text_is_never_executed_by_the_trainer():
    for path in (ROOT / "codea1_jax").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("exec", "eval") or path.stem == "embedded_problems", (
                    f"{path}:{node.lineno} calls {node.func.id}"
                )
