"""Runs side by side: one table and one plot, averaged over seeds.

Runs whose `config.gin` differs in nothing but seeds form a group. A group's figure is the mean over
its runs and their spread, the sample standard deviation (n - 1), which one run does not have.
Groups are called A, B, ...; by their folders where these are named NAME_SEED.
"""

import csv
import dataclasses
import io
import pathlib
import re
import statistics
import tokenize
from collections.abc import Iterable, Mapping, Sequence

from gin import config_parser

from codea1_jax.errors import UserError
from codea1_jax.obs.run_folder import RunFolder, number, read_run

PASS_RATE = "eval/coder/pass_rate"
TAIL_STEPS = 5  # the tester's shares are noisy step by step
# Where these differ, pass rates are of different problems.
HOLDOUT_KEYS = ("EvalConfig.suite", "EvalConfig.path", "EvalConfig.max_problems")


@dataclasses.dataclass(frozen=True)
class Column:
    """A figure of a run: its field in `RunSummary`, its title, and how it is written."""

    field: str
    title: str
    scale: float = 1.0
    digits: int = 1

    def text(self, values: Sequence[float]) -> str:
        if not values:
            return ""
        mean = f"{statistics.mean(values) * self.scale:.{self.digits}f}"
        if len(values) < 2:
            return mean
        return f"{mean} ± {statistics.stdev(values) * self.scale:.{self.digits}f}"


COLUMNS = (
    Column("first_pass_rate", "hold-out at start, %", 100),
    Column("final_pass_rate", "hold-out at end, %", 100),
    Column("best_pass_rate", "hold-out at best, %", 100),
    Column("valid_share", f"valid tests (last {TAIL_STEPS} steps), %", 100),
    Column("exposing_share", f"exposing tests (last {TAIL_STEPS} steps), %", 100),
    Column("book_size", "tests in the book at end", digits=0),
    Column("steps", "steps", digits=0),
    Column("tokens", "trained tokens, millions", 1e-6, 3),
    Column("wall_s", "minutes", 1 / 60, 1),
)


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """A run in figures; None where its metrics do not say.

    Attributes:
      first_pass_rate, final_pass_rate, best_pass_rate: the coder's, on the hold-out problems.
      best_step: where the best one was first reached.
      valid_share, exposing_share: the tester's, mean over the last TAIL_STEPS steps.
      book_size: tests in the Mistake Book after the last step.
      steps: the last step.
      tokens: response tokens that both roles were trained on.
      wall_s: seconds of steps and evaluations; not of start-up and checkpoints.
    """

    first_pass_rate: float | None
    final_pass_rate: float | None
    best_pass_rate: float | None
    best_step: int | None
    valid_share: float | None
    exposing_share: float | None
    book_size: float | None
    steps: int
    tokens: float
    wall_s: float


def summarize(run: RunFolder) -> RunSummary:
    """The figures of a run; of an empty one, mostly None."""
    rates = points(run, PASS_RATE)
    best_step, best = max(rates, key=lambda point: point[1]) if rates else (None, None)
    return RunSummary(
        first_pass_rate=rates[0][1] if rates else None,
        final_pass_rate=rates[-1][1] if rates else None,
        best_pass_rate=best,
        best_step=best_step,
        valid_share=_tail_mean(run, "tester/valid_share"),
        exposing_share=_tail_mean(run, "tester/exposing_share"),
        book_size=sizes[-1][1] if (sizes := points(run, "book/size")) else None,
        steps=run.rows[-1]["step"] if run.rows else 0,
        tokens=_total(run, ("coder/num_tokens", "tester/num_tokens")),
        wall_s=_total(
            run,
            {key for row in run.rows for key in row if key.startswith("time/evaluation")}
            | {"time/step"},
        ),
    )


def points(run: RunFolder, key: str) -> list[tuple[int, float]]:
    """(step, value) of a metric, where it has one; the tester's, where a tester wrote something."""
    rows = run.rows
    if key.startswith("tester/"):  # shares of nothing are written as 0
        rows = [row for row in rows if row.get("tester/statements_per_suite") != 0]
    pairs = ((row["step"], number(row, key)) for row in rows)
    return [(step, value) for step, value in pairs if value is not None]


def _tail_mean(run: RunFolder, key: str) -> float | None:
    values = [value for _, value in points(run, key)][-TAIL_STEPS:]
    return statistics.mean(values) if values else None


def _total(run: RunFolder, keys: Iterable[str]) -> float:
    return sum(value for key in keys for _, value in points(run, key))


