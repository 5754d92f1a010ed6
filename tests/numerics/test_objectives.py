"""Each objective, packed with several samples a row, against loops over samples in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import SMALLEST

from codea1_jax.mesh import make_mesh
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rl.batching import TrainBatch, TrainSample, build_batch
from codea1_jax.rl.kl import kl_estimate
from codea1_jax.rl.learner import Learner, LearnerConfig
from codea1_jax.rl.losses import OBJECTIVES, LossConfig, policy_loss
from codea1_jax.rl.optim import OptimizerConfig
from codea1_jax.rl.packing import PackedRows, micro_batches
from codea1_jax.rl.token_logp import response_logp

pytestmark = pytest.mark.usefixtures("quick_compiles")

V, BUCKETS, MAX_TOKENS = 13, (32,), 24
SIZES = [(5, 4), (5, 9), (5, 1), (3, 6), (2, 7), (3, 2), (5, 3)]  # prompt, response
COMMON: dict[str, Any] = {"kl_coefficient": 0.3, "max_response_tokens": MAX_TOKENS}
CONFIGS = {
    "grpo": LossConfig(**COMMON),
    "grpo, sequence mean": LossConfig(normalization="sequence", entropy_coefficient=0.1, **COMMON),
    "dr_grpo": LossConfig(objective="dr_grpo", dual_clip=0.0, **COMMON),
    "dapo": LossConfig(objective="dapo", kl_coefficient=0.0, dual_clip=0.0),
    "gspo": LossConfig(objective="gspo", dual_clip=1.4, temperature=0.7, **COMMON),
    "gspo, paper": LossConfig(
        objective="gspo", dual_clip=0.0, clip_low=3e-4, clip_high=4e-4, kl_coefficient=0.0
    ),
    "cispo": LossConfig(objective="cispo", clip_low=1.0, clip_high=0.5, **COMMON),
    "cispo, two bounds": LossConfig(objective="cispo", clip_low=0.3, kl_coefficient=0.0),
}
cases = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


@pytest.fixture(scope="module")
def batch() -> TrainBatch:
    """Shared prompts, a sample that doesn't count, holes in the mask, uneven token weights."""
    rng = np.random.default_rng(0)
    prompts = {p: rng.integers(0, V, p).tolist() for p, _ in SIZES}
    samples = [
        TrainSample(prompts[p], rng.integers(0, V, r), float(rng.normal()), is_trained=i != 3)
        for i, (p, r) in enumerate(SIZES)
    ]
    batch = build_batch(samples, length_buckets=BUCKETS)
    mask = batch.response_mask.copy()
    mask[1, 8] = 0
    noise = lambda low, high: rng.uniform(low, high, mask.shape).astype(np.float32)  # noqa: E731
    return batch.replace(
        response_mask=mask,
        old_logp=noise(-4.0, -1.5),
        ref_logp=noise(-4.0, -1.5),
        weights=noise(0.5, 1.5),
    )


