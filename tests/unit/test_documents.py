"""What the documents name exists: links, files, tests, commands, flags and configuration keys."""

import contextlib
import dataclasses
import io
import pathlib
import re

import pytest

from codea1_jax import cli, config, sft
from codea1_jax.data.sources import ReadOptions
from sandbox_service import cli as sandbox_cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    ROOT / "sandbox_service/README.md",
]
CONFIGURATIONS = sorted(ROOT.glob("gin/*/*.gin"))  # their headers quote commands
TEXTS = [*DOCUMENTS, *CONFIGURATIONS]

# Folders at the top; elsewhere files with an ending (`models/sharding.py` is one of the package).
PATH = re.compile(
    r"(?<![\w/.:<>~$-])("
    r"(?:codea1_jax|sandbox_service|gin|launch|docs|tests|\.ci)/[\w./-]*\w"
    r"|[\w-]+/[\w/-]+\.(?:py|gin|sh|md|json|yaml|proto)\b"
    r"|[\w-]+\.sh\b)"
)
BASES = ("", "codea1_jax", "sandbox_service", "sandbox_service/proto", "launch")
TEST = re.compile(r"^test_\w+$", re.M)  # alone in its backticks
FOREIGN = {"test_info"}  # a column of KodCode
KEY = re.compile(r"\b([A-Z]\w+)\.([a-z]\w+)\b")
MACRO = re.compile(r"--gin\.([A-Z][A-Z_]*)=")
COMMAND = re.compile(r"(?<![\w./-])(?<!-n )(codea1|codea1-sandbox) ([a-z]+)([^\n]*)")

FIELDS = {
    name: {field.name for field in dataclasses.fields(one)}
    for module in (config, sft)
    for name, one in {**vars(module), "ReadOptions": ReadOptions}.items()
    if isinstance(one, type) and dataclasses.is_dataclass(one)
}
MACROS = set(re.findall(r"%([A-Z_]+)", "\n".join(path.read_text() for path in CONFIGURATIONS)))


def quoted(path: pathlib.Path) -> str:
    """What stands in backticks, code blocks and headers; continued lines are joined."""
    text = path.read_text()
    if path.suffix == ".gin":
        return "\n".join(re.findall(r"^#(.*)", text.replace("\\\n#", " "), re.M))
    # A test of the launchers compares these with the scripts.
    text = re.sub(r"<!-- dry runs: start -->.*<!-- dry runs: end -->", "", text, flags=re.S)
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    indented = re.findall(r"^ {4}(\S.*)", rest, re.M)
    spans = [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", rest)]
    return "\n".join([*blocks, *indented, *spans]).replace("\\\n", " ")


def help_of(program: str, *words: str) -> str:
    """What `--help` prints; "" where there is no such subcommand."""
    out = io.StringIO()
    main = {"codea1": cli.main, "codea1-sandbox": sandbox_cli.main}[program]
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
        pytest.raises(SystemExit),
    ):
        main([*words, "--help"])
    return out.getvalue()


def ids(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(document: pathlib.Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    relative = [link for link in links if "://" not in link]
    assert [link for link in relative if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_files_exist(document: pathlib.Path) -> None:
    bases = [ROOT / base for base in BASES] + [document.parent]
    named = PATH.findall(quoted(document))
    assert [one for one in named if not any((base / one).exists() for base in bases)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_tests_exist(document: pathlib.Path) -> None:
    source = "\n".join(path.read_text() for path in ROOT.glob("tests/*/*.py"))
    named = TEST.findall(quoted(document))
    assert [one for one in named if f"def {one}(" not in source and one not in FOREIGN] == []


@pytest.mark.parametrize("text", TEXTS, ids=ids)
def test_commands_have_their_flags(text: pathlib.Path) -> None:
    for program, command, line in COMMAND.findall(quoted(text)):
        usage = help_of(program, command)
        assert usage, f"{program} has no {command}"
        for part in re.findall(r"\{([\w,]+)\} \.\.\.", usage):  # of `codea1 bench`
            usage += "".join(help_of(program, command, one) for one in part.split(","))
        flags = re.findall(r"(?<!\S)--(?!gin\.)[\w-]+", line.split(" # ")[0])
        unknown = [flag for flag in flags if not re.search(rf"{flag}(?![\w-])", usage)]
        assert unknown == [], f"{program} {command}"


@pytest.mark.parametrize("text", TEXTS, ids=ids)
def test_configuration_keys_exist(text: pathlib.Path) -> None:
    words = quoted(text)
    keys = [(name, key) for name, key in KEY.findall(words) if name in FIELDS]
    assert [f"{name}.{key}" for name, key in keys if key not in FIELDS[name]] == []
    named = [name for name, _ in KEY.findall(words) if name.endswith("Config")]
    assert [name for name in named if name not in FIELDS] == []
    assert [macro for macro in MACRO.findall(words) if macro not in {*MACROS, "NAME"}] == []


def test_the_checks_find_what_they_look_for() -> None:
    """Each pattern has matches in the documents as they are: none of them is blind."""
    words = "\n".join(quoted(text) for text in TEXTS)
    assert "gin/runs/smoke.gin" in PATH.findall(words)
    assert "models/sharding.py" in PATH.findall(words)
    assert "test_logp_equals_rescoring" in TEST.findall(words)
    assert ("TrainConfig", "num_steps") in KEY.findall(words)
    assert "SEED" in MACRO.findall(words)
    assert {"train", "plan", "bench", "serve"} <= {
        command for _, command, _ in COMMAND.findall(words)
    }
    assert help_of("codea1", "fly") == ""
