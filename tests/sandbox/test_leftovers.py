"""If a run leaves anything behind, the next one in its slot is judged wrongly, or told a secret."""

import contextlib
import json
import os
import pathlib
import sys

import pytest
from other_host import run_there

from sandbox_service import cage

SCRIPT = str(pathlib.Path(__file__).with_name("leftover_runs.py"))


@pytest.mark.parametrize("tier", ["A-root", "A-user"])
def test_the_next_run_sees_a_fresh_slot(tier: str) -> None:
    """Whatever ran before, the same look around gives the same."""
    if os.getuid() != 0 and tier == "A-root":
        pytest.skip("needs root")
    done = run_there(tier, sys.executable, SCRIPT, tier)
    if "no isolation tier" in done.stderr:
        pytest.skip(f"tier {tier} cannot be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    fresh = seen.pop("")
    assert fresh.startswith("VALUE")
    assert {name: look for name, look in seen.items() if look != fresh} == {}
    assert len(seen) > 20


def test_a_folder_that_is_kept_is_restored(tmp_path: pathlib.Path) -> None:
    """Without a file system of its own a slot keeps its folder: it must bring no letters along."""
    (tmp_path / "file").write_text("left")
    with contextlib.suppress(OSError):  # not every file system has attributes
        os.setxattr(tmp_path, "user.letter", b"left")
    os.utime(tmp_path, (1e9, 1e9))
    os.chmod(tmp_path, 0)
    cage._restore_folder(str(tmp_path))
    cage._empty_folder(str(tmp_path))
    assert os.listdir(tmp_path) == os.listxattr(tmp_path) == []
    assert os.stat(tmp_path).st_mode & 0o7777 == 0o700
    assert os.stat(tmp_path).st_mtime != 1e9
