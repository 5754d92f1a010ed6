"""`codea1 report`: one or two runs as one static HTML file that needs no server and no network.

What the models wrote is hostile. It never becomes markup: everything is embedded as data, metrics
as JSON without any `<`, `>` or `&`, rollouts as base64 of gzip, one block per step that the page
opens when it is looked at. The script inserts it by `textContent` only, and the page's
Content-Security-Policy allows one script and one style sheet, by their hashes, and no connection.
"""

import base64
import dataclasses
import gzip
import hashlib
import importlib.resources
import itertools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from codea1_jax.errors import UserError
from codea1_jax.obs import compare
from codea1_jax.obs.run_folder import RunFolder, is_count, number, read_objects, read_run

ASSETS = importlib.resources.files("codea1_jax") / "assets" / "report"
SCRIPTS = ("elements.js", "curves.js", "rollouts.js", "problem.js", "page.js")  # one after another
MAX_TEXT = 20_000  # characters of one text (a response, a statement)
MAX_QUESTION = 2_000  # characters of a problem's text that search looks at

# Alarms. The sampler and the learner are one model definition, so what is left between their
# log-probs is rounding: float32 stays below 1e-4, bfloat16 below these.
MISMATCH_LIMITS = {"mismatch_kl": 0.01, "mismatch_mean": 0.05}
FINITE_METRICS = ("loss", "grad_norm")


@dataclasses.dataclass(frozen=True)
class Seen:
    """A problem in one step, for the list of steps it was trained in."""

    step: int
    question_id: str
    question: str
    coder_reward: float | None
    tester_reward: float | None
    num_remembered: int


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """Rollouts of a run that fit into the file.

    Attributes:
      chunks: step -> packed list of problems.
      num_broken: lines left out because they could not be read.
    """

    chunks: dict[int, str]
    seen: list[Seen]
    num_broken: int


def write_report(run_dirs: Sequence[pathlib.Path], output: pathlib.Path, max_mb: float) -> None:
    """Writes the report of one run, or of two side by side.

    Args:
      max_mb: megabytes of compressed rollouts, all runs together. Beyond it, steps are left out
        evenly, and the report says so.

    Raises:
      UserError: not one or two runs, a folder that is no run, or a file that cannot be written.
    """
    if not 1 <= len(run_dirs) <= 2:
        raise UserError(
            f"{len(run_dirs)} runs given; a report shows one or two (codea1 compare takes more)"
        )
    text = render([read_run(path) for path in run_dirs], max_mb)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="ascii")
    except OSError as error:
        raise UserError(f"--output={output}: {error}") from error


def default_output(run_dirs: Sequence[pathlib.Path]) -> pathlib.Path:
    """Inside the first run's folder."""
    name = "report.html"
    if len(run_dirs) > 1:
        name = f"report_vs_{run_dirs[1].resolve().name}.html"
    return run_dirs[0] / name


def render(runs: Sequence[RunFolder], max_mb: float) -> str:
    """The HTML text, ASCII only."""
    budget = int(max_mb * 1e6 / len(runs))
    embedded = [embed_rollouts(run, budget) for run in runs]
    data = {
        "runs": [
            _run_data(name, run, rollouts)
            for name, run, rollouts in zip(_names(runs), runs, embedded, strict=True)
        ],
        "differences": _differences(runs),
    }
    blocks = [
        _block(f"rollouts-{index}-{step}", chunk)
        for index, rollouts in enumerate(embedded)
        for step, chunk in sorted(rollouts.chunks.items())
    ]
    blocks.append(_block("index", pack(problem_index([r.seen for r in embedded]))))
    script, style = "\n".join(map(_asset, SCRIPTS)), _asset("report.css")
    parts = {
        "policy": _policy(script, style),
        "style": style,
        "script": script,
        "data": escaped_json(data),
        "blocks": "\n".join(blocks),
    }
    # One pass over the template alone: what is put in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("index.html"))


def escaped_json(value: Any) -> str:
    """JSON in ASCII that holds no `<`, `>` or `&`, so that nothing in it can end its element.

    Line separators, NUL and lone surrogates come out as escapes too, which JSON.parse reads back.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def pack(value: Any) -> str:
    """Base64 of the gzip of the JSON; equal values give equal text."""
    return base64.b64encode(gzip.compress(escaped_json(value).encode(), 6, mtime=0)).decode()


def _block(name: str, content: str) -> str:
    return f'<script type="text/plain" id="{name}">{content}</script>'


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="ascii")


def _policy(script: str, style: str) -> str:
    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _names(runs: Sequence[RunFolder]) -> list[str]:
    """Folder names, with what is above them where they are the same."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [f"{run.path.resolve().parent.name}/{run.name}" for run in runs]


