"""EvalPlus' own verdicts on a samples file, appended line by line; run again, it continues.

    python run_evalplus.py humaneval|mbpp RELEASE.jsonl.gz SAMPLES.jsonl VERDICTS.jsonl [SECONDS]

Runs in an environment of its own with evalplus==0.3.1. Calls EvalPlus' per-sample check, because
its command wants a sample of every task. The time limits are raised: EvalPlus measures wall time,
which a busy machine stretches.
"""

import hashlib
import json
import os
import pathlib
import sys
import time
from concurrent.futures import ProcessPoolExecutor

DATASET, RELEASE, SAMPLES, VERDICTS = sys.argv[1:5]
SECONDS = float(sys.argv[5]) if len(sys.argv) > 5 else float("inf")
os.environ[f"{DATASET.upper()}_OVERRIDE_PATH"] = RELEASE

from evalplus.data import get_human_eval_plus, get_mbpp_plus  # noqa: E402
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS  # noqa: E402
from evalplus.evaluate import check_correctness, trusted_exec  # noqa: E402

MIN_TIME_LIMIT_S = 5.0
TIME_FACTOR = 8.0


def judge(problem: dict, solutions: list[str]) -> list[list[str]]:
    """(base, plus) statuses of the samples of one task."""
    expected = {}
    for part in ("base", "plus"):
        expected[part], expected[f"{part}_time"] = trusted_exec(
            problem["prompt"] + problem["canonical_solution"],
            problem[f"{part}_input"],
            problem["entry_point"],
            record_time=True,
            output_not_none=problem["entry_point"] in MBPP_OUTPUT_NOT_NONE_TASKS,
        )
    found = []
    for solution in solutions:
        result = check_correctness(
            DATASET, 0, problem, solution, expected, fast_check=True,
            min_time_limit=MIN_TIME_LIMIT_S, gt_time_limit_factor=TIME_FACTOR,
        )  # fmt: skip
        found.append([result["base"][0], result["plus"][0]])
    return found


def digest(solution: str) -> str:
    return hashlib.sha256(solution.encode()).hexdigest()[:16]


def main() -> None:
    start = time.monotonic()
    problems = get_human_eval_plus() if DATASET == "humaneval" else get_mbpp_plus()
    verdicts = pathlib.Path(VERDICTS)
    done = set()
    if verdicts.exists():
        rows = [json.loads(line) for line in verdicts.read_text().splitlines()]
        done = {(row["task_id"], row["sha256"]) for row in rows}
    by_task: dict[str, list[str]] = {}
    for line in pathlib.Path(SAMPLES).read_text().splitlines():
        row = json.loads(line)
        if (row["task_id"], digest(row["solution"])) not in done:
            by_task.setdefault(row["task_id"], []).append(row["solution"])
    with ProcessPoolExecutor(2) as executor, verdicts.open("a") as out:
        waiting = []
        todo = list(by_task.items())
        while todo or waiting:
            while todo and len(waiting) < 3 and time.monotonic() - start < SECONDS:
                task_id, solutions = todo.pop(0)
                future = executor.submit(judge, problems[task_id], solutions)
                waiting.append((task_id, solutions, future))
            if not waiting:
                break
            task_id, solutions, future = waiting.pop(0)
            for solution, (base, plus) in zip(solutions, future.result()):
                row = {"task_id": task_id, "sha256": digest(solution), "base": base, "plus": plus}
                out.write(json.dumps(row) + "\n")
            out.flush()
    print(f"{len(todo)} tasks left")


if __name__ == "__main__":
    main()