class _Names(config_parser.ParserDelegate):
    """Leaves references and macros as written: nothing is looked up or called."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> str:
        return f"@{scoped_configurable_name}{'()' if evaluate else ''}"

    def macro(self, macro_name: str) -> str:
        return f"%{macro_name}"


def bindings(config: str) -> dict[str, str]:
    """What a gin text binds: `scope/Name.parameter` -> the value as written.

    Raises:
      UserError: the text is no gin.
    """
    found: dict[str, str] = {}
    try:
        for statement in config_parser.ConfigParser(config, _Names()):
            if isinstance(statement, config_parser.BindingStatement):
                scope = f"{statement.scope}/" if statement.scope else ""
                name = f"{statement.selector}.{statement.arg_name}".removesuffix(".")
                value = statement.value
                is_name = isinstance(value, str) and value[:1] in ("@", "%")
                found[scope + name] = value if is_name else repr(value)
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        raise UserError(f"config.gin cannot be read: {' '.join(str(error).split())}") from error
    return found


def differences(configs: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Keys that are not bound alike, seeds apart -> their value in each ("" where not bound)."""
    keys = sorted({key for config in configs for key in config if not _is_seed(key)})
    values = {key: [config.get(key, "") for config in configs] for key in keys}
    return {key: row for key, row in values.items() if len(set(row)) > 1}


def _is_seed(key: str) -> bool:
    return key == "SEED" or key.endswith(".seed")


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds only."""

    name: str
    runs: list[RunFolder]
    config: dict[str, str]

    @property
    def summaries(self) -> list[RunSummary]:
        return [summarize(run) for run in self.runs]

    def values(self, column: Column) -> list[float]:
        found = (getattr(summary, column.field) for summary in self.summaries)
        return [value for value in found if value is not None]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Groups of runs, and the gin values in which the groups differ.

    Attributes:
      different: key -> value in each group, "" where a group does not bind it.
      notes: what makes the figures less comparable than they look.
    """

    groups: list[Group]
    different: dict[str, list[str]]
    notes: list[str]

    def label(self, index: int) -> str:
        """The group's name; after a letter also what sets it apart when that is short."""
        group = self.groups[index]
        if group.name != _letter(index):
            return group.name
        parts = [f"{key}={values[index] or 'unset'}" for key, values in self.different.items()]
        text = ", ".join(parts)
        return f"{group.name}: {text}" if 0 < len(text) <= 48 else group.name


def compare(run_dirs: Sequence[pathlib.Path]) -> Comparison:
    """Groups the runs.

    Raises:
      UserError: a folder that is no run, a run without steps or configuration, one named twice, or
        runs that were evaluated differently.
    """
    runs: list[RunFolder] = []
    for path in run_dirs:
        run = read_run(path)
        if not run.rows:
            raise UserError(f"{path}: metrics.jsonl has no step yet; leave it out")
        if not run.config:
            raise UserError(f"{path}: config.gin is missing, so what the run was is not known")
        if any(run.path.resolve() == other.path.resolve() for other in runs):
            raise UserError(f"{path} is named twice; name each run once")
        runs.append(run)
    configs = [bindings(run.config) for run in runs]
    _check_same_evaluation(runs, configs)
    groups: list[Group] = []
    for run, config in zip(runs, configs, strict=True):
        known = next((g for g in groups if not differences([g.config, config])), None)
        if known is None:
            known = Group(_letter(len(groups)), [], config)
            groups.append(known)
        known.runs.append(run)
    names = [_common_name(group) for group in groups]
    if None not in names and len(set(names)) == len(names):
        groups = [
            dataclasses.replace(group, name=name)
            for group, name in zip(groups, names, strict=True)
            if name is not None
        ]
    different = differences([group.config for group in groups])
    return Comparison(groups, different, _notes(groups))


def _common_name(group: Group) -> str | None:
    """NAME when the folders of all runs are NAME_SEED, their own seed at the end."""
    names = set()
    for run in group.runs:
        match = re.fullmatch(r"(.+)[_-](\d+)", run.name)
        is_seed = match and match[2] == bindings(run.config).get("SEED")
        names.add(match[1] if match and is_seed else None)
    return names.pop() if len(names) == 1 else None


