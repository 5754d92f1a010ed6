"""Comparison of runs: a wrong group or a wrong spread becomes a wrong conclusion in a paper."""

import csv
import statistics

import pytest
import run_folders

from codea1_jax import cli
from codea1_jax.errors import UserError
from codea1_jax.obs import compare
from codea1_jax.obs.run_folder import read_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    settings = {"a0": (0, 0.5), "b0": (0, 0.25), "a1": (1, 0.5), "a2": (2, 0.5), "b1": (1, 0.25)}
    return {
        name: run_folders.write_run(folder / name, 6, seed=seed, alpha=alpha)
        for name, (seed, alpha) in settings.items()
    }


def test_runs_that_differ_in_seeds_only_are_one_group(runs):
    comparison = compare.compare(list(runs.values()))
    assert [[run.name for run in group.runs] for group in comparison.groups] == [
        ["a0", "a1", "a2"],
        ["b0", "b1"],
    ]
    assert comparison.different == {"ALPHA": ["0.5", "0.25"]}
    assert comparison.notes == []
    assert comparison.label(1) == "B: ALPHA=0.25"


def test_figures_are_mean_and_sample_deviation(runs):
    """Made-up hold-out rates: 0.40, 0.41, 0.42 at the start and 0.60, 0.62, 0.64 at the end."""
    comparison = compare.compare([runs["a0"], runs["a1"], runs["a2"]])
    table = compare.markdown(comparison)
    row = next(line for line in table.splitlines() if line.startswith("| A | 3 |"))
    assert [cell.strip() for cell in row.split("|")][3:6] == [
        "41.0 ± 1.0", "62.0 ± 2.0", "62.0 ± 2.0",
    ]  # fmt: skip
    assert "differ" not in table


def test_groups_are_called_as_their_folders(tmp_path):
    """Sixteen letters say nothing; but `alpha_025` with seed 0 is no run of a group `alpha`."""
    folders = [
        run_folders.write_run(tmp_path / f"{name}_{seed}", 2, seed=seed, alpha=alpha)
        for seed in (0, 1)
        for name, alpha in (("code_a1", 0.5), ("alpha_025", 0.25))
    ]
    comparison = compare.compare(folders)
    assert [group.name for group in comparison.groups] == ["code_a1", "alpha_025"]
    assert comparison.label(1) == "alpha_025"
    other = run_folders.write_run(tmp_path / "alpha_075", 2, seed=0, alpha=0.75)
    comparison = compare.compare([*folders, other])
    assert [group.name for group in comparison.groups] == ["A", "B", "C"]


def test_one_run_has_no_spread(runs):
    table = compare.markdown(compare.compare([runs["a0"]]))
    assert "±" not in table.splitlines()[4]
    assert "| 60.0 |" in table


def test_summary_adds_up_by_hand(runs):
    run = read_run(runs["a0"])
    summary = compare.summarize(run)
    assert (summary.first_pass_rate, summary.final_pass_rate) == (0.4, 0.6)
    assert (summary.best_pass_rate, summary.best_step) == (0.6, 6)
    assert summary.book_size == run.rows[-1]["book/size"]
    assert summary.steps == 6
    assert summary.tokens == 6 * 2 * 1000
    assert summary.wall_s == 90 + 5 * 9
    valid = [row["tester/valid_share"] for row in run.rows[-compare.TAIL_STEPS :]]
    assert summary.valid_share == pytest.approx(statistics.mean(valid))


def test_a_run_without_a_tester_has_no_share_of_its_tests(tmp_path):
    """With golden tests nobody writes any: 0 % would read as a tester that fails."""
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "tester/valid_share": 0.0, "tester/statements_per_suite": 0.0}\n'
    )
    assert compare.summarize(read_run(tmp_path)).valid_share is None


def test_evaluation_counts_as_time(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "time/step": 5, "time/judging": 2, "time/evaluation:_judging": 3}\n'
    )
    assert compare.summarize(read_run(tmp_path)).wall_s == 8


