"""A training run outlives its sandbox hosts: one is killed at work, one keeps stopping.

If this fails, a lost host costs a run its verdicts, or gives wrong ones. Slow: two small runs.
"""

import contextlib
import itertools
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

import orbax.checkpoint as ocp
import pytest

from codea1_jax.obs.metrics import comparable, read_jsonl

DEADLINE_S = 900.0
# From a hiccup to what the client takes for a dead host (it asks after 2 s and waits for 4 s).
STOPS_S = (0.3, 1.0, 3.0, 7.0)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Host:
    """A sandbox service that can be stopped and killed."""

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._metrics = f"127.0.0.1:{free.getsockname()[1]}"
        port_file = folder / f"{name}.port"
        command = [sys.executable, "-m", "sandbox_service.cli", "serve", "--slots", "2"]
        command += ["--address", "127.0.0.1:0", "--port-file", str(port_file)]
        command += ["--metrics-address", self._metrics, "--exit-with-parent"]
        self.process = subprocess.Popen(command)
        _wait_until(port_file.exists, self.process)
        self.address = f"127.0.0.1:{port_file.read_text().strip()}"

    def num_busy(self) -> int:
        """Runs that it has in hand."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=10) as page:
            found = re.search(r"^codea1_sandbox_slots_busy (\S+)", page.read().decode(), re.M)
        assert found
        return int(float(found[1]))

    def close(self) -> None:
        for number in (signal.SIGCONT, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
        self.process.wait(40)


def _wait_until(condition, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.002)


@contextlib.contextmanager
def _keeps_stopping(host: Host) -> Iterator[list[float]]:
    """The host stands still most of the time; yields the stops so far, in seconds."""
    is_over = threading.Event()
    stops: list[float] = []

    def work() -> None:
        for seconds in itertools.cycle(STOPS_S):
            host.process.send_signal(signal.SIGSTOP)
            is_over.wait(seconds)
            host.process.send_signal(signal.SIGCONT)
            stops.append(seconds)
            if is_over.wait(0.5):
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield stops
    finally:
        is_over.set()
        thread.join()


def _start(small_run: list[str], run_dir: pathlib.Path, *hosts: Host) -> subprocess.Popen:
    addresses = ",".join(host.address for host in hosts)
    command = [sys.executable, "-m", "codea1_jax.cli", "train", *small_run]
    command += [f"--run_dir={run_dir}", f"--gin.SandboxConfig.address='{addresses}'"]
    return subprocess.Popen(command, env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""})


def _book(run_dir: pathlib.Path) -> object:
    manager = ocp.CheckpointManager(run_dir / "checkpoints", item_names=("arrays", "meta"))
    return manager.restore(3, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]["book"]


def test_a_killed_and_a_slow_host_change_nothing(
    small_run: list[str], tmp_path: pathlib.Path
) -> None:
    with contextlib.ExitStack() as stack:

        def host(name: str) -> Host:
            made = Host(tmp_path, name)
            stack.callback(made.close)
            return made

        healthy = _start(small_run, tmp_path / "healthy", host("healthy"))
        assert healthy.wait(DEADLINE_S) == 0

        killed, slow = host("killed"), host("slow")
        run = _start(small_run, tmp_path / "troubled", killed, slow)
        first_step = tmp_path / "troubled" / "rollouts" / "step_000001.jsonl"
        with _keeps_stopping(slow) as stops:
            _wait_until(first_step.exists, run)
            _wait_until(lambda: killed.num_busy() > 0, run)
            killed.process.kill()
            assert run.wait(DEADLINE_S) == 0
        assert set(stops) == set(STOPS_S)

    found, expected = (tmp_path / name for name in ("troubled", "healthy"))
    rows = read_jsonl(found / "metrics.jsonl")
    assert [row["verdicts/unknown_share"] for row in rows[1:]] == [0, 0, 0]
    assert [comparable(row) for row in rows] == [
        comparable(row) for row in read_jsonl(expected / "metrics.jsonl")
    ]
    for step in (1, 2, 3):
        name = f"rollouts/step_{step:06}.jsonl"
        for one, other in zip(read_jsonl(found / name), read_jsonl(expected / name), strict=True):
            assert one["verdicts"] == other["verdicts"]
            assert one["rewards"] == other["rewards"]
    assert _book(found) == _book(expected)
