"""Runs a command as on another host: as a plain user, or where the kernel refuses calls.

    python other_host.py [--uid 4242] [--refuse unshare,pidfd_open] COMMAND ...

`--uid` needs root. The interpreter and this checkout are made readable for that user in a mount
namespace of its own, so nothing of this machine changes. Refused calls answer as the hosts do that
refuse them: unshare with EPERM (a container's default filter), others with ENOSYS (gVisor).
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sandbox_service import linux, seccomp  # noqa: E402

PLAIN_UID = 4242
# Tier -> the host on which it is the strongest, as arguments of this script.
HOSTS = {
    "A-root": (),
    "A-user": ("--uid", str(PLAIN_UID)),
    "B": ("--uid", str(PLAIN_UID), "--refuse", "unshare"),
    "C": ("--refuse", "pidfd_open,landlock_create_ruleset"),
    "D": ("--uid", str(PLAIN_UID), "--refuse", "unshare,landlock_create_ruleset"),
}
_EPERM, _ENOSYS = 1, 38
_CALLS = {
    "x86_64": {"unshare": (272, _EPERM)},
    "aarch64": {"unshare": (97, _EPERM)},
}
_EVERYWHERE = {"pidfd_open": (434, _ENOSYS), "landlock_create_ruleset": (444, _ENOSYS)}


def run_there(tier: str, *command: str) -> "subprocess.CompletedProcess[str]":
    """Runs a command on the host of a tier; without root only A-user, B and D can be had."""
    arguments = list(HOSTS[tier])
    if os.getuid() != 0 and "--uid" in arguments:
        arguments = arguments[2:]
    return subprocess.run(
        [sys.executable, str(pathlib.Path(__file__).resolve()), *arguments, *command],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": "/tmp", "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        timeout=500,
    )


def judge_there(
    tier: str, cases: dict[str, Any], *options: str
) -> "subprocess.CompletedProcess[str]":
    """`codea1-sandbox judge` of a content of a file of cases, on the host of a tier."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = pathlib.Path(folder) / "cases.json"
        path.write_text(json.dumps(cases))
        os.chmod(folder, 0o755)
        command = [sys.executable, "-m", "sandbox_service.cli", "judge", "--cases", str(path)]
        return run_there(tier, *command, "--slots", "2", "--tier", tier, *options)


def refuse(names: list[str]) -> None:
    calls = {**_CALLS[platform.machine()], **_EVERYWHERE}
    code = [seccomp._instruction(seccomp._LOAD, 0, 0, seccomp._NR)]
    for name in names:
        number, error = calls[name]
        code += seccomp._answer(number, seccomp._ERRNO | error)
    code.append(seccomp._instruction(seccomp._RETURN, 0, 0, seccomp._ALLOW))
    linux.set_seccomp_filter(b"".join(code))


def make_readable(paths: list[str]) -> None:
    """Empty folders take the place of those that keep others out, with `paths` in them."""
    os.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    held = {path: os.open(path, os.O_PATH) for path in paths}
    closed = {
        str(parent)
        for path in paths
        for parent in pathlib.Path(path).parents
        if not parent.stat().st_mode & 1
    }
    for folder in sorted(closed):
        if not any(folder.startswith(other + "/") for other in closed):
            linux.mount("open", folder, "tmpfs", 0, "mode=755")
    for path, fd in held.items():
        if not os.path.exists(path):
            os.makedirs(path, mode=0o755)
            linux.mount(f"/proc/self/fd/{fd}", path, None, linux.MS_BIND)
        os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--uid", type=int, default=0)
    parser.add_argument("--refuse", default="")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    os.umask(0o022)
    if os.getuid() == 0:
        make_readable(sorted({sys.base_prefix, sys.prefix, str(ROOT)}))
    if arguments.uid:
        os.setgroups([])
        os.setresgid(arguments.uid, arguments.uid, arguments.uid)
        os.setresuid(arguments.uid, arguments.uid, arguments.uid)
    if arguments.refuse:
        refuse(arguments.refuse.split(","))
    os.execvp(arguments.command[0], arguments.command)


if __name__ == "__main__":
    main()