def test_csv_has_every_figure(runs, tmp_path, capsys):
    assert cli.main(["compare", *map(str, runs.values()), f"--output={tmp_path / 'out'}"]) == 0
    with (tmp_path / "out" / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["group"], row["runs"], row["ALPHA"]) for row in rows] == [
        ("A", "3", "0.5"),
        ("B", "2", "0.25"),
    ]
    assert float(rows[0]["final_pass_rate_mean"]) == pytest.approx(0.62)
    assert float(rows[0]["final_pass_rate_std"]) == pytest.approx(0.02)
    assert float(rows[1]["final_pass_rate_min"]) == pytest.approx(0.60)
    written = (tmp_path / "out" / "compare.md").read_text()
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert written.removesuffix("\n![curves](compare.png)\n") in printed


def test_bindings_are_read_as_written():
    text = """
# a comment
SEED = 3
NAME = 'a @text'
LONG = \\
    (1, 2,
     3)
PRESET = @paper()
tester/RoleConfig.is_trained = False
TrainConfig.roles = [@coder/RoleConfig(), %OTHER]
"""
    assert compare.bindings(text) == {
        "SEED": "3",
        "NAME": "'a @text'",
        "LONG": "(1, 2, 3)",
        "PRESET": "@paper()",
        "tester/RoleConfig.is_trained": "False",
        "TrainConfig.roles": "['@coder/RoleConfig()', '%OTHER']",
    }


def test_seeds_of_any_scope_are_no_difference():
    first = {"SEED": "1", "DataConfig.seed": "1", "A": "1"}
    second = {"SEED": "2", "TrainConfig.seed": "5", "A": "1"}
    assert compare.differences([first, second]) == {}
    assert compare.differences([first, {"A": "1", "B.seedling": "1"}]) == {"B.seedling": ["", "1"]}


def test_the_same_seed_twice_and_unequal_ends_are_noted(runs, tmp_path):
    again = run_folders.write_run(tmp_path / "again", 5, seed=0)
    notes = " ".join(compare.compare([runs["a0"], again]).notes)
    assert "a0 and again have the same seed" in notes
    assert "different steps (5, 6)" in notes


def test_a_killed_run_is_compared_by_what_it_has(runs, tmp_path):
    killed = run_folders.write_run(tmp_path / "killed", 6, seed=3)
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "coder/re')
    notes = " ".join(compare.compare([runs["a0"], killed]).notes)
    assert "killed: 1 unreadable line(s)" in notes


def evaluated_otherwise(folder):
    folder.mkdir()
    (folder / "config.gin").write_text("EvalConfig.suite = 'humaneval_plus'\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "eval/coder/pass_rate": 0.5}\n')


def never_evaluated(folder):
    folder.mkdir()
    (folder / "config.gin").write_text("EvalConfig.suite = 'embedded'\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "coder/loss": 0.5}\n')


def without_steps(folder):
    folder.mkdir()
    (folder / "config.gin").write_text("")


def without_configuration(folder):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')


def broken_configuration(folder):
    folder.mkdir()
    (folder / "config.gin").write_text("SEED = [1,\n")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "is no folder"),
        (lambda folder: folder.mkdir(), "neither config.gin nor metrics.jsonl"),
        (evaluated_otherwise, "EvalConfig.suite"),
        (never_evaluated, "has no eval/coder/pass_rate"),
        (without_steps, "no step yet"),
        (without_configuration, "config.gin is missing"),
        (broken_configuration, "config.gin cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence(runs, tmp_path, capsys, make, words):
    make(tmp_path / "other")
    assert cli.main(["compare", str(runs["a0"]), str(tmp_path / "other")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_run_named_twice_is_refused(runs):
    with pytest.raises(UserError, match="named twice"):
        compare.compare([runs["a0"], runs["a0"]])


def test_pipes_in_values_do_not_break_the_table(runs, tmp_path):
    other = run_folders.write_run(tmp_path / "p|q", 6)
    config = other / "config.gin"
    config.write_text(config.read_text().replace("ALPHA = 0.5", "ALPHA = 'a|b'"))
    table = compare.markdown(compare.compare([runs["a0"], other]))
    row = next(line for line in table.splitlines() if line.startswith("| `ALPHA`"))
    assert row == "| `ALPHA` | `0.5` | `'a\\|b'` |"
