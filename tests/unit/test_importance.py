"""A wrong importance weight biases every update; an unseen gap hides a broken sampler."""

import numpy as np
import pytest

from codea1_jax.rl.batching import TrainBatch, TrainSample, build_batch
from codea1_jax.rl.importance import importance_weights
from codea1_jax.rl.losses import LossConfig

CAP, FLOOR = 1.5, 0.6


def make_batch() -> TrainBatch:
    """Three responses, one of them masked; gaps from far below the floor to far above the cap."""
    rng = np.random.default_rng(0)
    sampler = [rng.normal(-2.0, 1.0, n).astype(np.float32) for n in (5, 2, 7)]
    samples = [
        TrainSample([1] * p, [3] * len(logp), 1.0, is_trained=p != 2, sampler_logp=logp)
        for p, logp in zip((1, 2, 3), sampler, strict=True)
    ]
    batch = build_batch(samples, length_buckets=(12,))
    gap = rng.normal(0.0, 0.6, batch.tokens.shape).astype(np.float32)
    gap[0, 2], gap[2, 4] = 30.0, -30.0
    return batch.replace(old_logp=batch.sampler_logp + gap)


@pytest.mark.parametrize("importance", ["none", "token", "sequence", "icepop"])
def test_weights_match_loops(importance: str):
    batch = make_batch()
    config = LossConfig(importance=importance, importance_cap=CAP, importance_floor=FLOOR)  # type: ignore[arg-type]
    weights, metrics = importance_weights(batch, config)
    expected = np.ones(batch.tokens.shape)
    cut = []
    counted = batch.response_mask > 0
    for row in (0, 2):
        places = np.flatnonzero(counted[row]).tolist()
        logs = {c: float(batch.old_logp[row, c] - batch.sampler_logp[row, c]) for c in places}
        for c in places:
            log = sum(logs.values()) if importance == "sequence" else logs[c]
            rho = np.exp(min(max(log, -20.0), 20.0))
            above, below = rho > CAP, rho < FLOOR
            cut.append(above or (importance == "icepop" and below))
            if importance in ("token", "sequence"):
                expected[row, c] = CAP if above else rho
            elif importance == "icepop":
                expected[row, c] = 0.0 if above or below else rho
    assert 0 < np.mean(cut) < 1
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["mismatch_clipped_share"], np.mean(cut))
    np.testing.assert_allclose(metrics["importance_mean"], expected[counted].mean(), rtol=1e-6)


def test_no_gap_leaves_the_update_alone():
    batch = make_batch()
    batch = batch.replace(old_logp=batch.sampler_logp)
    for importance in ("none", "token", "sequence", "icepop"):
        weights, metrics = importance_weights(batch, LossConfig(importance=importance))  # type: ignore[arg-type]
        np.testing.assert_array_equal(weights, 1.0)
        assert metrics.pop("importance_mean") == 1.0
        assert not any(metrics.values())


def test_metrics_are_their_definitions():
    samples = [TrainSample([1], [2, 3, 4], sampler_logp=[-1.0, -2.0, -3.0])]
    batch = build_batch(samples, length_buckets=(8,))
    old_logp = np.zeros((1, 8), np.float32)
    old_logp[0, 1:4] = [-1.5, -1.0, -3.0]  # d = -0.5, 1, 0
    _, metrics = importance_weights(batch.replace(old_logp=old_logp), LossConfig())
    np.testing.assert_allclose(metrics["mismatch_mean"], 0.5)
    np.testing.assert_allclose(metrics["mismatch_max"], 1.0)
    np.testing.assert_allclose(
        metrics["mismatch_kl"], ((np.exp(-0.5) - 0.5) + (np.exp(1.0) - 2.0)) / 3
    )
    np.testing.assert_allclose(metrics["mismatch_clipped_share"], 1 / 3)  # exp(1) > 2


def test_nothing_counted():
    batch = make_batch()
    batch = batch.replace(response_mask=np.zeros_like(batch.response_mask))
    weights, metrics = importance_weights(batch, LossConfig(importance="token"))
    assert np.isfinite(weights).all()
    assert not any(metrics.values())
