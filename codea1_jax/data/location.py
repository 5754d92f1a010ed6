"""Where a data set's files are: a local file or folder given by config, or its public home.

A download is written once under `cache_dir()` and never touched again; delete the file to fetch it
anew. Nothing here parses a file.
"""

import os
import pathlib
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence

from codea1_jax.errors import UserError


class DataError(UserError):
    """A data set cannot be found or read; the message names the file or key and the fix."""


def cache_dir() -> pathlib.Path:
    """Folder of downloads and prepared data sets: `CODEA1_CACHE`, else the user's cache folder."""
    if folder := os.environ.get("CODEA1_CACHE"):
        return pathlib.Path(folder)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "codea1"


def local_files(
    path: str | os.PathLike[str], names: Sequence[str], suffixes: Sequence[str], path_key: str
) -> list[pathlib.Path]:
    """The data files at a local path.

    Args:
      path: a file, or a folder that holds one of `names` (the first that exists is taken) or, when
        there is none, any files that end in one of `suffixes`.
      path_key: the configuration key that `path` came from, for the error message.
    """
    found = pathlib.Path(path)
    if found.is_file():
        return [found]
    if not found.is_dir():
        raise DataError(f"{path_key}={found}: no such file or folder")
    for name in names:
        if (found / name).is_file():
            return [found / name]
    files = sorted(f for f in found.iterdir() if f.is_file() and f.name.endswith(tuple(suffixes)))
    if not files:
        wanted = ", ".join([*names, *(f"*{suffix}" for suffix in suffixes)])
        raise DataError(f"{path_key}={found}: the folder holds none of {wanted}")
    return files


def fetch_url(url: str, path_key: str) -> pathlib.Path:
    """Downloads a file once; later calls return the cached copy."""
    target = cache_dir() / "downloads" / url.rpartition("/")[2]
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            content = response.read()
    except (urllib.error.URLError, OSError) as error:
        raise DataError(
            f"cannot fetch {url} ({error}); set {path_key} to a local copy of the file"
        ) from error
    # Atomic: a killed download must not leave half a file that later runs take for the whole.
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part:
        part.write(content)
    os.replace(part.name, target)
    return target


def fetch_hub(dataset: str, pattern: str, path_key: str) -> list[pathlib.Path]:
    """Files of a Hugging Face data set that match a glob pattern (the hub client's own cache)."""
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            dataset, repo_type="dataset", allow_patterns=[pattern]
        )
    except Exception as error:  # the client raises many unrelated types when offline
        raise DataError(
            f"cannot fetch the data set {dataset!r} from the hub ({type(error).__name__}: {error})"
            f"; set {path_key} to a local copy of its files"
        ) from error
    files = sorted(pathlib.Path(folder).glob(pattern))
    if not files:
        raise DataError(f"the data set {dataset!r} holds no files {pattern!r}; set {path_key}")
    return files
