"""Memory that is not given back is memory that a plan promised to another phase."""

import gc
import math
import pathlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from tiny_models import SMALL, small_batch

from codea1_jax import offload
from codea1_jax.ckpt.manager import CheckpointManager
from codea1_jax.config import TrainConfig, validate
from codea1_jax.gin_io import ConfigurationError, build
from codea1_jax.learning import prepare
from codea1_jax.mesh import make_mesh
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.plan.phases import device_bytes
from codea1_jax.rl.batching import TrainBatch
from codea1_jax.rl.learner import Learner, LearnerConfig, TrainState
from codea1_jax.rl.losses import LossConfig
from codea1_jax.rl.optim import OptimizerConfig
from codea1_jax.roles import load_role
from codea1_jax.rollout.types import Sample

pytestmark = pytest.mark.usefixtures("quick_compiles")

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = LanguageModel(SMALL)
MESHES = [(1, 1, 1), (2, 2, 2)]
HOST, DEVICE = "pinned_host", "device"


@pytest.fixture(scope="module")
def learners() -> dict[tuple[int, int, int], Learner]:
    """One a mesh; tests turn offloading on and off, which no program may notice."""
    made = {}
    for shape in MESHES:
        made[shape] = Learner(
            MODEL,
            make_mesh(*shape, devices=jax.devices()[: math.prod(shape)]),
            OptimizerConfig(peak_lr=1e-2, warmup_steps=0, schedule="constant"),
            LossConfig(kl_coefficient=0.1),
            LearnerConfig(length_buckets=(16,), micro_batch_tokens=64, tokens_per_chunk=32),
        )
    return made


@pytest.fixture(params=MESHES, ids=str)
def learner(learners: dict[tuple[int, int, int], Learner], request: Any) -> Iterator[Learner]:
    yield learners[request.param]
    learners[request.param].offload_optimizer = False


@pytest.fixture(scope="module")
def batch() -> TrainBatch:
    return small_batch()


@pytest.fixture(scope="module")
def weights() -> Any:
    return jax.device_get(MODEL.init(jax.random.key(0)))


def size_of(tree: Any) -> int:
    """Bytes of all devices' parts together."""
    return sum(device_bytes(leaf) * len(leaf.sharding.device_set) for leaf in jax.tree.leaves(tree))


def bytes_of(kind: str) -> int:
    """What live arrays take of one kind of memory."""
    gc.collect()
    return sum(size_of(a) for a in jax.live_arrays() if a.sharding.memory_kind == kind)


def two_steps(learner: Learner, state: TrainState, batch: TrainBatch, first: int = 1) -> TrainState:
    for step in (first, first + 1):
        state, metrics = learner.update(state, batch, step)
        assert not metrics["is_skipped"]
    return state


def moment_kinds(state: TrainState) -> set[str]:
    leaves = jax.tree.leaves((state.opt_state.mu, state.opt_state.nu))
    return {leaf.sharding.memory_kind for leaf in leaves}


def assert_equal(found: Any, wanted: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(wanted))


