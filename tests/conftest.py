"""Eight fake CPU devices, strict numerics, and the shared data folder.

Sharding is live in every test: a test that builds a mesh gets real devices to shard over.
"""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

try:
    import jax
except ImportError:  # the base install: sandbox tests only
    pass
else:
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_threefry_partitionable", True)

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """Folder with the public benchmark files (EvalPlus, MBPP, KodCode); see docs/data.md."""
    folder = pathlib.Path(os.environ.get("CODEA1_DATA_DIR", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(
            f"{folder} is missing; set CODEA1_DATA_DIR to a folder with the benchmark files"
        )
    return folder


@pytest.fixture(scope="session")
def real_checkpoint() -> pathlib.Path:
    folder = os.environ.get("CODEA1_REAL_CHECKPOINT", "")
    if not folder:
        pytest.skip("set CODEA1_REAL_CHECKPOINT to a Qwen2.5-Coder-0.5B-Instruct directory")
    return pathlib.Path(folder)
