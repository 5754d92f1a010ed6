"""The report in a real browser: it is quick, it works, and nothing a model wrote runs."""

import json
import pathlib
import re
import time

import chromium
import pytest
import run_folders

from codea1_jax import cli

pytestmark = pytest.mark.browser

OPEN_S = 2.0


@pytest.fixture(scope="module")
def page():
    browser = chromium.find_browser()
    if browser is None:
        pytest.skip("no Chromium on PATH; install one or set CODEA1_BROWSER")
    page = chromium.Page(browser)
    yield page
    page.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Reports of a run of 200 steps, and of two short runs side by side; hostile text in all."""
    folder = tmp_path_factory.mktemp("reports")
    texts = run_folders.HOSTILE
    long = run_folders.write_run(folder / "long", 200, num_problems=8, texts=texts)
    first = run_folders.write_run(folder / "first", 4, texts=texts)
    second = run_folders.write_run(folder / "second", 6, seed=1, alpha=0.25, texts=texts)
    empty = folder / "empty"
    empty.mkdir()
    (empty / "config.gin").write_text("SEED = 1\n")
    paths = {"long": [long], "pair": [first, second], "empty": [empty]}
    for name, runs in paths.items():
        output = folder / f"{name}.html"
        assert cli.main(["report", *map(str, runs), f"--output={output}"]) == 0
    return {name: folder / f"{name}.html" for name in paths}


@pytest.fixture
def opened(page, reports):
    """Opens a report at a desk's width; fails if the page complained or ran a model's text."""

    def open_report(name: str, width: int = 1300, dark: bool = False) -> float:
        page.resize(width, 1000, dark)
        started = time.monotonic()
        page.open(reports[name])
        if name != "empty":
            page.wait("document.querySelector('.list tbody tr')")
        return time.monotonic() - started

    page.errors.clear()
    yield open_report
    assert page.errors == []
    assert page.run("window.isOwned") is None
    tags = page.run("[...new Set([...document.querySelectorAll('*')].map((e) => e.localName))]")
    assert not {"img", "iframe", "object", "embed"} & set(tags)
    assert page.run("document.querySelectorAll('script:not([type])').length") == 1


def open_problem(page, index: int = 0) -> None:
    """Opens the problem in row `index` of the list."""
    button = f"document.querySelectorAll('.list .open')[{index}]"
    name = page.run(f"{button}.querySelector('b').textContent")
    page.run(f"{button}.click()")
    page.wait(f"document.querySelector('#problem h3')?.textContent === {json.dumps(name)}")


def rows_of(page) -> int:
    return page.run("document.querySelectorAll('.list tbody tr').length")


def test_200_steps_open_quickly(page, opened):
    """The second opening counts: the first one pays for starting the browser."""
    opened("long")
    seconds = opened("long")
    print(f"200 steps: {seconds:.2f} s")
    assert seconds < OPEN_S
    assert page.run("document.querySelectorAll('#charts > figure').length") >= 12
    assert page.run("document.querySelector('#step-text').textContent") == "200"


def test_a_cell_shows_code_suite_and_reference(page, opened):
    opened("long")
    open_problem(page)
    assert page.run("document.querySelectorAll('.matrix tbody tr').length") == 4
    page.click(".matrix td button.fail")
    text = page.run("document.querySelector('.inspector').textContent")
    for words in ("against code", "the reference says", "the code fails", "def f(x):", "got 3"):
        assert words in text
    row = page.run("document.querySelector('.inspector .chosen').textContent")
    match = re.search(r"f\((\d+)\)", row)
    assert match is not None
    number = int(match[1])
    assert f"== {2 * number}" in row


def test_hostile_text_is_shown_as_text(page, opened):
    opened("long")
    shown = ""
    for index in range(rows_of(page)):
        open_problem(page, index)
        page.run("document.querySelectorAll('.matrix button').forEach((one) => one.click())")
        shown += page.run("document.querySelector('#problem').textContent")
    assert "</script><script>window.isOwned = true</script>" in shown
    assert "<img src=x onerror='window.isOwned = true'>" in shown
    assert "NUL ⟦0000⟧" in shown
    assert "⟦202e⟧ reversed" in shown


def test_search_finds_problems_of_any_step(page, opened):
    opened("long")
    page.run("byId('search').value = 'MADE/21'; byId('search').dispatchEvent(new Event('input'))")
    page.wait("byId('list-status').textContent.includes('1 problem(s) found')")
    page.click(".list td:nth-child(2) button")
    page.wait("document.querySelector('#problem h3')?.textContent === 'made/21'")
    step = page.run("document.querySelector('#step-text').textContent")
    assert page.run("document.querySelector('.side select').value") == step
    page.run("byId('search').value = 'no such'; byId('search').dispatchEvent(new Event('input'))")
    page.wait("byId('list-status').textContent.startsWith('0 problem(s)')")


def test_steps_and_filters_change_the_list(page, opened):
    opened("long")
    page.click("#previous")
    page.wait("byId('list-status').textContent.startsWith('Step 199: 8 of 8')")
    page.run("byId('filter').value = 'history'; byId('filter').dispatchEvent(new Event('input'))")
    page.wait("byId('list-status').textContent.startsWith('Step 199: 4 of 8')")
    page.run("byId('slider').value = 0; byId('slider').dispatchEvent(new Event('input'))")
    page.wait("byId('list-status').textContent.startsWith('No rollouts of step 0')")


def test_an_alarm_leads_to_its_step(page, opened):
    opened("long")
    alarm = page.run("document.querySelector('.alarm').textContent")
    assert "No verdict for up to" in alarm
    page.click(".alarm button")
    step = page.run("document.querySelector('.alarm button').textContent")
    page.wait(f"byId('list-status').textContent.startsWith('Step {step}:')")


def test_the_keyboard_reaches_every_cell(page, opened):
    opened("long")
    open_problem(page)
    page.run("document.querySelector('.matrix button[tabindex=\"0\"]').focus()")
    page.press("ArrowDown")
    page.press("ArrowRight")
    label = page.run("document.activeElement.getAttribute('aria-label')")
    assert label.startswith("code 2, suite 1, test 1")
    assert page.run("document.querySelectorAll('.matrix button[tabindex=\"0\"]').length") == 1


def test_controls_and_charts_have_names(page, opened):
    opened("long")
    open_problem(page)
    page.click(".matrix td button")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "link", "slider", "image", "searchbox", "combobox", "table"}
    nameless = [
        node["role"]["value"]
        for node in tree
        if not node.get("ignored")
        and node["role"]["value"] in named
        and not node.get("name", {}).get("value")
        and node["role"]["value"] != "table"
    ]
    assert nameless == []
    assert sum(node["role"]["value"] == "image" for node in tree) >= 12


def test_two_runs_are_overlaid_and_side_by_side(page, opened):
    opened("pair")
    assert page.run("document.querySelectorAll('.curve.run1').length") >= 10
    page.run("byId('slider').value = 4; byId('slider').dispatchEvent(new Event('input'))")
    page.wait("byId('list-status').textContent.startsWith('Step 4: 4 of 4')")
    open_problem(page)
    page.wait("document.querySelectorAll('.side .matrix').length === 2")
    sides = page.run(
        "[...document.querySelectorAll('.side')].map((side) => side.getBoundingClientRect().top)"
    )
    assert sides[0] == sides[1]
    assert "ALPHA" in page.run("document.querySelector('#summary').textContent")


def test_a_suite_may_aim_at_every_code(page, opened):
    """Self-play: one group of suites for all codes; each code has its own verdict on a test."""
    opened("long")
    problem = {
        "codes": [{"history": ["fail: why"]}, {"history": ["unknown"]}],
        "groups": [
            {
                "selected": True,
                "suites": [
                    {
                        "targets": [0, 1],
                        "statements": [
                            {"status": "valid", "verdicts": ["pass", "fail: wrong value"]},
                            {"status": "wrong_answer", "verdicts": ["fail", "pass"]},
                            {"status": "wrong_answer", "verdicts": []},
                            {"status": "invalid", "verdicts": []},
                            {"status": "new kind", "verdicts": ["new verdict"]},
                        ],
                    }
                ],
            }
        ],
    }
    assert page.run(f"kindsOf({json.dumps(problem)})") == [
        ["fail", "pass", "fail", "wrong_answer", "invalid", "not_executed"],
        ["unknown", "fail", "pass", "wrong_answer", "invalid", "invalid"],
    ]


@pytest.mark.parametrize("name", ["long", "pair"])
def test_400_pixels_need_no_sideways_scrolling(page, opened, name):
    opened(name, width=400, dark=True)
    open_problem(page)
    page.click(".matrix td button")
    assert page.run("document.documentElement.scrollWidth <= window.innerWidth")


def test_an_empty_run_opens(page, opened):
    opened("empty")
    assert "had not finished one" in page.run("document.body.textContent")


def test_a_page_that_breaks_its_policy_is_noticed(page, reports, tmp_path):
    """What the other tests rely on: markup that slipped in would be blocked, and be an error."""
    broken = tmp_path / "broken.html"
    text = reports["empty"].read_text()
    broken.write_text(text.replace("<main>", "<main><img src=x onerror='window.isOwned = true'>"))
    page.errors.clear()
    page.open(broken)
    page.wait("true")
    assert any("Content Security Policy" in error for error in page.errors)
    assert page.run("window.isOwned") is None
    page.errors.clear()


def test_the_file_refers_to_nothing_outside(reports: dict[str, pathlib.Path]):
    head = reports["long"].read_text().split("<main>")[0]
    assert "http:" not in head
    assert "https:" not in head
    assert "@import" not in head
