"""A resumed run whose metrics hold rows from after its checkpoint shows a run that never was."""

import json
import math

from codea1_jax.obs.metrics import JsonlLog, MetricsWriter, comparable, read_jsonl


def test_reopening_cuts_back_to_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"step": 4, "x'
    )
    log = JsonlLog(path, resume_step=2)
    log.write({"step": 3, "again": True})
    log.close()
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}, {"step": 3, "again": True}]


def test_numbers_without_a_json_form_become_null(tmp_path):
    writer = MetricsWriter(tmp_path, resume_step=0)
    writer.write(1, {"a": math.nan, "b": math.inf, "c": 1.5})
    writer.close()
    assert read_jsonl(tmp_path / "metrics.jsonl") == [{"step": 1, "a": None, "b": None, "c": 1.5}]


def test_comparable_leaves_the_machine_out():
    row = {"step": 1, "time/step": 3.0, "speed/tokens": 2.0, "coder/reward/mean": 0.5}
    assert comparable(row) == {"step": 1, "coder/reward/mean": 0.5}