def _letter(index: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    number_part = str(index // 26) if index >= 26 else ""
    return chr(ord("A") + index % 26) + number_part


def _check_same_evaluation(runs: list[RunFolder], configs: list[dict[str, str]]) -> None:
    first, first_config = runs[0], configs[0]
    first_metrics = _evaluation_metrics(first)
    for run, config in zip(runs[1:], configs[1:], strict=True):
        for key in HOLDOUT_KEYS:
            if config.get(key) != first_config.get(key):
                raise UserError(
                    f"{run.path} and {first.path} have different hold-out problems: {key} is "
                    f"{config.get(key, 'unset')} and {first_config.get(key, 'unset')}; compare "
                    "runs with the same evaluation"
                )
        extra = first_metrics ^ _evaluation_metrics(run)
        if extra:
            has, lacks = (first, run) if extra & first_metrics else (run, first)
            raise UserError(
                f"{lacks.path} has no {sorted(extra)[0]} in metrics.jsonl, which {has.path} has; "
                "compare runs with the same evaluation"
            )


def _evaluation_metrics(run: RunFolder) -> set[str]:
    return {key for row in run.rows for key in row if key.startswith("eval/coder/")}


def _notes(groups: Sequence[Group]) -> list[str]:
    notes = []
    steps = sorted({summary.steps for group in groups for summary in group.summaries})
    if len(steps) > 1:
        notes.append(
            f"Runs end at different steps ({', '.join(map(str, steps))}): their ends are not the "
            "same amount of training."
        )
    for group in groups:
        seeds: dict[tuple[str, ...], str] = {}
        for run in group.runs:
            seed = tuple(v for k, v in sorted(bindings(run.config).items()) if _is_seed(k))
            if seed in seeds:
                notes.append(
                    f"{seeds[seed]} and {run.name} have the same seed: they count as two runs but "
                    "say nothing about the spread over seeds."
                )
            seeds[seed] = run.name
    for group in groups:
        for run in group.runs:
            if run.num_broken_lines:
                notes.append(
                    f"{run.name}: {run.num_broken_lines} unreadable line(s) of metrics.jsonl left "
                    "out."
                )
    return notes


def markdown(comparison: Comparison) -> str:
    """The table, what the groups are, and notes."""
    lines = ["# Comparison of runs", ""]
    header = ["group", "runs", *(column.title for column in COLUMNS)]
    lines += _table(
        header,
        [
            [group.name, str(len(group.runs)), *(c.text(group.values(c)) for c in COLUMNS)]
            for group in comparison.groups
        ],
    )
    lines += ["", "Mean ± sample standard deviation over the runs of a group.", ""]
    rows = [[g.name, ", ".join(str(run.path) for run in g.runs)] for g in comparison.groups]
    lines += _table(["group", "run folders"], rows)
    if comparison.different:
        lines += ["", "Where the configurations differ, seeds apart:", ""]
        lines += _table(
            ["key", *(group.name for group in comparison.groups)],
            [
                [f"`{key}`", *(f"`{value}`" if value else "unset" for value in values)]
                for key, values in comparison.different.items()
            ],
        )
    if comparison.notes:
        lines += ["", *(f"- {note}" for note in comparison.notes)]
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(header), "|---" * len(header) + "|", *map(line, rows)]


def csv_text(comparison: Comparison) -> str:
    """One row per group: mean, standard deviation, minimum and maximum of every figure, in the
    units of `RunSummary`, and the gin values that differ."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    kinds = ("mean", "std", "min", "max")
    writer.writerow(
        ["group", "runs"]
        + [f"{column.field}_{kind}" for column in COLUMNS for kind in kinds]
        + list(comparison.different)
        + ["run_dirs"]
    )
    for index, group in enumerate(comparison.groups):
        row: list[str | float] = [group.name, len(group.runs)]
        for column in COLUMNS:
            values = group.values(column)
            spread = statistics.stdev(values) if len(values) > 1 else ""
            row += (
                [statistics.mean(values), spread, min(values), max(values)] if values else [""] * 4
            )
        row += [values[index] for values in comparison.different.values()]
        writer.writerow([*row, " ".join(str(run.path) for run in group.runs)])
    return out.getvalue()


PANELS = (
    (PASS_RATE, "coder: hold-out pass rate"),
    ("tester/valid_share", "tester: valid tests"),
    ("tester/exposing_share", "tester: valid tests that expose a defect"),
)


def plot(comparison: Comparison, path: pathlib.Path) -> None:
    """Curves by group: the mean over its runs, and the range of the runs as a band."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    num_groups = len(comparison.groups)
    colours = plt.get_cmap("tab10" if num_groups <= 10 else "tab20")
    figure, axes = plt.subplots(1, len(PANELS), figsize=(15, 4.6), constrained_layout=True)
    for axis, (key, title) in zip(axes, PANELS, strict=True):
        for index, group in enumerate(comparison.groups):
            by_step: dict[int, list[float]] = {}
            for run in group.runs:
                for step, value in points(run, key):
                    by_step.setdefault(step, []).append(value)
            # Where a run of the group has no value, a mean of the others would jump.
            steps = [s for s, found in sorted(by_step.items()) if len(found) == len(group.runs)]
            if not steps:
                continue
            means = [statistics.mean(by_step[step]) for step in steps]
            (line,) = axis.plot(
                steps,
                means,
                marker=".",
                markersize=4,
                color=colours(index % colours.N),
                label=comparison.label(index),
            )
            low, high = ([edge(by_step[step]) for step in steps] for edge in (min, max))
            axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step", fontsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    if num_groups > 1:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def run_compare(run_dirs: Sequence[pathlib.Path], output: pathlib.Path | None) -> None:
    """Prints the table; with `output`, writes `compare.md`, `.csv` and `.png` into that folder.

    Raises:
      UserError: as `compare`, or the folder cannot be written.
    """
    comparison = compare(run_dirs)
    text = markdown(comparison)
    print(text, end="")
    if output is None:
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        picture = "\n![curves](compare.png)\n"
        (output / "compare.md").write_text(text + picture)
        (output / "compare.csv").write_text(csv_text(comparison))
        plot(comparison, output / "compare.png")
    except OSError as error:
        raise UserError(f"--output={output}: {error}") from error
    print(f"\nwrote {output}/compare.md, compare.csv and compare.png")
