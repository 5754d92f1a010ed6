"""The report: what models wrote reaches the page as data, and a killed run has a report too."""

import base64
import gzip
import hashlib
import html.parser
import itertools
import json
import re

import pytest
import run_folders

from codea1_jax import cli
from codea1_jax.errors import UserError
from codea1_jax.obs import report
from codea1_jax.obs.run_folder import read_run


class Elements(html.parser.HTMLParser):
    """Elements of a page: (tag, attributes, text inside)."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict, str]] = []
        self._is_open = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), ""))
        self._is_open = True

    def handle_endtag(self, tag):
        self._is_open = False

    def handle_data(self, data):
        if self._is_open:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def scripts(self):
        return {a.get("id"): (a, text) for tag, a, text in self.found if tag == "script"}


def unpacked(text: str):
    return json.loads(gzip.decompress(base64.b64decode(text)))


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    return run_folders.write_run(
        tmp_path_factory.mktemp("hostile") / "run", 3, texts=(run_folders.HOSTILE_TEXT,)
    )


@pytest.fixture(scope="module")
def hostile_page(hostile_run):
    return report.render([read_run(hostile_run)], 64)


def test_hostile_text_adds_no_element(hostile_page, tmp_path):
    """The page has the elements of a harmless run's page, whatever the models wrote."""
    harmless = run_folders.write_run(tmp_path / "run", 3)
    plain = report.render([read_run(harmless)], 64)
    hostile_tags, plain_tags = (
        [(tag, sorted(attributes)) for tag, attributes, _ in Elements(page).found]
        for page in (hostile_page, plain)
    )
    assert hostile_tags == plain_tags
    assert hostile_page.isascii()
    assert "onerror" not in hostile_page


def test_only_one_script_can_run_and_the_policy_names_it(hostile_page):
    elements = Elements(hostile_page)
    running = [
        (attributes, text)
        for tag, attributes, text in elements.found
        if tag == "script" and attributes.get("type") is None
    ]
    assert len(running) == 1
    policy = next(
        attributes["content"]
        for tag, attributes, _ in elements.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    digest = base64.b64encode(hashlib.sha256(running[0][1].encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert not re.search(r"(src|href)=\"(?!#|data:)", hostile_page)


def test_texts_come_back_unchanged(hostile_page):
    """NUL, lone surrogates and separators survive: the page shows what the model really wrote."""
    scripts = Elements(hostile_page).scripts()
    assert scripts["data"][0]["type"] == "application/json"
    assert json.loads(scripts["data"][1])["runs"][0]["rollout_steps"] == [1, 2, 3]
    problem = unpacked(scripts["rollouts-0-2"][1])[0]
    assert problem["codes"][0]["response"] == run_folders.HOSTILE_TEXT
    assert run_folders.HOSTILE_TEXT in problem["groups"][0]["suites"][0]["statements"][0]["text"]
    index = unpacked(scripts["index"][1])
    assert all(run_folders.HOSTILE_TEXT in entry["question"] for entry in index)


@pytest.mark.parametrize("text", run_folders.HOSTILE)
def test_escaped_json_holds_no_markup_and_reads_back(text):
    encoded = report.escaped_json({text: [text]})
    assert not set(encoded) & set("<>&\u2028\u2029\0")
    assert encoded.isascii()
    assert json.loads(encoded) == {text: [text]}


def test_a_hostile_folder_name_is_data_too(tmp_path):
    run_dir = run_folders.write_run(tmp_path / "<b onclick=x>&", 1)
    page = report.render([read_run(run_dir)], 64)
    assert "<b onclick" not in page
    assert '"name":"\\u003cb onclick=x\\u003e\\u0026"' in page


def test_huge_text_is_cut_with_a_note(tmp_path):
    run_dir = run_folders.write_run(tmp_path / "run", 1, texts=("x" * 50_000,))
    page = report.render([read_run(run_dir)], 64)
    response = unpacked(Elements(page).scripts()["rollouts-0-1"][1])[0]["codes"][0]["response"]
    assert response.startswith("x" * report.MAX_TEXT + "\n[30000 more characters")


def test_the_view_has_verdicts_and_rewards_beside_what_they_judge(tmp_path):
    run_dir = run_folders.write_run(tmp_path / "run", 1)
    row = json.loads((run_dir / "rollouts" / "step_000001.jsonl").read_text().splitlines()[1])
    view = report.problem_view(row)
    assert [code["reward"] for code in view["codes"]] == row["rewards"]["coder"]
    assert view["codes"][1]["history"] == row["verdicts"]["codes"][1]["history"]
    assert len(view["history"]) == 3
    suite, source = view["groups"][2]["suites"][1], row["verdicts"]["suites"][2][1]
    assert suite["terms"]["adversarial"] == row["rewards"]["adversarial"][2][1]
    assert suite["masked"] != row["rewards"]["tester_mask"][2][1]
    for statement, written in zip(suite["statements"], source["statements"], strict=True):
        assert statement["verdicts"] == written.get("verdicts", [])
    assert [group["selected"] for group in view["groups"]] == [True, False, False, False]


def test_unreadable_lines_are_left_out_and_counted(tmp_path):
    """A kill in the middle of a write leaves half a line; a full disk leaves worse."""
    run_dir = run_folders.write_run(tmp_path / "run", 3)
    with (run_dir / "metrics.jsonl").open("ab") as file:
        file.write(b'[1]\n{"step": "four"}\n{"step": true}\n\xff\xfe\n{"step": 4, "coder/lo')
    rollouts = run_dir / "rollouts" / "step_000002.jsonl"
    lines = rollouts.read_text().splitlines(keepends=True)
    broken = json.dumps({**json.loads(lines[0]), "verdicts": {"codes": 7}})
    rollouts.write_text(lines[0] + broken + "\n" + lines[1][: len(lines[1]) // 2])
    run = read_run(run_dir)
    assert [row["step"] for row in run.rows] == [0, 1, 2, 3]
    assert run.num_broken_lines == 5
    page = report.render([run], 64)
    assert "5 unreadable line(s) of metrics.jsonl" in page
    assert "2 unreadable line(s) of rollouts" in page
    assert len(unpacked(Elements(page).scripts()["rollouts-0-2"][1])) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.pop("rewards"),
        lambda row: row["rewards"].update(coder=[]),
        lambda row: row.update(question=None),
        lambda row: row["verdicts"]["suites"][0][0].update(targets=[99]),
        lambda row: row["verdicts"]["suites"][0][0].update(targets=[-1]),
        lambda row: row.update(verdicts="text"),
    ],
)
def test_a_row_of_another_form_is_none(tmp_path, change):
    run_dir = run_folders.write_run(tmp_path / "run", 1)
    row = json.loads((run_dir / "rollouts" / "step_000001.jsonl").read_text().splitlines()[0])
    assert report.problem_view(row) is not None
    change(row)
    assert report.problem_view(row) is None


def test_numbers_that_json_does_not_have_become_gaps(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "a": NaN, "b": 1e999, "c": 2, "d": "text"}\n{"step": 2, "a": 1}\n'
    )
    page = report.render([read_run(tmp_path)], 64)
    metrics = json.loads(Elements(page).scripts()["data"][1])["runs"][0]["metrics"]
    assert metrics == {"a": [None, 1.0], "c": [2.0, None]}


def test_an_empty_run_has_a_report(tmp_path):
    (tmp_path / "config.gin").write_text("SEED = 1\n")
    page = report.render([read_run(tmp_path)], 64)
    assert "had not finished one" in page


def test_a_step_written_twice_counts_once(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1}\n{"step": 1, "a": 2}\n')
    assert [row["a"] for row in read_run(tmp_path).rows] == [2]


def test_steps_beyond_the_limit_are_left_out_evenly_and_said(tmp_path):
    run = read_run(run_folders.write_run(tmp_path / "run", 9))
    every = report.embed_rollouts(run, 10**9).chunks
    kept = report.embed_rollouts(run, 4 * max(map(len, every.values()))).chunks
    assert sorted(every) == list(range(1, 10))
    assert {1, 9} < set(kept) < set(every)
    assert sum(map(len, kept.values())) <= 4 * max(map(len, every.values()))
    page = report.render([run], 4e-6 * max(map(len, every.values())))
    assert f"Rollouts of {len(kept)} of 9 steps" in page


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 200])
def test_spread_order_is_a_permutation_that_starts_at_the_ends(count):
    order = list(report.spread_order(count))
    assert sorted(order) == list(range(count))
    assert order[:2] == [count - 1, 0][:count]
    if count == 200:
        gaps = sorted(order[:20])
        assert max(b - a for a, b in itertools.pairwise(gaps)) <= 25


