"""Reading gin files and flags into a configuration object, with errors a person can act on."""

import difflib
import io
import pathlib
import re
import tokenize
from collections.abc import Sequence
from typing import Any

import gin

from codea1_jax.errors import UserError

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


class ConfigurationError(UserError):
    """A configuration that cannot run; names the key and the fix."""


def resolve_path(path: str) -> pathlib.Path:
    """A path of a configuration: from the working directory, else from the repository's root."""
    here = pathlib.Path(path).expanduser()
    there = REPOSITORY / path
    return there if not here.exists() and there.exists() else here


def flag_bindings(unknown_flags: Sequence[str]) -> list[str]:
    """Turns `--gin.NAME=VALUE` flags into gin bindings.

    Raises:
      ConfigurationError: a flag of another form.
    """
    bindings = []
    for flag in unknown_flags:
        match = re.fullmatch(r"--gin\.([^=]+)=(.*)", flag, flags=re.DOTALL)
        if match is None:
            raise ConfigurationError(
                f"unknown flag {flag!r}; overrides are written --gin.NAME=VALUE, for example "
                "--gin.SEED=1 or --gin.TrainConfig.num_steps=10"
            )
        bindings.append(f"{match[1]} = {match[2]}")
    return bindings


def build(root: type, files: Sequence[str], bindings: Sequence[str] = ()) -> Any:
    """Parses `files` and `bindings` and builds `root`, a registered configurable class.

    Files are looked up from the working directory, then from the repository's root.

    Raises:
      ConfigurationError: a missing file, a syntax error, an unknown name, an undefined macro, a
        required value without one, or a value that a constructor refuses.
    """
    gin.clear_config()
    for folder in (pathlib.Path.cwd(), REPOSITORY):
        gin.add_config_file_search_path(str(folder))
    try:
        gin.parse_config_files_and_bindings(list(files), list(bindings), finalize_config=False)
    except OSError as error:
        raise ConfigurationError(f"--gin_file: {error}") from error
    except (
        SyntaxError, tokenize.TokenError, ValueError, TypeError, AttributeError, NameError
    ) as error:  # fmt: skip
        raise ConfigurationError(_parse_message(error, bindings)) from error
    _check_macros(bindings)
    try:
        return gin.get_configurable(root)()
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(_build_message(error)) from error


def bound_config() -> str:
    """The configuration that was parsed, as gin text that parses to itself."""
    return gin.config_str(max_line_length=100)


def _parse_message(error: Exception, bindings: Sequence[str]) -> str:
    if isinstance(error, tokenize.TokenError):
        broken = [binding for binding in bindings if not _is_tokenized(binding)]
        return f"{broken[0] if broken else '--gin_file'}: {error.args[0]}"
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError) or "malformed" in text or "parse" in text.lower():
        for binding in bindings:
            value = binding.partition("=")[2].strip()
            if re.fullmatch(r"[\w./~-]+", value) and not re.fullmatch(
                r"-?[\d.eE+-]+|True|False|None", value
            ):
                text += f"; strings need quotes inside the flag: --gin.NAME='\"{value}\"'"
    return text


def _is_tokenized(binding: str) -> bool:
    try:
        list(tokenize.generate_tokens(io.StringIO(binding).readline))
    except tokenize.TokenError:
        return False
    return True


def _check_macros(bindings: Sequence[str]) -> None:
    """Names what gin would notice late or never: undefined, unused and valueless macros."""
    text = gin.config_str()
    defined = set(re.findall(r"^([A-Za-z_]\w*) = ", text, flags=re.MULTILINE))
    code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for name in re.findall(r"%([A-Za-z_][\w.]*)", code):
        if name in defined or name.startswith("gin."):
            continue
        user = re.search(rf"^(\S+) = .*%{re.escape(name)}\b", code, flags=re.MULTILINE)
        where = f" (used by {user[1]})" if user else ""
        raise ConfigurationError(
            f"macro {name}{where} is not defined; set it in the gin file or with --gin.{name}=VALUE"
        )
    used = set(re.findall(r"%([A-Za-z_]\w*)", code))
    for binding in bindings:
        name = binding.partition("=")[0].strip()
        if re.fullmatch(r"\w+", name) and name not in used:
            close = difflib.get_close_matches(name, used, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigurationError(f"--gin.{name}: no configuration file uses {name}{hint}")
    match = re.search(r"^([A-Za-z_][\w./]*) = %gin\.REQUIRED", code, flags=re.MULTILINE)
    if match:
        raise ConfigurationError(f"{match[1]} has no value; set it with --gin.{match[1]}=VALUE")


def _build_message(error: Exception) -> str:
    """The message without gin's trailer of nested 'In call to configurable' lines."""
    text = str(error)
    match = re.search(r"Required bindings for `(\S+)` not provided in config: \['(\w+)'", text)
    if match:
        return f"{match[1]}.{match[2]} has no value; set it with --gin.{match[1]}.{match[2]}=VALUE"
    call = re.search(
        r"In call to configurable '([^']+)'(?: \([^)]*\))?( in scope '([^']+)')?", text
    )
    text = text.split("\n  In call to configurable")[0].strip()
    if call and call[1] not in text:
        scope = f"{call[3]}/" if call[3] else ""
        text = f"{scope}{call[1]}: {text}"
    return text
