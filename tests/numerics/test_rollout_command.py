"""`codea1 rollout` and `codea1 bench sampler` on the embedded checkpoint, as a user calls them."""

import importlib.resources
import json

import pytest

from codea1_jax import cli

CHECKPOINT = str(importlib.resources.files("codea1_jax") / "assets" / "tiny")


@pytest.fixture
def flags(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    texts = ["def add(a, b):", "Write a function that reverses a list.", "x = 1\n" * 9]
    rows = [{"prompt": text} | ({"id": "named"} if i == 1 else {}) for i, text in enumerate(texts)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        f"--checkpoint={CHECKPOINT}",
        f"--prompts={prompts}",
        "--group=3",
        "--max_new_tokens=12",
        "--rows=4",
        "--dtype=float32",
    ]


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_key(lines):
    return {(line["id"], line["sample"]): line for line in lines}


def test_a_killed_rollout_goes_on_where_it_was(flags, tmp_path, capsys):
    """Hours of sampling must not be lost, nor a sample be there twice."""
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    assert cli.main(["rollout", *flags, f"--output={whole}", "--tokens"]) == 0
    lines = read(whole)
    assert set(by_key(lines)) == {(name, i) for name in ("0", "named", "2") for i in range(3)}
    for line in lines:
        assert line["finish_reason"] in ("stop", "length")
        assert len(line["tokens"]) == len(line["token_logp"]) == line["num_tokens"] <= 12
        assert abs(sum(line["token_logp"]) - line["logp"]) < 1e-4
    assert "9/9 samples" in capsys.readouterr().err

    # Killed in the middle of a line.
    assert cli.main(["rollout", *flags, f"--output={part}", "--tokens"]) == 0
    kept = part.read_text().splitlines(keepends=True)
    part.write_text("".join(kept[:4]) + kept[4][:30])
    assert cli.main(["rollout", *flags, f"--output={part}", "--tokens"]) == 0
    again = read(part)
    assert len(again) == len(lines)
    for key, line in by_key(lines).items():
        assert by_key(again)[key]["tokens"] == line["tokens"]
    before = part.read_text()
    assert cli.main(["rollout", *flags, f"--output={part}", "--tokens"]) == 0
    assert part.read_text() == before


def test_other_settings_do_not_continue_a_file(flags, tmp_path, capsys):
    """Samples of two temperatures in one file can't be told apart."""
    output = tmp_path / "out.jsonl"
    assert cli.main(["rollout", *flags, f"--output={output}"]) == 0
    capsys.readouterr()
    assert cli.main(["rollout", *flags, f"--output={output}", "--temperature=0.5"]) == 2
    assert "another temperature" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["rollout", "--output={}/out.jsonl"],
        ["bench", "sampler"],
        ["bench", "learner", "--sequences=1", "--length=16", "--prompt_length=8"],
        ["eval", "--suite=embedded", "--limit=1", "--greedy", "--output={}/out.json"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_kernels_that_the_machine_lacks_are_refused(command, flags, tmp_path, capsys):
    """A choice that is not passed on would measure something else than what was asked for."""
    if "learner" in command or "eval" in command:
        flags = flags[:1]
    arguments = [part.format(tmp_path) for part in command]
    assert cli.main([*arguments, *flags, "--attention=pallas"]) == 2
    assert "attention='pallas' is refused: the mesh has no TPUs" in capsys.readouterr().err


def test_long_prompts_are_left_out_and_counted(flags, tmp_path, capsys):
    output = tmp_path / "out.jsonl"
    assert cli.main(["rollout", *flags, f"--output={output}", "--max_prompt_tokens=30"]) == 0
    assert "1 prompts are over the limit" in capsys.readouterr().err
    assert {line["id"] for line in read(output)} == {"0", "named"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--prompts=/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--max_new_tokens=100000"], "--max_new_tokens=100000"),
        (["--max_prompt_tokens=1"], "all prompts have more than 1 tokens"),
        (["--top_p=0"], "top_p=0.0"),
        (["--rows=0"], "rows"),
        (["--group=0"], "0 samples"),
    ],
)
def test_a_mistake_is_one_sentence(flags, tmp_path, capsys, change, words):
    assert cli.main(["rollout", *flags, f"--output={tmp_path / 'out.jsonl'}", *change]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("", "no prompts"),
        ('{"prompt": ""}\n', "`prompt` is empty"),
        ('{"text": "a"}\n', "'prompt' is missing"),
        ('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": "1"}\n', "'1' is there twice"),
    ],
)
def test_bad_prompt_files_are_named(flags, tmp_path, capsys, rows, words):
    (tmp_path / "prompts.jsonl").write_text(rows)
    assert cli.main(["rollout", *flags, f"--output={tmp_path / 'out.jsonl'}"]) == 2
    assert words in capsys.readouterr().err


def test_the_bench_ends_with_one_json_line(flags, tmp_path, capsys):
    """Measured figures are compared by scripts; a compilation inside them is no measurement."""
    plot = tmp_path / "occupancy.png"
    assert cli.main(["bench", "sampler", *flags, f"--plot={plot}"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["tokens"] == 9 * 12
    assert result["num_compiles"] > 0
    assert result["num_compiles_measured"] == 0
    assert result["percent_of_roofline"] > 0
    assert 0 < result["occupancy"] <= 1
    assert result["tokens_per_s"] == pytest.approx(result["tokens"] / result["seconds"], rel=0.05)
    assert set(result["phases"]) == {"prefill_s", "decode_s", "host_s"}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_curves_end_with_one_json_line(tmp_path, capsys):
    plot = tmp_path / "curves.png"
    command = ["bench", "curves", f"--checkpoint={CHECKPOINT}", "--dtype=float32", "--rows=16"]
    command += ["--slots", "8", "--contexts", "32", "--groups", "1", "8"]
    command += ["--context=16", "--new_tokens=8", f"--plot={plot}"]
    assert cli.main(command) == 0
    points = json.loads(capsys.readouterr().out.splitlines()[-1])["points"]
    assert [(p["sweep"], p["value"], p["rows"], p["context"], p["group"]) for p in points] == [
        ("slots", 8, 8, 16, 8),
        ("context", 32, 16, 32, 16),
        ("group", 1, 16, 16, 1),
        ("group", 8, 16, 16, 8),
    ]
    assert all(p["tokens_per_s"] > 0 and p["roof_tokens_per_s"] > 0 for p in points)
    # Two prompts to prefill instead of sixteen, by the same measured roof.
    assert points[3]["roof_tokens_per_s"] > points[2]["roof_tokens_per_s"]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--contexts", "16"], "leave no prompt beside --new_tokens=16"),
        (["--groups", "3"], "--groups=3 does not divide --rows=16"),
    ],
)
def test_sizes_that_do_not_fit_are_named(capsys, option, words):
    assert cli.main(["bench", "curves", "--checkpoint=DIR", *option]) == 2
    assert words in capsys.readouterr().err
