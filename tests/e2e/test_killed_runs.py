"""SIGKILL anywhere, then the same command: a run must end as if nothing had happened, bit for bit.

Slow: `launch/test.sh --slow -k killed_runs`. Points are drawn from CODEA1_KILL_SEED (default 1) and
from how long the phases of an uninterrupted run take.
"""

import dataclasses
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from codea1_jax.obs.metrics import comparable, read_jsonl

SCRIPT = pathlib.Path(__file__).with_name("killed_run.py")
SEED = int(os.environ.get("CODEA1_KILL_SEED", "1"))
NUM_STEPS, SAVE_EVERY = 4, 2  # so that a whole step may have to be done again
FLAGS = (
    f"--gin.STEPS={NUM_STEPS}",
    f"--gin.TrainConfig.save_every_steps={SAVE_EVERY}",
    "--gin.TrainConfig.num_minibatches=2",
)
PLACES = {
    "rollout": ["coder rollout", "tester rollout"],
    "judging": ["judging"],
    "update": ["coder log-probs", "coder update", "tester update"],
    "save": ["checkpoint"],
}
SAVE_S = 0.3
DEADLINE_S = 600.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How many processes a run has, of how many fake devices each, and what waits on the host."""

    processes: int
    devices: int
    flags: tuple[str, ...] = ()


ONE, TWO = Layout(1, 1), Layout(2, 2)
ON_HOST = ("--gin.RoleConfig.offload_optimizer=True", "--gin.RoleConfig.offload_reference=True")
ONE_ON_HOST, TWO_ON_HOST = Layout(1, 1, ON_HOST), Layout(2, 2, ON_HOST)


@dataclasses.dataclass(frozen=True)
class Point:
    """Where SIGKILL comes, and to which process."""

    step: int
    phase: str
    delay_s: float
    process: int


@pytest.fixture(scope="module")
def start(small_run, tmp_path_factory):
    """Starts all processes of a run, one of them armed."""
    cache = tmp_path_factory.mktemp("xla")

    def run(layout: Layout, run_dir: pathlib.Path, point: Point | None) -> list[subprocess.Popen]:
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(cache / str(layout.processes)),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={layout.devices}",
        }
        arguments = [*small_run, *FLAGS, *layout.flags, f"--run_dir={run_dir}"]
        if layout.processes > 1:
            arguments.append("--distributed")
            environment |= {
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{_free_port()}",
                "JAX_NUM_PROCESSES": str(layout.processes),
            }
        started = []
        for process in range(layout.processes):
            command = [sys.executable, "-m", "codea1_jax.cli", "train"]
            if point is not None and point.process == process:
                where = (point.step, point.phase, point.delay_s)
                command = [sys.executable, str(SCRIPT), *map(str, where)]
            started.append(
                subprocess.Popen(
                    [*command, *arguments],
                    env=environment | {"JAX_PROCESS_ID": str(process)}
                    if layout.processes > 1
                    else environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        return started

    return run


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def finish(processes: list[subprocess.Popen]) -> str:
    """Waits for a run to end well; what its leading process said."""
    outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs[0]


def finish_killed(processes: list[subprocess.Popen], point: Point) -> str:
    """Waits for the armed process to die, ends the others as a launcher does; where it died."""
    armed = processes[point.process]
    output, _ = armed.communicate(timeout=DEADLINE_S)
    assert armed.returncode == -9, output
    for other in processes:
        if other is not armed:
            other.kill()
            other.communicate()
    found = re.search(r"killed in (.+)", output)
    assert found, output
    return found[1]


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """The uninterrupted run of each layout, made when first asked for."""
    made: dict[Layout, pathlib.Path] = {}

    def run(layout: Layout) -> pathlib.Path:
        if layout not in made:
            made[layout] = tmp_path_factory.mktemp("whole") / "run"
            finish(start(layout, made[layout], None))
        return made[layout]

    return run


def draw(place: str, layout: Layout, rows: list[dict[str, Any]]) -> Point:
    """A point in `place`; `rows` are the metrics of the uninterrupted run, step 0 first."""
    rng = random.Random(f"{SEED}/{place}/{layout.processes}")
    phase = rng.choice(PLACES[place])
    step = rng.choice(
        [s for s in range(1, NUM_STEPS + 1) if place != "save" or s % SAVE_EVERY == 0]
    )
    seconds = rows[step].get(f"time/{phase.replace(' ', '_')}", SAVE_S)
    return Point(step, phase, rng.uniform(0.0, seconds), rng.randrange(layout.processes))


def saved(run_dir: pathlib.Path) -> tuple[Any, dict[str, Any]]:
    """Arrays and meta of the last checkpoint, whatever devices wrote it."""
    handlers = {"arrays": ocp.PyTreeCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
    manager = ocp.CheckpointManager(run_dir / "checkpoints", item_handlers=handlers)
    tree = manager.item_metadata(NUM_STEPS)["arrays"].tree
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    items = manager.restore(
        NUM_STEPS,
        args=ocp.args.Composite(
            arrays=ocp.args.PyTreeRestore(restore_args=as_numpy), meta=ocp.args.JsonRestore()
        ),
    )
    return items["arrays"], items["meta"]


def assert_same_end(found: pathlib.Path, expected: pathlib.Path) -> None:
    (arrays, meta), (other_arrays, other_meta) = saved(found), saved(expected)
    assert len(jax.tree.leaves(arrays)) > 20
    jax.tree.map(np.testing.assert_array_equal, arrays, other_arrays)
    assert meta == other_meta  # book, cursor and policy versions among it
    rows, other_rows = (read_jsonl(run / "metrics.jsonl") for run in (found, expected))
    assert [comparable(row) for row in rows] == [comparable(row) for row in other_rows]
    assert rows[-1]["step"] == NUM_STEPS


@pytest.mark.parametrize(
    ("layout", "place"),
    [(ONE, place) for place in PLACES]
    + [(TWO, place) for place in PLACES]
    + [(ONE_ON_HOST, "update"), (TWO_ON_HOST, "update")],
    ids=lambda value: (
        value
        if isinstance(value, str)
        else f"{value.processes}-processes{'-on-host' if value.flags else ''}"
    ),
)
def test_a_killed_run_ends_like_the_whole_one(start, whole, tmp_path, layout, place):
    expected = whole(layout)
    point = draw(place, layout, read_jsonl(expected / "metrics.jsonl"))
    run_dir = tmp_path / "run"
    died_in = finish_killed(start(layout, run_dir, point), point)
    print(f"\n{layout} {point}: killed in {died_in}", end=" ")
    output = finish(start(layout, run_dir, None))
    last = (point.step - 1) // SAVE_EVERY * SAVE_EVERY
    # The delay was drawn from another run's times: on a faster phase the kill lands later.
    continued = re.search(r"continuing after step (\d+) ", output)
    assert last <= (int(continued[1]) if continued else 0) < NUM_STEPS or place == "save"
    assert_same_end(run_dir, expected)
