"""Groups that teach nothing must not poison a step, and a broken sampler must stop the run."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from tiny_models import SMALLEST

from codea1_jax.learning import MismatchTooLarge, prepare, update
from codea1_jax.mesh import make_mesh
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rl.learner import Learner, LearnerConfig
from codea1_jax.rl.losses import LossConfig
from codea1_jax.rl.optim import OptimizerConfig
from codea1_jax.rollout.types import Sample

MODEL = LanguageModel(SMALLEST)
CONFIG = LearnerConfig(length_buckets=(32,), micro_batch_tokens=256)
UNIFORM = -np.log(16.0)


@pytest.fixture(scope="module")
def learner() -> Learner:
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    loss = LossConfig(kl_coefficient=0.0)
    return Learner(MODEL, mesh, OptimizerConfig(warmup_steps=0), loss, CONFIG)


def make_role(learner: Learner, **loss: Any) -> Any:
    """A role whose model is uniform, so that every log-prob is known.

    `loss` changes what `prepare` reads; the learner's own program stays the same.
    """
    params = jax.tree.map(lambda p: np.zeros(p.shape, np.float32), MODEL.init(jax.random.key(0)))
    return SimpleNamespace(
        name="coder",
        config=SimpleNamespace(loss=LossConfig(**{"kl_coefficient": 0.0} | loss), learner=CONFIG),
        tokenizer=SimpleNamespace(pad_id=0),
        learner=learner,
        state=learner.init_state(params),
        reference=None,
        policy_version=0,
    )


def make_groups(lengths: list[list[int]], sampler_logp: float = UNIFORM) -> list[list[Sample]]:
    rng = np.random.default_rng(0)
    return [
        [
            Sample(
                request_id=str(g),
                sample_index=i,
                prompt=(1, 2 + g),
                tokens=rng.integers(0, 16, length).astype(np.int32),
                sampler_logp=np.full(length, sampler_logp, np.float32),
                kept_mass=np.ones(length, np.float32),
                finish_reason="stop",
                policy_version=0,
            )
            for i, length in enumerate(group)
        ]
        for g, group in enumerate(lengths)
    ]


def test_groups_that_teach_nothing(learner: Learner):
    """Equal rewards, unknown verdicts, one usable sample, NaN: advantage 0, counted, finite."""
    rewards = np.array([[1.0, 0.0], [0.5, 0.5], [1.0, 0.0], [np.nan, 1.0], [0.3, 0.9]])
    mask = np.ones((5, 2), bool)
    mask[2] = False, True  # one usable sample
    mask[4] = False  # none
    role = make_role(learner)
    lesson = prepare(role, make_groups([[3, 4]] * 5), rewards, mask)
    advantages = lesson.batch.advantages.reshape(5, 2)
    np.testing.assert_allclose(advantages[0], [np.sqrt(0.5), -np.sqrt(0.5)], rtol=1e-5)
    assert not advantages[1:].any()
    is_trained = lesson.batch.response_mask.any(axis=1).reshape(5, 2)
    np.testing.assert_array_equal(is_trained, mask & np.isfinite(rewards))
    metrics = update(lesson, 1, 1)
    counts = {
        "num_zero_variance_groups": 1,
        "num_unknown": 3,
        "num_nonfinite": 1,
        "num_singleton_groups": 2,
        "num_empty_groups": 1,
        "num_rows": 6,
        "is_skipped": 0,
    }
    assert {name: metrics[name] for name in counts} == counts
    assert all(np.isfinite(value) for value in metrics.values())
    assert role.policy_version == 1


def test_nothing_to_learn_skips_the_step(learner: Learner):
    role = make_role(learner)
    before = jax.device_get(role.state.params)
    lesson = prepare(role, make_groups([[3, 4]]), np.array([[np.nan, 1.0]]), np.zeros((1, 2), bool))
    metrics = update(lesson, 1, 1)
    assert metrics["is_skipped"] == 1
    assert all(np.isfinite(value) for value in metrics.values())
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(role.state.params))


def test_filtered_groups_are_left_out_and_counted(learner: Learner):
    """Dynamic sampling: a group without variance must not dilute the token mean."""
    rewards = np.array([[1.0, 0.0], [0.5, 0.5]])
    groups = make_groups([[3, 4], [5, 6]])
    kept = prepare(
        make_role(learner), groups, rewards, np.ones((2, 2), bool), np.array([True, False])
    )
    assert kept.batch.num_response_tokens == 7
    assert kept.metrics["num_filtered_groups"] == 1
    assert kept.metrics["num_zero_variance_groups"] == 1
    assert kept.metrics["num_unknown"] == 0


def test_objectives_choose_their_advantages(learner: Learner):
    """Dr. GRPO leaves the deviation out; DAPO's overlong penalty comes before the group mean."""
    rewards, mask = np.array([[1.0, 0.5]]), np.ones((1, 2), bool)
    groups = make_groups([[4, 8]])
    role = make_role(learner, objective="dr_grpo", max_response_tokens=8)
    np.testing.assert_allclose(prepare(role, groups, rewards, mask).batch.advantages, [0.25, -0.25])
    role = make_role(learner, objective="dr_grpo", max_response_tokens=10, overlong_buffer=0.4)
    lesson = prepare(role, groups, rewards, mask)  # 8 tokens cost half of the buffer
    np.testing.assert_allclose(lesson.batch.advantages, [0.5, -0.5])
    assert lesson.metrics["overlong_share"] == 0.5


def test_mismatch_is_measured_corrected_and_limited(learner: Learner):
    """Nothing of the role may have changed when the run stops, so that it can be saved."""
    rewards, mask = np.array([[1.0, 0.0]]), np.ones((1, 2), bool)
    groups = make_groups([[3, 4]], sampler_logp=UNIFORM - 0.5)
    lesson = prepare(make_role(learner, importance="token"), groups, rewards, mask)
    np.testing.assert_allclose(lesson.metrics["mismatch_mean"], 0.5, rtol=1e-5)
    kl = np.exp(0.5) - 1.5
    np.testing.assert_allclose(lesson.metrics["mismatch_kl"], kl, rtol=1e-5)
    counted = lesson.batch.response_mask > 0
    np.testing.assert_allclose(lesson.batch.weights[counted], np.exp(0.5), rtol=1e-5)
    (rows,) = learner.micro_batches(lesson.batch)
    np.testing.assert_allclose(
        np.abs(rows.advantages[rows.response_mask > 0]), np.sqrt(0.5) * np.exp(0.5), rtol=1e-4
    )
    prepare(make_role(learner, max_mismatch_kl=1.01 * kl), groups, rewards, mask)
    role = make_role(learner, max_mismatch_kl=0.99 * kl)
    state = role.state
    with pytest.raises(
        MismatchTooLarge, match=r"coder: .* 0\.15, above LossConfig.max_mismatch_kl"
    ):
        prepare(role, groups, rewards, mask)
    assert role.state is state
    broken = [dataclasses.replace(s, sampler_logp=s.sampler_logp * np.nan) for s in groups[0]]
    with pytest.raises(MismatchTooLarge, match="nan"):
        prepare(role, [broken], rewards, mask)