def logits_of(batch: TrainBatch) -> np.ndarray:
    """[B L V]: logits that predict token t of each sample, the same whatever the packing."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(*batch.tokens.shape, V)).astype(np.float32)


def numpy_objective(
    logits: np.ndarray, batch: TrainBatch, config: LossConfig
) -> tuple[float, np.ndarray, dict[str, float]]:
    """Mean loss, its gradient in the logits, and token counts of clips: one sample after another.

    By the chain rule by hand: first in the log-probs, then in the logits.
    """
    total, gradient = 0.0, np.zeros(logits.shape)
    clips = {"low": 0, "high": 0, "dual": 0}
    trained = [b for b in range(batch.num_rows) if batch.response_mask[b].any()]
    num_tokens = int((batch.response_mask > 0).sum())
    low, high = 1 - config.clip_low, 1 + config.clip_high
    for b in trained:
        places = np.flatnonzero(batch.response_mask[b])
        scaled = logits[b, places].astype(np.float64) / config.temperature  # [T, V]
        log_p = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
        p = np.exp(log_p)
        index = np.arange(len(places))
        new = log_p[index, batch.tokens[b, places]]
        old = batch.old_logp[b, places].astype(np.float64)
        ref = batch.ref_logp[b, places].astype(np.float64)
        advantages = float(batch.advantages[b]) * batch.weights[b, places].astype(np.float64)
        # What a token's loss is multiplied with to be its part of the mean.
        share = {
            "token": 1 / num_tokens,
            "sequence": 1 / len(trained) / len(places),
            "constant": 1 / len(trained) / MAX_TOKENS,
        }[config.loss_normalization]
        d_new = np.zeros(len(places))
        for t, a in enumerate(advantages):
            if config.objective == "cispo":
                weight = min(max(np.exp(new[t] - old[t]), low), high)
                clips["low"] += np.exp(new[t] - old[t]) < low
                clips["high"] += np.exp(new[t] - old[t]) > high
                total += share * -weight * a * new[t]
                d_new[t] += share * -weight * a
                continue
            if config.objective == "gspo":
                ratio = np.exp((new - old).mean())
                d_ratio = np.full(len(places), ratio / len(places))
            else:
                ratio = np.exp(new[t] - old[t])
                d_ratio = ratio * (index == t)
            value, slope = -a * ratio, -a
            if a > 0 and ratio > high:
                value, slope = -a * high, 0.0
                clips["high"] += 1
            elif a < 0 and ratio < low:
                value, slope = -a * low, 0.0
                clips["low"] += 1
            if config.dual_clip and a < 0 and value > -a * config.dual_clip:
                value, slope = -a * config.dual_clip, 0.0
                clips["dual"] += 1
            total += share * value
            d_new += share * slope * d_ratio
        kl = np.exp(ref - new) - (ref - new) - 1  # k3, its value at most 10
        total += share * config.kl_coefficient * np.minimum(kl, 10.0).sum()
        d_new += share * config.kl_coefficient * np.where(kl < 10.0, 1 - np.exp(ref - new), 0.0)
        entropy = -(p * log_p).sum(1)
        total -= share * config.entropy_coefficient * entropy.sum()
        one_hot = np.eye(V)[batch.tokens[b, places]]
        d_scaled = d_new[:, None] * (one_hot - p)
        d_scaled += share * config.entropy_coefficient * p * (log_p + entropy[:, None])
        gradient[b, places] = d_scaled / config.temperature
    return total, gradient, clips


def packed_objective(
    logits: np.ndarray, batch: TrainBatch, parts: list[PackedRows], config: LossConfig
) -> tuple[float, np.ndarray, dict[str, float]]:
    """The same through the packed rows: sums of micro-batches, divided once."""
    gradient = np.zeros((batch.tokens.size, V))
    loss_sum = count = 0.0
    sums: dict[str, float] = {}
    for part in parts:
        rows = part.arrays()
        counted = part.response_mask > 0
        # An identity head: hidden states are logits, each in the column that it predicts.
        hidden = np.where(counted[..., None], logits.reshape(-1, V)[part.source], 0.0)
        columns = np.broadcast_to(np.arange(hidden.shape[1], dtype=np.int32), counted.shape)

        def loss(hidden: Any, columns: Any = columns, rows: Any = rows) -> Any:
            logp, entropy = response_logp(
                jnp.eye(V),
                hidden,
                columns,
                rows["targets"],
                rows["response_mask"],
                jnp.float32(config.temperature),
                chunk_length=8,
            )
            output = policy_loss(logp, entropy, rows, config)
            return output.loss_sum, output

        (_, output), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(hidden)
        loss_sum += float(output.loss_sum)
        count += float(output.divisor)
        for name, value in output.sums.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        gradient[part.source[counted]] = np.asarray(grads)[counted]
    return loss_sum / count, gradient.reshape(logits.shape) / count, sums


@cases
def test_value_and_gradient_match_numpy(batch: TrainBatch, config: LossConfig):
    """A wrong equation trains towards something else and still runs."""
    logits = logits_of(batch)
    parts = micro_batches(batch, length_buckets=BUCKETS, max_tokens=64)
    assert max(part.sample_ids.max() for part in parts) >= 3  # several samples in a row
    value, gradient, sums = packed_objective(logits, batch, parts, config)
    expected, expected_gradient, clips = numpy_objective(logits, batch, config)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    scale = np.abs(expected_gradient).max()
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6 * scale)
    got = {
        "low": sums["clip_fraction_low"],
        "high": sums["clip_fraction_high"],
        "dual": sums["dual_clip_fraction"],
    }
    assert got == clips
    assert any(clips.values())


@cases
def test_micro_batches_do_not_matter(batch: TrainBatch, config: LossConfig):
    """One micro-batch of shared rows, or one sample each."""
    logits = logits_of(batch)
    whole = micro_batches(batch, length_buckets=BUCKETS, max_tokens=64)
    single = micro_batches(batch, length_buckets=BUCKETS, max_tokens=1, share_prefix=False)
    assert len(whole) < len(single)
    value, gradient, sums = packed_objective(logits, batch, whole, config)
    other_value, other_gradient, other_sums = packed_objective(logits, batch, single, config)
    np.testing.assert_allclose(other_value, value, rtol=1e-6, atol=1e-7)
    atol = 1e-6 * np.abs(gradient).max()
    np.testing.assert_allclose(other_gradient, gradient, rtol=1e-5, atol=atol)
    for name in sums:
        np.testing.assert_allclose(other_sums[name], sums[name], rtol=1e-5, atol=1e-6)


def test_all_objectives_are_covered():
    assert {config.objective for config in CONFIGS.values()} == set(OBJECTIVES)


def test_a_step_divides_by_its_own_count():
    """Learner: sequence sums survive micro-batches and eight devices; only the count changes."""
    model = LanguageModel(SMALLEST)
    params = jax.tree.map(lambda p: 3.0 * p, jax.jit(model.init)(jax.random.key(0)))
    rng = np.random.default_rng(2)
    samples = [
        TrainSample([1, 2, 3][:p], rng.integers(0, 16, r), float(rng.normal()))
        for p, r in [(3, 4), (3, 7), (1, 2), (2, 9), (3, 1), (2, 5)]
    ]
    batch = build_batch(samples, length_buckets=(32,))
    batch = batch.replace(old_logp=rng.uniform(-3, -2, (6, 32)).astype(np.float32))
    loss = LossConfig(objective="gspo", kl_coefficient=0.0)
    results = []
    for shape, tokens in (((1, 1, 1), 256), ((1, 1, 1), 32), ((2, 2, 2), 256)):
        mesh = make_mesh(*shape, devices=jax.devices()[: int(np.prod(shape))])
        config = LearnerConfig(length_buckets=(32,), micro_batch_tokens=tokens)
        learner = Learner(model, mesh, OptimizerConfig(warmup_steps=0), loss, config)
        state, metrics = learner.update(learner.init_state(jax.device_get(params)), batch, 1)
        results.append((jax.device_get(state.opt_state.mu), metrics))
    (moments, metrics), *others = results
    assert metrics["clip_fraction_low"] + metrics["clip_fraction_high"] > 0
    assert [each["num_micro_batches"] > 1 for _, each in results] == [False, True, False]
    for other_moments, other in others:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-7),
            other_moments,
            moments,
        )
        for name in ("loss", "grad_norm", "clip_fraction_low", "ratio_max", "num_tokens"):
            np.testing.assert_allclose(other[name], metrics[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimates_are_their_definitions(estimator: str):
    """k1 and k3 average to the KL, k2 does to second order; gradients are those of the formulas."""
    rng = np.random.default_rng(3)
    p, q = (np.exp(x) / np.exp(x).sum() for x in rng.normal(0.0, 0.1, (2, 50)))
    logp, ref = (np.log(x).astype(np.float32)[None, :] for x in (p, q))
    values = np.asarray(kl_estimate(logp, ref, estimator), np.float64)[0]  # type: ignore[arg-type]
    d = logp[0].astype(np.float64) - ref[0]
    formula = {"k1": d, "k2": d * d / 2, "k3": np.exp(-d) - 1 + d}[estimator]
    np.testing.assert_allclose(values, formula, atol=1e-6)
    np.testing.assert_allclose((p * values).sum(), (p * d).sum(), rtol=0.1)
    slope = jax.grad(lambda x: kl_estimate(x, ref, estimator).sum())(logp)  # type: ignore[arg-type]
    expected = {"k1": np.ones_like(d), "k2": d, "k3": 1 - np.exp(-d)}[estimator]
    np.testing.assert_allclose(slope[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "ppo"}, "objective='ppo'; use one of grpo, dr_grpo, dapo, gspo, cispo"),
        ({"normalization": "row"}, "normalization='row'"),
        ({"objective": "dr_grpo"}, "max_response_tokens=0; .* SamplingParams.max_new_tokens"),
        ({"overlong_buffer": 5.0, "max_response_tokens": 4}, "overlong_buffer=5.0"),
        ({"overlong_buffer": 0.2}, "max_response_tokens=0; .* SamplingParams.max_new_tokens"),
        ({"importance": "tis"}, "importance='tis'; use one of none, token, sequence, icepop"),
        ({"importance_cap": 0.5}, "importance_cap=0.5"),
        ({"importance_floor": 1.5}, "importance_floor=1.5"),
        ({"max_mismatch_kl": -1.0}, "max_mismatch_kl=-1.0"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"LossConfig.{message}"):
        LossConfig(**change)
