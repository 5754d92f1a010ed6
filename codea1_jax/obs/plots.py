"""The report of a run: a table (Markdown) and a plot (PNG) made from `metrics.jsonl`."""

import pathlib
from typing import Any

from codea1_jax.obs.metrics import read_jsonl

# (title, [(metrics key, legend)]) per panel of the plot.
PANELS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("coder: hold-out pass rate", (("eval/coder/pass_rate", "hold-out"),)),
    (
        "rewards",
        (("coder/reward/mean", "coder"), ("tester/reward/mean", "tester")),
    ),
    (
        "tester",
        (
            ("tester/valid_share", "valid tests"),
            ("tester/exposing_share", "valid tests that expose a defect"),
        ),
    ),
    ("Mistake Book", (("book/size", "tests in the book"),)),
    (
        "response length (tokens)",
        (("coder/response_tokens", "coder"), ("tester/response_tokens", "tester")),
    ),
    (
        "seconds per step",
        (
            ("time/step", "whole step"),
            ("speed/sandbox_busy_s", "sandbox busy"),
            ("time/judging", "waiting for verdicts"),
        ),
    ),
)

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("eval/coder/pass_rate", "hold-out pass rate", "{:.1%}"),
    ("coder/reward/mean", "coder reward", "{:.3f}"),
    ("tester/reward/mean", "tester reward", "{:.3f}"),
    ("tester/valid_share", "valid tests", "{:.1%}"),
    ("tester/exposing_share", "exposing tests", "{:.1%}"),
    ("book/size", "book size", "{:.0f}"),
    ("verdicts/unknown_share", "unknown verdicts", "{:.1%}"),
    ("time/step", "seconds", "{:.1f}"),
)


def write_report(run_dir: pathlib.Path) -> None:
    """Writes `report.md` and `report.png` into the run folder. Without rows it writes nothing."""
    rows = read_jsonl(run_dir / "metrics.jsonl")
    if not rows:
        return
    (run_dir / "report.md").write_text(_table(rows))
    _plot(rows, run_dir / "report.png")


def _table(rows: list[dict[str, Any]]) -> str:
    evaluated = [row for row in rows if row.get("eval/coder/pass_rate") is not None]
    lines = [f"# Run report: {rows[-1]['step']} steps", ""]
    if len(evaluated) > 1:
        first, last = evaluated[0], evaluated[-1]
        before, after = first["eval/coder/pass_rate"], last["eval/coder/pass_rate"]
        lines += [
            f"Hold-out pass rate of the coder: {before:.1%} at step {first['step']}, "
            f"{after:.1%} at step {last['step']} ({100 * (after - before):+.1f} points).",
            "",
        ]
    lines += ["![curves](report.png)", ""]
    lines.append("| step | " + " | ".join(title for _, title, _ in COLUMNS) + " |")
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for row in rows:
        cells = [
            form.format(row[key]) if row.get(key) is not None else "" for key, _, form in COLUMNS
        ]
        lines.append(f"| {row['step']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _plot(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(14, 7), constrained_layout=True)
    for axis, (title, curves) in zip(axes.flat, PANELS, strict=True):
        for key, legend in curves:
            points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), label=legend, marker=".", markersize=3)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step", fontsize=8)
        axis.grid(alpha=0.3)
        if axis.lines and len(curves) > 1:
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
