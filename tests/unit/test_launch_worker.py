"""What runs on a TPU host: signals and notices reach the trainer, and its exit code comes back.

The trainer is a stand-in that does what train.py promises: SIGTERM, then exit code 130.
"""

import http.server
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINER = """#!/bin/bash
echo "$*" >>"$LOG/arguments"
echo "$JAX_COMPILATION_CACHE_DIR" >"$LOG/cache"
trap 'sleep 0.2; echo saved >>"$LOG/saved"; exit 130' TERM
touch "$LOG/started.$(wc -l <"$LOG/arguments")"
for _ in $(seq "${STEPS:-0}"); do sleep 0.1; done
exit "${CODE:-0}"
"""


class Host:
    """A worker in a copy of the launch folder, with a stand-in trainer."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        (folder / "launch").mkdir()
        shutil.copy(ROOT / "launch" / "worker.sh", folder / "launch")
        self._program(folder / ".venv" / "bin" / "codea1", TRAINER)
        self._program(folder / "bin" / "mountpoint", "#!/bin/bash\nexit 0\n")

    def _program(self, path: pathlib.Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(
        self, bucket: str = "gs://bucket/some/prefix", **variables: str
    ) -> subprocess.Popen[str]:
        environment = os.environ | {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "LOG": str(self.folder),
            "CODEA1_MOUNT": str(self.folder / "mnt"),
            "CODEA1_NOTICE_S": "0.1",
        }
        arguments = [f"--bucket={bucket}", "--name=a1", "--", "--gin.A='x y'"]
        return subprocess.Popen(
            ["bash", str(self.folder / "launch" / "worker.sh"), "train", *arguments],
            env=environment | variables,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline, f"{name} never appeared"
            time.sleep(0.02)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def host(tmp_path: pathlib.Path) -> Host:
    return Host(tmp_path)


class Metadata(http.server.BaseHTTPRequestHandler):
    """The metadata server of a host; `answers` maps the end of a path to a value."""

    answers: dict[str, str]

    def do_GET(self) -> None:
        is_allowed = self.headers.get("Metadata-Flavor") == "Google"
        self.send_response(200 if is_allowed else 403)
        self.end_headers()
        if is_allowed:
            self.wfile.write(self.answers[self.path].encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[tuple[dict[str, str], str]]:
    answers = {"/instance/maintenance-event": "NONE", "/instance/preempted": "FALSE"}
    handler = type("Handler", (Metadata,), {"answers": answers})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield answers, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("code", [0, 1, 2])
def test_arguments_and_exit_code_pass_through(host: Host, code: int) -> None:
    """2 is a configuration that cannot run: launchers must see it, and not start again."""
    _, errors = (process := host.start(CODE=str(code))).communicate(timeout=60)
    assert (process.returncode, errors) == (code, "")
    runs = host.folder / "mnt" / "some" / "prefix"
    assert host.lines("arguments") == [f"train --run_dir={runs / 'a1'} --gin.A='x y'"]
    assert host.lines("cache") == [str(runs / "compile_cache")]
    assert (runs / "a1").is_dir()


@pytest.mark.parametrize("bucket", ["gs://bucket", "gs://bucket/"])
def test_a_bucket_without_a_prefix(host: Host, bucket: str) -> None:
    assert host.start(bucket).wait(timeout=60) == 0
    assert host.lines("arguments") == [f"train --run_dir={host.folder}/mnt/a1 --gin.A='x y'"]


@pytest.mark.parametrize("notices", ["0", "1"])
def test_sigterm_lets_the_trainer_save(host: Host, metadata, notices: str) -> None:
    process = host.start(STEPS="600", CODEA1_NOTICES=notices, CODEA1_METADATA=metadata[1])
    host.wait_for("started.1")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert host.lines("saved") == ["saved"]
    assert len(host.lines("arguments")) == 1


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"),
        ("/instance/preempted", "TRUE"),
    ],
)
def test_a_notice_saves_and_its_end_continues(host: Host, metadata, path: str, value: str) -> None:
    answers, address = metadata
    usual = answers[path]
    process = host.start(STEPS="600", CODEA1_NOTICES="1", CODEA1_METADATA=address)
    host.wait_for("started.1")
    answers[path] = value
    host.wait_for("saved")
    time.sleep(0.5)
    assert len(host.lines("arguments")) == 1, "started again although the host is about to go"
    answers[path] = usual
    host.wait_for("started.2")
    assert host.lines("arguments")[0] == host.lines("arguments")[1]
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "notice from the host" in errors


def test_bad_arguments_are_one_sentence(host: Host) -> None:
    worker = str(host.folder / "launch" / "worker.sh")
    for arguments, words in ((["train", "--name=a1"], "are needed"), (["fly"], "not 'fly'")):
        done = subprocess.run(["bash", worker, *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