def _run_data(name: str, run: RunFolder, rollouts: Rollouts) -> dict[str, Any]:
    return {
        "name": name,
        "summary": dataclasses.asdict(compare.summarize(run)),
        "config": clip(run.config),
        "steps": [row["step"] for row in run.rows],
        "metrics": _columns(run.rows),
        "rollout_steps": sorted(rollouts.chunks),
        "alarms": alarms(run.rows),
        "notes": _notes(run, rollouts),
    }


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Metric -> its value in each row; metrics that are never a number are left out."""
    keys = sorted({key for row in rows for key in row if key != "step"})
    columns = {key: [_short(number(row, key)) for row in rows] for key in keys}
    return {key: values for key, values in columns.items() if any(v is not None for v in values)}


def _short(value: float | None) -> float | None:
    """Six significant digits: more than a curve can show."""
    return None if value is None else float(f"{value:.6g}")


def _differences(runs: Sequence[RunFolder]) -> list[list[str]]:
    """[key, value in the first run, value in the second] of what is bound differently."""
    if len(runs) < 2:
        return []
    try:
        configs = [compare.bindings(run.config) for run in runs]
    except UserError:  # a file cut off in the middle: the curves are still worth a look
        return []
    keys = sorted(configs[0].keys() | configs[1].keys())
    rows = [[key, *(config.get(key, "") for config in configs)] for key in keys]
    return [row for row in rows if row[1] != row[2]]


def _notes(run: RunFolder, rollouts: Rollouts) -> list[str]:
    notes = []
    if not run.rows:
        notes.append("metrics.jsonl has no step: the run had not finished one.")
    if run.num_broken_lines:
        notes.append(f"{run.num_broken_lines} unreadable line(s) of metrics.jsonl left out.")
    if rollouts.num_broken:
        notes.append(f"{rollouts.num_broken} unreadable line(s) of rollouts left out.")
    missing = len(run.rollouts) - len(rollouts.chunks)
    if missing:
        notes.append(
            f"Rollouts of {len(rollouts.chunks)} of {len(run.rollouts)} steps are in this file; "
            "--max_mb lets in more."
        )
    return notes


def alarms(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a person should know about: one alarm per kind, with the worst step.

    Each has `text`, `step` (the worst) and `num_steps` (how many steps are concerned).
    """
    found = []

    def add(text: str, hits: list[tuple[float, int]]) -> None:
        if hits:
            worst, step = max(hits)
            found.append({"text": text.format(worst), "step": step, "num_steps": len(hits)})

    def above(key: str, limit: float) -> list[tuple[float, int]]:
        pairs = ((number(row, key), row["step"]) for row in rows)
        return [(value, step) for value, step in pairs if value is not None and value > limit]

    add("No verdict for up to {:.1%} of codes or tests", above("verdicts/unknown_share", 0))
    add("Hold-out evaluation: {:.0f} samples without a verdict", above("eval/coder/unknown", 0))
    for role in ("coder", "tester"):
        for name, limit in MISMATCH_LIMITS.items():
            hits = above(f"{role}/{name}", limit)
            add(f"{role}: {name} {{:.3g}}, above {limit}: sampler and learner disagree", hits)
        add(f"{role}: {{:.0f}} update(s) skipped", above(f"{role}/is_skipped", 0))
        for name in FINITE_METRICS:
            key = f"{role}/{name}"
            add(
                f"{role}: {name} is not finite",
                [(0.0, row["step"]) for row in rows if key in row and number(row, key) is None],
            )
    steps = [row["step"] for row in rows]
    gaps = [(float(b - a - 1), b) for a, b in itertools.pairwise(steps) if b > a + 1]
    add("{:.0f} step(s) missing in metrics.jsonl before this one", gaps)
    return found


def embed_rollouts(run: RunFolder, max_bytes: int) -> Rollouts:
    """Packs steps, spread evenly over the run, until `max_bytes` are used up."""
    steps = list(run.rollouts)
    chunks: dict[int, str] = {}
    seen: list[Seen] = []
    num_broken = used = 0
    for position in spread_order(len(steps)):
        step = steps[position]
        views = []
        for row in read_objects(run.rollouts[step]):
            view = None if row is None else problem_view(row)
            if view is None:
                num_broken += 1
            else:
                views.append(view)
        chunk = pack(views)
        used += len(chunk)
        if used > max_bytes:
            break
        chunks[step] = chunk
        seen += [_seen(step, view) for view in views]
    return Rollouts(chunks, sorted(seen, key=lambda s: (s.step, s.question_id)), num_broken)


