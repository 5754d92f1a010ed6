"""Dynamic sampling (DAPO) through the loop: full batches of questions that teach, bounded."""

import pathlib
import shutil

import pytest

from codea1_jax import cli
from codea1_jax.obs.metrics import comparable, read_jsonl

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = (
    "--gin.EvalConfig.suite=''",
    "--gin.MeshConfig.fsdp=1",
    "--gin.MeshConfig.data=8",
    "--gin.NUM_SOLUTIONS=2",  # often two equal answers
    "--gin.paper.max_extra_batches=2",
)


def train(small_run: list[str], run_dir: pathlib.Path) -> list[dict]:
    files = [small_run[0], f"--gin_file={ROOT}/gin/algo/dapo.gin"]
    assert cli.main(["train", *files, *small_run[1:], *FLAGS, f"--run_dir={run_dir}"]) == 0
    return read_jsonl(run_dir / "metrics.jsonl")


@pytest.fixture(scope="module")
def whole(small_run, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("dynamic") / "run"
    return run_dir, train(small_run, run_dir)


def test_a_step_is_filled_up_within_its_bound(whole):
    run_dir, rows = whole
    assert any(row["sampling/num_extra_batches"] > 0 for row in rows)
    seen: list[str] = []
    for row in rows:
        extra, num_varied = row["sampling/num_extra_batches"], row["sampling/num_varied_questions"]
        assert row["sampling/num_questions"] == 4 * (1 + extra)
        assert extra == 2 or num_varied >= 4
        assert row["coder/num_groups"] == 4
        assert row["coder/num_filtered_groups"] == max(4 - num_varied, 0)
        played = read_jsonl(run_dir / "rollouts" / f"step_{row['step']:06d}.jsonl")
        assert len(played) == row["sampling/num_questions"]
        learnt = [
            play["question_id"]
            for play in played
            if len({r for r in play["rewards"]["coder"]}) > 1 and play["selected_groups"]
        ]
        assert len(learnt) <= min(num_varied, 4)
        seen += [play["question_id"] for play in played]
    # The data order is walked without a gap or a repeat: extra batches move the cursor.
    assert len(seen) == len(set(seen)) == sum(row["sampling/num_questions"] for row in rows)


def test_a_resumed_run_samples_the_same_extra_batches(whole, small_run, tmp_path):
    run_dir, rows = whole
    shutil.copytree(run_dir, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "3")
    again = train(small_run, tmp_path / "run")
    assert [comparable(row) for row in again] == [comparable(row) for row in rows]
