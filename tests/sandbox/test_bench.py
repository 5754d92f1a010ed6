"""Figures that cannot be had with one command are not believed; examples that fail are worse."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from sandbox_service import bench

README = pathlib.Path(__file__).resolve().parents[2] / "sandbox_service" / "README.md"


def _bench(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "sandbox_service.cli", "bench", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("mode", ["unary", "stream", "batch"])
def test_bench_ends_with_one_line_of_json(service: str, mode: str) -> None:
    """Scripts read the last line."""
    done = _bench("--address", service, "--mode", mode, "--runs", "30", "--calls", "5")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["mode"], result["runs"], result["errors"]) == (mode, 30, 0)
    assert result["runs_per_s"] > 0
    assert result["calls_per_s"] == pytest.approx(5 * result["runs_per_s"], rel=0.01)
    assert 0 < result["p50_ms"] <= result["p90_ms"] <= result["p99_ms"]
    assert result["tier"]
    assert "30 of 30 runs" in done.stderr


def test_bench_starts_its_own_service_and_compares_with_fresh_interpreters() -> None:
    """The ratio belongs to the two figures beside it; its size is no matter for a test."""
    done = _bench("--runs", "300", "--compare", "subprocess", "--slots", "2")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["subprocess_runs_per_s"] > 0
    assert result["ratio"] == pytest.approx(
        result["runs_per_s"] / result["subprocess_runs_per_s"], rel=0.05
    )


def test_bench_without_a_service_fails_with_a_reason() -> None:
    """A typing error in the address must not look like a slow service."""
    done = _bench("--address", "127.0.0.1:1", "--runs", "5")
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_percentiles() -> None:
    """Nearest rank: the 99th of 100 values is one of them."""
    values = [float(value) for value in range(100, 0, -1)]
    assert [bench._percentile(values, percent) for percent in (50, 90, 99)] == [50, 90, 99]
    assert bench._percentile([7.0], 99) == 7.0


def test_examples_of_the_readme_run(service: str) -> None:
    """The first code that a stranger copies."""
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(examples) == 3
    first, library, judged = (text.replace("127.0.0.1:50061", service) for text in examples)
    judged = f"{first}{judged}print([o.error_type for o in reply.outcomes], reply.num_passed)"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        for text in (library, judged)
    ]
    assert outputs[0] == "CallStatus.VALUE 3 \nCallStatus.ERROR None TypeError\n"
    assert re.match(r"VERDICT_PASS [A-D]\S* \d+\n\['VacuousTest', ''\] \d\n", outputs[1])


def test_the_readme_names_every_option_of_serve() -> None:
    """An option that nobody knows of is no option."""
    help_text = subprocess.run(
        [sys.executable, "-m", "sandbox_service.cli", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    options = set(re.findall(r"--[a-z-]+", help_text)) - {"--help"}
    internal = {"--port-file", "--exit-with-parent"}
    missing = {option for option in options - internal if option not in README.read_text()}
    assert not missing