def spread_order(count: int) -> Iterator[int]:
    """0 to count - 1, last and first before all, then middles: any beginning is spread evenly."""
    taken: set[int] = set()
    stride = max(count - 1, 1)
    while len(taken) < count:
        for position in range(count - 1, -1, -stride):
            if position not in taken:
                taken.add(position)
                yield position
        if stride == 1:
            break
        stride = (stride + 1) // 2


def _seen(step: int, view: Mapping[str, Any]) -> Seen:
    coder = [code["reward"] for code in view["codes"] if not code["masked"]]
    suites = [suite for group in view["groups"] for suite in group["suites"]]
    tester = [suite["reward"] for suite in suites if not suite["masked"]]
    return Seen(
        step, view["id"], view["question"], _mean(coder), _mean(tester), len(view["history"])
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None


def problem_index(seen: Sequence[Sequence[Seen]]) -> list[dict[str, Any]]:
    """Per problem: id, text for search, and per run the steps it was trained in."""
    problems: dict[str, dict[str, Any]] = {}
    for run, appearances in enumerate(seen):
        for one in appearances:
            entry = problems.setdefault(
                one.question_id,
                {
                    "id": one.question_id,
                    "question": one.question[:MAX_QUESTION],
                    "runs": [[] for _ in seen],
                },
            )
            entry["runs"][run].append(
                [one.step, one.coder_reward, one.tester_reward, one.num_remembered]
            )
    return list(problems.values())


def clip(text: Any) -> str:
    """`text`, cut at MAX_TEXT characters with a note.

    Raises:
      TypeError: it is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"text expected, not {type(text).__name__}")
    if len(text) <= MAX_TEXT:
        return text
    left = len(text) - MAX_TEXT
    return f"{text[:MAX_TEXT]}\n[{left} more characters are not in the report; see the run folder]"


def problem_view(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row of the rollout log as the page wants it; None for a row of another form.

    A code has its reward beside it, and so has a suite; masked ones have no meaning.
    """
    try:
        verdicts, rewards = row["verdicts"], row["rewards"]
        return {
            "id": clip(row["question_id"]),
            "question": clip(row["question"]),
            "reference": clip(row["reference"]),
            "history": [_test(test) for test in verdicts["history"]],
            "codes": [
                {
                    "text": clip(code["text"]),
                    "response": clip(row["code_responses"][m]),
                    "valid": _bool(code["is_valid"]),
                    "truncated": bool(code["is_truncated"]),
                    "reason": clip(code["reason"]),
                    "history": [clip(verdict) for verdict in code["history"]],
                    "reward": _number(rewards["coder"][m]),
                    "masked": not rewards["coder_mask"][m],
                    "pass_hist": _number(rewards["pass_hist"][m]),
                }
                for m, code in enumerate(verdicts["codes"])
            ],
            "groups": [
                {
                    "selected": g in row["selected_groups"],
                    "suites": [_suite(row, suite, g, n) for n, suite in enumerate(group)],
                }
                for g, group in enumerate(verdicts["suites"])
            ],
        }
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def _suite(row: Mapping[str, Any], suite: Mapping[str, Any], g: int, n: int) -> dict[str, Any]:
    rewards, num_codes = row["rewards"], len(row["verdicts"]["codes"])
    targets = suite["targets"]
    if not all(is_count(m) and m < num_codes for m in targets):
        raise ValueError("a suite aims at a code that is not there")
    return {
        "response": clip(row["suite_responses"][g][n]),
        "targets": targets,
        "truncated": bool(suite["is_truncated"]),
        "reward": _number(rewards["tester"][g][n]),
        "masked": not rewards["tester_mask"][g][n],
        "terms": {
            name: _number(rewards[name][g][n]) for name in ("valid", "adversarial", "pass_new")
        },
        "statements": [_statement(statement) for statement in suite["statements"]],
    }


def _statement(statement: Mapping[str, Any]) -> dict[str, Any]:
    view = {key: clip(statement[key]) for key in ("text", "status")}
    for key in ("reason", "call", "expected"):
        if key in statement:
            view[key] = clip(statement[key])
    return view | {"verdicts": [clip(verdict) for verdict in statement.get("verdicts", [])]}


def _test(test: Mapping[str, Any]) -> dict[str, str]:
    return {"call": clip(test["call"]), "expected": clip(test["expected"])}


def _number(value: Any) -> float | None:
    return number({"value": value}, "value")


def _bool(value: Any) -> bool | None:
    return None if value is None else bool(value)
