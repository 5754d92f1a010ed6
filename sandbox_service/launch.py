"""Starts the service as a process of its own on a free loopback port, while it is needed."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

_START_TIMEOUT_S = 60.0


@contextlib.contextmanager
def service_process(
    *,
    slots: int | None = None,
    min_tier: str = "B",
    tier: str = "",
    options: Sequence[str] = (),
) -> Iterator[str]:
    """Yields the address of a new service; ends it on the way out and if this process dies.

    `options` are further ones of `codea1-sandbox serve`.

    Raises RuntimeError with the service's own words if it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="codea1-sandbox-start-") as folder:
        port_file = os.path.join(folder, "port")
        command = [sys.executable, "-m", "sandbox_service.cli", "serve"]
        command += ["--address", "127.0.0.1:0", "--port-file", port_file]
        command += ["--min-tier", min_tier, "--exit-with-parent", str(os.getpid())]
        command += ["--slots", str(slots)] if slots else []
        command += ["--tier", tier] if tier else []
        command += options
        with open(os.path.join(folder, "log"), "w+") as log:
            # A session of its own: Ctrl-C in the trainer must not end runs it still waits for.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
            try:
                yield f"127.0.0.1:{_wait_for_port(process, port_file, log.name)}"
            finally:
                process.terminate()
                try:
                    process.wait(25)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _wait_for_port(process: "subprocess.Popen[bytes]", port_file: str, log: str) -> int:
    """The file appears once the service is healthy."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if os.path.exists(port_file):
            with open(port_file) as file:
                return int(file.read())
        if process.poll() is not None:
            break
        time.sleep(0.02)
    with open(log) as file:
        words = file.read()[-2000:].strip()
    raise RuntimeError(f"the sandbox service did not start: {words or 'no word from it'}")