def test_moments_are_on_the_device_for_the_optimizer_only(
    learner: Learner, batch: TrainBatch, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = two_steps(learner, learner.init_state(weights), batch)
    assert moment_kinds(wanted) == {DEVICE}
    wanted = jax.device_get(wanted)
    learner.offload_optimizer = True
    before = {kind: bytes_of(kind) for kind in (HOST, DEVICE)}
    state = learner.init_state(weights)
    in_program: list[set[str]] = []
    apply, gradients = learner._apply, learner._policy_gradients

    def spy(state: TrainState, *rest: Any) -> Any:
        in_program.append(moment_kinds(state))
        return apply(state, *rest)

    def measured(*arguments: Any) -> Any:
        assert bytes_of(HOST) - before[HOST] == moments
        return gradients(*arguments)

    monkeypatch.setattr(learner, "_apply", spy)
    monkeypatch.setattr(learner, "_policy_gradients", measured)
    params = size_of(state.params)
    moments = 2 * params
    for step in (1, 2):
        assert moment_kinds(state) == {HOST}
        assert bytes_of(HOST) - before[HOST] == moments
        left = bytes_of(DEVICE) - before[DEVICE] - params
        assert 0 < left <= 3 * 4 * learner.mesh.size  # the counters
        state, _ = learner.update(state, batch, step)
    assert in_program == [{DEVICE}, {DEVICE}]
    assert_equal(state, wanted)
    assert apply._cache_size() == 1  # the program that ran without offloading


@pytest.mark.parametrize("is_on_when_saved", [True, False])
def test_a_checkpoint_restores_with_and_without(
    learners: dict, batch: TrainBatch, weights: Any, tmp_path: Any, is_on_when_saved: bool
) -> None:
    """Both ways, and onto another mesh: as placed as a fresh state, and with the same end."""
    alone, eight = (learners[shape] for shape in MESHES)
    alone.offload_optimizer = is_on_when_saved
    state = two_steps(alone, alone.init_state(weights), batch)
    manager = CheckpointManager(tmp_path)
    manager.save(2, {"coder": state}, {"step": 2})
    saved = jax.device_get(state)
    wanted = jax.device_get(two_steps(alone, state, batch, 3))
    for learner in (alone, eight):
        learner.offload_optimizer = not is_on_when_saved
        target = {"coder": learner.abstract_state()}
        before = bytes_of(DEVICE)
        state = manager.restore_arrays(2, target)["coder"]
        assert moment_kinds(state) == {DEVICE if is_on_when_saved else HOST}
        if not is_on_when_saved:
            assert bytes_of(DEVICE) - before < 1.1 * size_of(state.params)
        assert_equal(state, saved)
        for leaf, want in zip(*map(jax.tree.leaves, (state, target["coder"])), strict=True):
            assert leaf.sharding == want.sharding
        end = two_steps(learner, state, batch, 3)
        assert int(end.num_updates) == 4
        if learner is alone:
            assert_equal(end, wanted)
        learner.offload_optimizer = False
    manager.close()


def test_the_reference_is_on_the_device_while_it_is_used(
    learner: Learner, batch: TrainBatch, weights: Any
) -> None:
    where = jax.tree.map(lambda leaf: leaf.sharding, learner.abstract_state().params)
    reference = jax.device_put(weights, where)
    wanted = learner.score(reference, batch)
    with offload.on_device(reference) as used:
        assert used is reference
    before = bytes_of(DEVICE)
    reference = offload.to_host(reference)
    size = before - bytes_of(DEVICE)
    assert size == size_of(reference)
    with offload.on_device(reference) as used:
        assert bytes_of(DEVICE) == before
        assert_equal(learner.score(used, batch), wanted)
    assert bytes_of(DEVICE) == before - size
    assert learner._logprobs._cache_size() == 1


def test_a_lesson_scores_the_reference_on_the_device(
    learners: dict, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learners[1, 1, 1]
    role: Any = SimpleNamespace(
        name="coder",
        config=SimpleNamespace(loss=learner.loss, learner=learner.config),
        tokenizer=SimpleNamespace(pad_id=0),
        learner=learner,
        state=learner.init_state(weights),
        reference=offload.to_host(learner.init_state(weights).params),
    )
    kinds = []
    score = learner.score

    def spy(params: Any, batch: TrainBatch) -> Any:
        kinds.append(jax.tree.leaves(params)[0].sharding.memory_kind)
        return score(params, batch)

    monkeypatch.setattr(learner, "score", spy)
    tokens, logp = np.array([3, 4], np.int32), np.full(2, -1.0, np.float32)
    group = [Sample("q", i, (1, 2), tokens, logp, logp, "stop", 0) for i in range(2)]
    lesson = prepare(role, [group], np.array([[1.0, 0.0]]), np.ones((1, 2), bool))
    assert kinds == [DEVICE, DEVICE]
    np.testing.assert_array_equal(lesson.batch.ref_logp, lesson.batch.old_logp)
    assert np.any(lesson.batch.ref_logp)


@pytest.mark.parametrize("kind", [HOST, DEVICE])
def test_roles_are_loaded_where_their_keys_say(kind: str) -> None:
    flag = kind == HOST
    bindings = [f"RoleConfig.offload_{what} = {flag}" for what in ("optimizer", "reference")]
    config = build(TrainConfig, [str(ROOT / "gin/runs/smoke.gin")], bindings)
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    references: dict = {}
    roles = [load_role(role, mesh, references) for role in config.roles]
    assert roles[0].reference is roles[1].reference
    for role in roles:
        assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(role.reference)} == {kind}
        assert moment_kinds(role.state) == {kind}
        assert jax.tree.leaves(role.state.params)[0].sharding.memory_kind == DEVICE


@pytest.mark.parametrize("key", ["offload_optimizer", "offload_reference"])
def test_devices_without_host_memory_are_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build(
        TrainConfig, [str(ROOT / "gin/runs/smoke.gin")], [f"tester/RoleConfig.{key} = True"]
    )
    validate(config, 1)
    monkeypatch.setattr(offload, "HOST", "memory_of_another_kind")
    with pytest.raises(ConfigurationError, match=rf"tester/RoleConfig\.{key}=True.*to False"):
        validate(config, 1)
