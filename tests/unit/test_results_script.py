"""The script behind docs/results.md: a wrong overlay or seed makes a row of another experiment."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def results(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "launch" / "results.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_dry_run_prints_every_run_of_every_seed():
    done = results("all", "--seeds", "0 7", "--dry-run")
    assert done.returncode == 0, done.stderr
    *commands, compared = done.stdout.splitlines()
    runs = [line for line in commands if line.startswith("codea1 train ")]
    folders = [line.rpartition("--run_dir=")[2] for line in runs]
    assert len(set(folders)) == len(folders) == 2 * 10
    for line, folder in zip(runs, folders, strict=True):
        name, _, seed = pathlib.Path(folder).name.rpartition("_")
        assert f" --gin.SEED={seed} " in line
        files = [word.partition("=")[2] for word in line.split() if word.startswith("--gin_file")]
        assert files[0] == "gin/runs/results.gin"
        assert [pathlib.Path(file).stem for file in files[1:]] == [name] * (name != "code_a1")
        assert all((ROOT / file).is_file() for file in files)
    assert compared.split()[2:-1] == folders
    tuned = commands.index(next(line for line in commands if line.startswith("codea1 sft ")))
    assert "sft_tester_model/hf" in commands[tuned + 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name what to run"),
        (("golden", "nonsense", "--dry-run"), "no nonsense.gin"),
        (("golden", "--seeds", "0,1", "--dry-run"), "--seeds '0,1'"),
        (("--speed",), "unknown option --speed"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words):
    done = results(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout
