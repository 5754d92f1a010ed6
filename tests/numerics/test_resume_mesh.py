"""A checkpoint that only its own mesh can read is lost with the slice that wrote it."""

import math
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from tiny_models import SMALL, small_batch

from codea1_jax.ckpt.manager import CheckpointManager
from codea1_jax.mesh import make_mesh
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rl.batching import TrainBatch
from codea1_jax.rl.learner import Learner, LearnerConfig, TrainState
from codea1_jax.rl.losses import LossConfig
from codea1_jax.rl.optim import OptimizerConfig

pytestmark = pytest.mark.usefixtures("quick_compiles")

MODEL = LanguageModel(SMALL)
OTHERS = [(2, 4, 1), (1, 2, 4), (1, 1, 1)]
# Float32 sums in another order; losses and norms are sums of some hundred such terms.
TOLERANCE = 2e-5


def make_learner(mesh_shape: tuple[int, int, int]) -> Learner:
    mesh = make_mesh(*mesh_shape, devices=jax.devices()[: math.prod(mesh_shape)])
    return Learner(
        MODEL,
        mesh,
        OptimizerConfig(peak_lr=1e-2, warmup_steps=0, schedule="constant"),
        LossConfig(kl_coefficient=0.0),
        LearnerConfig(length_buckets=(16,), micro_batch_tokens=128, tokens_per_chunk=32),
    )


@pytest.fixture(scope="module")
def batch() -> TrainBatch:
    return small_batch()


def steps(
    learner: Learner, state: TrainState, batch: TrainBatch, first: int
) -> Iterator[tuple[TrainState, dict[str, float]]]:
    """Two training steps from `first` on, old log-probs from the parameters before each."""
    for step in (first, first + 1):
        scored = batch.replace(old_logp=learner.score(state.params, batch)[0] + np.float32(0.1))
        state, metrics = learner.update(state, scored, step)
        yield state, metrics


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory, batch: TrainBatch) -> dict[str, Any]:
    """Two steps on fsdp 8, a checkpoint, two steps more."""
    assert len(jax.devices()) == 8
    learner = make_learner((1, 8, 1))
    *_, (state, _) = steps(learner, learner.init_state(MODEL.init(jax.random.key(0))), batch, 1)
    folder = tmp_path_factory.mktemp("checkpoints")
    manager = CheckpointManager(folder)
    manager.save(2, {"coder": state}, {"step": 2})
    manager.close()
    saved = jax.device_get(state)
    *_, (end, metrics) = steps(learner, state, batch, 3)
    return {"folder": folder, "saved": saved, "end": jax.device_get(end), "metrics": metrics}


@pytest.mark.parametrize("mesh_shape", OTHERS, ids=str)
def test_a_checkpoint_of_eight_goes_on_elsewhere(
    eight: dict[str, Any], batch: TrainBatch, mesh_shape: tuple[int, int, int]
) -> None:
    learner = make_learner(mesh_shape)
    folder: pathlib.Path = eight["folder"]
    manager = CheckpointManager(folder)
    state = manager.restore_arrays(2, {"coder": learner.abstract_state()})["coder"]
    manager.close()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), eight["saved"])

    wanted = learner.abstract_state()
    num_matrices = 0
    for (path, leaf), want in zip(
        jax.tree.leaves_with_path(state), jax.tree.leaves(wanted), strict=True
    ):
        name = jax.tree_util.keystr(path)
        assert leaf.sharding == want.sharding, name
        if "kernel" in name or "table" in name:  # of the master weights and of both moments
            num_matrices += 1
            size = leaf.addressable_shards[0].data.size
            assert size <= leaf.size // mesh_shape[1], f"{name} is not split over fsdp"
    assert num_matrices == 3 * 8

    *_, (end, metrics) = steps(learner, state, batch, 3)
    assert metrics.keys() == eight["metrics"].keys()
    for name, value in metrics.items():
        assert value == pytest.approx(eight["metrics"][name], rel=TOLERANCE, abs=1e-6), name
    assert int(end.num_updates) == int(eight["end"].num_updates) == 4
    jax.tree.map(
        lambda found, want: np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-5),
        jax.device_get(end.params),
        eight["end"].params,
    )