def test_alarms_name_the_worst_step():
    rows = [
        {"step": 1, "verdicts/unknown_share": 0.01, "coder/mismatch_kl": 1e-6, "coder/loss": 1.0},
        {"step": 2, "verdicts/unknown_share": 0.20, "coder/mismatch_kl": 0.5, "coder/loss": None},
        {"step": 5, "verdicts/unknown_share": 0.0, "tester/is_skipped": 1.0},
    ]
    found = {alarm["text"]: (alarm["step"], alarm["num_steps"]) for alarm in report.alarms(rows)}
    assert found == {
        "No verdict for up to 20.0% of codes or tests": (2, 2),
        "coder: mismatch_kl 0.5, above 0.01: sampler and learner disagree": (2, 1),
        "coder: loss is not finite": (2, 1),
        "tester: 1 update(s) skipped": (5, 1),
        "2 step(s) missing in metrics.jsonl before this one": (5, 1),
    }
    assert report.alarms(rows[:0]) == []


def test_two_runs_share_the_index_and_show_what_differs(tmp_path):
    first = run_folders.write_run(tmp_path / "a", 2, alpha=0.5)
    second = run_folders.write_run(tmp_path / "b", 3, seed=1, alpha=0.25)
    scripts = Elements(report.render([read_run(first), read_run(second)], 64)).scripts()
    data = json.loads(scripts["data"][1])
    assert data["differences"] == [["ALPHA", "0.5", "0.25"], ["SEED", "0", "1"]]
    entry = next(e for e in unpacked(scripts["index"][1]) if e["id"] == "made/6")
    assert [[step for step, *_ in steps] for steps in entry["runs"]] == [[1, 2], [1, 2]]


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [read_run(run_folders.write_run(tmp_path / name / "run", 1)) for name in ("x", "y")]
    data = json.loads(Elements(report.render(runs, 64)).scripts()["data"][1])
    assert [run["name"] for run in data["runs"]] == ["x/run", "y/run"]


def test_the_same_folder_gives_the_same_file(hostile_run, hostile_page):
    assert report.render([read_run(hostile_run)], 64) == hostile_page


def test_the_command_writes_into_the_run_folder(hostile_run, capsys):
    assert cli.main(["report", str(hostile_run)]) == 0
    assert (hostile_run / "report.html").read_text().startswith("<!doctype html>")
    assert "report.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (["nowhere"], "is no folder"),
        (["empty"], "neither config.gin nor metrics.jsonl"),
        (["run", "run", "run"], "one or two"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, capsys, folders, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    assert cli.main(["report", *(str(tmp_path / name) for name in folders)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_file_that_cannot_be_written_is_named(hostile_run, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="--output"):
        report.write_report([hostile_run], tmp_path / "taken" / "report.html", 64)
