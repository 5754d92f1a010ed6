"""A wrong loss or gradient trains towards something else than the objective and still runs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codea1_jax.rl.kl import kl_estimate
from codea1_jax.rl.losses import LossConfig, policy_loss, sft_loss
from codea1_jax.rl.token_logp import response_logp

B, L, V, D = 6, 11, 13, 5
# Token t is predicted by the hidden state of token t - 1.
BEFORE = np.broadcast_to(np.maximum(np.arange(L, dtype=np.int32) - 1, 0), (B, L))


def numpy_log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def numpy_grpo(
    logits: np.ndarray, tokens: np.ndarray, rows: dict[str, np.ndarray], config: LossConfig
) -> tuple[float, np.ndarray, dict[str, float]]:
    """Loss sum, its gradient in the logits by hand, and metric sums; float64 loops over tokens.

    logits[b, t] predicts tokens[b, t + 1].
    """
    log_p = numpy_log_softmax(logits / config.temperature)
    gradient = np.zeros_like(logits)
    total = 0.0
    counts = {"low": 0, "high": 0, "dual": 0, "kl": 0.0, "entropy": 0.0}
    for b, t in zip(*np.nonzero(rows["response_mask"]), strict=True):
        lp = log_p[b, t - 1]
        p = np.exp(lp)
        a = float(rows["advantages"][b, t])
        new, old, ref = (
            lp[tokens[b, t]],
            float(rows["old_logp"][b, t]),
            float(rows["ref_logp"][b, t]),
        )
        # Policy term: value and derivative in `new`.
        difference = new - old
        ratio = np.exp(np.clip(difference, -20, 20))
        slope = ratio if abs(difference) < 20 else 0.0
        low, high = 1 - config.clip_low, 1 + config.clip_high
        if (a > 0 and ratio > high) or (a < 0 and ratio < low):
            value, d_new = -a * np.clip(ratio, low, high), 0.0
            counts["high" if a > 0 else "low"] += 1
        else:
            value, d_new = -a * ratio, -a * slope
        if config.dual_clip and a < 0 and value > -a * config.dual_clip:
            value, d_new = -a * config.dual_clip, 0.0
            counts["dual"] += 1
        # KL term.
        x = ref - new
        if config.kl_estimator == "k1":
            kl, kl_slope = -x, 1.0
        elif config.kl_estimator == "k2":
            kl, kl_slope = 0.5 * x * x, -x
        else:
            e = np.exp(np.clip(x, -20, 20))
            kl = e - np.clip(x, -20, 20) - 1
            kl_slope = 0.0 if kl > 10 or abs(x) > 20 else 1 - e
            kl = min(kl, 10.0)
        entropy = -(p * lp).sum()
        total += value + config.kl_coefficient * kl - config.entropy_coefficient * entropy
        counts["kl"] += kl
        counts["entropy"] += entropy
        one_hot = np.eye(len(lp))[tokens[b, t]]
        d_logp = d_new + config.kl_coefficient * kl_slope
        d_scaled = d_logp * (one_hot - p) + config.entropy_coefficient * p * (lp + entropy)
        gradient[b, t - 1] += d_scaled / config.temperature
    return total, gradient, counts


def random_case(seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Hidden states, tokens and rows with uneven lengths, holes in the mask and wide ratios."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(B, L, D)).astype(np.float32)
    tokens = rng.integers(0, V, (B, L)).astype(np.int32)
    mask = np.zeros((B, L), np.float32)
    for b in range(B):
        start = rng.integers(1, 5)
        mask[b, start : rng.integers(start, L + 1)] = 1
    mask[0, 1:] = 1  # a full row
    mask[1] = 0  # a row that counts nothing
    mask[2, 6] = 0  # a hole
    rows = {
        "response_mask": mask,
        "advantages": np.float32([1.5, 2.0, -1.0, -0.5, 0.0, 0.8])[:, None] * np.ones_like(mask),
        "old_logp": rng.normal(-2.5, 2.0, (B, L)).astype(np.float32),
        "ref_logp": rng.normal(-2.5, 2.0, (B, L)).astype(np.float32),
    }
    rows["old_logp"][2, 7:9] = -30.0  # ratio beyond dual clip, then beyond exp's clamp
    mask[2, 7:9] = 1
    return hidden, tokens, rows


CONFIGS = [
    LossConfig(),
    LossConfig(temperature=0.7, kl_coefficient=0.3, entropy_coefficient=0.1),
    LossConfig(kl_coefficient=0.5, kl_estimator="k1", dual_clip=0.0, clip_low=0.1, clip_high=0.1),
    LossConfig(kl_coefficient=0.5, kl_estimator="k2", dual_clip=1.5),
]


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_grpo_and_gradients_match_numpy(config: LossConfig):
    """Value, gradient in the logits and gradient in the head, through the chunked log-probs."""
    hidden, tokens, rows = random_case(0)
    rng = np.random.default_rng(1)
    table = rng.normal(size=(V, D)).astype(np.float32)

    def loss(table: Any, hidden: Any) -> Any:
        logp, entropy = response_logp(
            table,
            hidden,
            BEFORE,
            tokens,
            rows["response_mask"],
            jnp.float32(config.temperature),
            chunk_length=4,
        )
        output = policy_loss(logp, entropy, rows, config)
        return output.loss_sum, output

    (_, output), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(
        table, hidden
    )
    wide = hidden.astype(np.float64) @ table.T.astype(np.float64)
    total, d_logits, counts = numpy_grpo(wide, tokens, rows, config)
    assert counts["low"] > 0
    assert counts["high"] > 0
    assert counts["dual"] > 0 or not config.dual_clip
    np.testing.assert_allclose(output.loss_sum, total, rtol=2e-5)
    scale = np.abs(d_logits).max()
    np.testing.assert_allclose(grads[1], d_logits @ table, rtol=1e-4, atol=2e-6 * scale)
    expected = np.einsum("BLV,BLD->VD", d_logits, hidden)
    np.testing.assert_allclose(grads[0], expected, rtol=1e-4, atol=5e-6 * scale)
    sums = output.sums
    np.testing.assert_allclose(sums["entropy"], counts["entropy"], rtol=1e-5)
    np.testing.assert_allclose(sums["kl"], counts["kl"], rtol=1e-5)
    assert sums["clip_fraction_low"] == counts["low"]
    assert sums["clip_fraction_high"] == counts["high"]
    assert sums["dual_clip_fraction"] == counts["dual"]


def test_identity_head_gives_gradient_in_the_logits():
    """With the identity as head, the hidden state's gradient is the logits' gradient."""
    _, tokens, rows = random_case(2)
    logits = np.random.default_rng(3).normal(size=(B, L, V)).astype(np.float32)
    config = LossConfig(kl_coefficient=0.2)

    def loss(hidden: Any) -> Any:
        logp, entropy = response_logp(
            jnp.eye(V),
            hidden,
            BEFORE,
            tokens,
            rows["response_mask"],
            jnp.float32(1.0),
            chunk_length=3,
        )
        return policy_loss(logp, entropy, rows, config).loss_sum

    _, expected, _ = numpy_grpo(logits.astype(np.float64), tokens, rows, config)
    got = jax.jit(jax.grad(loss))(logits)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-6 * np.abs(expected).max())
    next_mask = np.roll(rows["response_mask"], -1, axis=1)  # the token each logit predicts
    assert not np.asarray(got)[next_mask == 0].any()


def test_chunk_length_does_not_matter():
    hidden, tokens, rows = random_case(4)
    table = np.random.default_rng(5).normal(size=(V, D)).astype(np.float32)

    def loss(chunk_length: int) -> Any:
        def fn(table: Any) -> Any:
            logp, entropy = response_logp(
                table,
                hidden,
                BEFORE,
                tokens,
                rows["response_mask"],
                jnp.float32(1.3),
                chunk_length=chunk_length,
            )
            return jnp.sum(jnp.square(logp)) + jnp.sum(entropy), (logp, entropy)

        return jax.grad(fn, has_aux=True)(table)

    for small, large in zip(jax.tree.leaves(loss(2)), jax.tree.leaves(loss(L)), strict=True):
        np.testing.assert_allclose(small, large, rtol=1e-4, atol=1e-5)


def test_on_policy_step_has_ratio_one():
    """Before the first update the loss is minus the token mean of the advantages."""
    _, _, rows = random_case(6)
    mask = rows["response_mask"]
    rows["old_logp"] = rows["old_logp"] * mask
    output = policy_loss(rows["old_logp"], mask, rows, LossConfig(kl_coefficient=0.0))
    np.testing.assert_allclose(output.loss_sum, -(mask * rows["advantages"]).sum(), rtol=1e-6)
    np.testing.assert_allclose(output.sums["ratio_mean"], mask.sum(), rtol=1e-6)
    assert output.sums["policy_kl"] == 0
    assert output.maxima["ratio_max"] == 1


def test_extreme_differences_stay_finite():
    rows = {
        "response_mask": np.ones((1, 4), np.float32),
        "advantages": np.ones((1, 4), np.float32),
        "old_logp": np.array([[-1e4, 0.0, 0.0, -50.0]], np.float32),
        "ref_logp": np.array([[0.0, -1e4, 0.0, -50.0]], np.float32),
    }
    logp = np.array([[0.0, -1e4, -30.0, -50.0]], np.float32)
    for sign in (1.0, -1.0):
        rows["advantages"] = np.full((1, 4), sign, np.float32)
        value, gradient = jax.value_and_grad(
            lambda x: policy_loss(x, jnp.zeros_like(x), rows, LossConfig()).loss_sum
        )(logp)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


def test_k3_is_the_clamped_form():
    logp = np.zeros((1, 4), np.float32)
    ref = np.array([[0.5, -3.0, 30.0, -30.0]], np.float32)
    expected = [[np.exp(0.5) - 1.5, np.exp(-3.0) + 2.0, 10.0, 10.0]]
    np.testing.assert_allclose(kl_estimate(logp, ref, "k3"), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="kl_estimator='k4'"):
        kl_estimate(logp, ref, "k4")  # type: ignore[arg-type]


def test_sft_is_cross_entropy():
    _, _, rows = random_case(7)
    logp = np.full((B, L), -0.5, np.float32) * rows["response_mask"]
    output = sft_loss(logp, np.zeros_like(logp), rows)
    np.testing.assert_allclose(output.loss_sum, 0.5 * rows["response_mask"].sum())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_low": 1.5}, "clip_low"),
        ({"clip_high": -0.1}, "clip_high"),
        ({"dual_clip": 0.5}, "dual_clip"),
        ({"kl_coefficient": -1.0}, "kl_coefficient"),
        ({"kl_estimator": "k9"}, "kl_estimator"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"LossConfig.{message}"):
        LossConfig(**change)
