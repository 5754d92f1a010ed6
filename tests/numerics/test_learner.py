"""An update that depends on padding, micro-batching or sharding makes runs irreproducible."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import SMALL

from codea1_jax.mesh import make_mesh
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rl.batching import TrainBatch, TrainSample, build_batch
from codea1_jax.rl.learner import Learner, LearnerConfig, TrainState
from codea1_jax.rl.losses import LossConfig
from codea1_jax.rl.optim import OptimizerConfig, lr_multiplier

pytestmark = pytest.mark.usefixtures("quick_compiles")

CONFIG = SMALL
MODEL = LanguageModel(CONFIG)
LOSS = LossConfig(temperature=0.8, kl_coefficient=0.2)
OPTIMIZER = OptimizerConfig(peak_lr=1e-2, warmup_steps=0, schedule="constant")
LEARNER = LearnerConfig(length_buckets=(24,), micro_batch_tokens=8 * 24, tokens_per_chunk=32)


def make_learner(mesh_shape: tuple[int, int, int] = (1, 1, 1), **changes: Any) -> Learner:
    mesh = make_mesh(*mesh_shape, devices=jax.devices()[: math.prod(mesh_shape)])
    settings = dict(optimizer=OPTIMIZER, loss=LOSS, config=LEARNER, model=MODEL) | changes
    return Learner(mesh=mesh, **settings)


@pytest.fixture(scope="module")
def learner() -> Learner:
    return make_learner()


@pytest.fixture(scope="module")
def params(learner: Learner) -> Any:
    """Five times the usual scale: far from uniform, and still well conditioned in float32."""
    params = jax.jit(MODEL.init)(jax.random.key(0))
    params = jax.tree.map(lambda p: p if p.ndim == 1 else 5.0 * p, params)
    return learner.init_state(params).params


@pytest.fixture(scope="module")
def batch() -> TrainBatch:
    """Eight samples, uneven lengths, one of them masked; old and reference log-probs that differ.

    Three share a prompt of seven tokens and two one of four; the rows are packed.
    """
    rng = np.random.default_rng(0)
    sizes = [(7, 4), (3, 21), (12, 2), (1, 1), (7, 11), (4, 6), (7, 5), (4, 8)]
    prompts = {p: rng.integers(0, CONFIG.vocab_size, p).tolist() for p, _ in sizes}
    samples = [
        TrainSample(
            prompts[p],
            rng.integers(0, CONFIG.vocab_size, r),
            advantage=float(rng.normal()),
            is_trained=i != 4,
        )
        for i, (p, r) in enumerate(sizes)
    ]
    batch = build_batch(samples, length_buckets=(24,))
    noise = lambda: rng.normal(-4, 1.5, batch.tokens.shape).astype(np.float32)  # noqa: E731
    return batch.replace(old_logp=noise(), ref_logp=noise())


def naive_logp(params: Any, batch: TrainBatch, temperature: float) -> tuple[Any, Any]:
    """Log-probs and entropies [B, L] of the response tokens, from all logits at once."""
    index = jnp.broadcast_to(jnp.arange(batch.tokens.shape[1])[None, :], batch.tokens.shape)
    hidden = MODEL.hidden(params, batch.tokens, index, jnp.int32(index < batch.lengths[:, None]))
    log_p = jax.nn.log_softmax(MODEL.logits(params, hidden)[:, :-1] / temperature)
    chosen = jnp.take_along_axis(log_p, batch.tokens[:, 1:, None], axis=2)[:, :, 0]
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    mask = batch.response_mask
    return tuple(mask * jnp.pad(x, ((0, 0), (1, 0))) for x in (chosen, entropy))


def naive_loss(params: Any, batch: TrainBatch, config: LossConfig) -> Any:
    """The objective straight from its definition, by autodiff, without chunks or sums."""
    logp, entropy = naive_logp(params, batch, config.temperature)
    a = batch.advantages[:, None]
    ratio = jnp.exp(logp - batch.old_logp)
    clipped = jnp.clip(ratio, 1 - config.clip_low, 1 + config.clip_high)
    policy = jnp.maximum(-a * ratio, -a * clipped)
    policy = jnp.where(a < 0, jnp.minimum(policy, -a * config.dual_clip), policy)
    difference = batch.ref_logp - logp
    kl = jnp.minimum(jnp.exp(difference) - difference - 1, 10.0)
    total = jnp.sum(batch.response_mask * (policy + config.kl_coefficient * kl))
    return total / jnp.sum(batch.response_mask), (logp, entropy)


def assert_trees_close(got: Any, expected: Any, rtol: float = 1e-4) -> None:
    """Equal up to `rtol` of each tensor's largest entry."""
    for (path, a), (_, b) in zip(
        jax.tree_util.tree_leaves_with_path(got),
        jax.tree_util.tree_leaves_with_path(expected),
        strict=True,
    ):
        a, b = np.asarray(a), np.asarray(b)
        scale = np.abs(b).max()
        np.testing.assert_allclose(
            a, b, rtol=0, atol=rtol * scale + 1e-12, err_msg=jax.tree_util.keystr(path)
        )


def mean_gradients(learner: Learner, params: Any, batch: TrainBatch) -> tuple[Any, dict]:
    grads, metrics = learner.gradients(params, batch)
    return jax.tree.map(lambda g: np.asarray(g) / metrics["num_tokens"], grads), metrics


@pytest.fixture(scope="module")
def reference(learner: Learner, params: Any, batch: TrainBatch) -> tuple[Any, dict]:
    return mean_gradients(learner, params, batch)


def test_loss_gradients_and_logprobs_match_naive(
    learner: Learner, params: Any, batch: TrainBatch, reference: tuple
):
    """Chunks, the shift to the response and the hand-written head gradient against autodiff."""
    naive = jax.jit(jax.value_and_grad(lambda p: naive_loss(p, batch, LOSS), has_aux=True))
    (loss, logps), grads = naive(params)
    assert reference[1]["clip_fraction_low"] > 0
    assert reference[1]["clip_fraction_high"] > 0
    assert reference[1]["num_tokens"] == 47
    np.testing.assert_allclose(reference[1]["loss"], loss, rtol=1e-5)
    assert_trees_close(reference[0], grads)
    for got, want in zip(learner.score(params, batch), logps, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        assert not got[batch.response_mask == 0].any()


def test_accumulation_does_not_matter(params: Any, batch: TrainBatch, reference: tuple):
    """One micro-batch of shared rows or one for each of the seven samples that count."""
    config = dataclasses.replace(LEARNER, micro_batch_tokens=24, share_prefix=False)
    grads, metrics = mean_gradients(make_learner(config=config), params, batch)
    assert reference[1]["num_micro_batches"] == 1
    assert metrics["num_micro_batches"] > 1
    assert_trees_close(grads, reference[0], rtol=2e-5)
    for name in metrics.keys() - {"num_micro_batches"}:
        np.testing.assert_allclose(metrics[name], reference[1][name], rtol=1e-5, err_msg=name)


def test_order_and_padding_do_not_matter(
    learner: Learner, params: Any, batch: TrainBatch, reference: tuple
):
    order = np.random.default_rng(1).permutation(batch.num_rows)
    grads, metrics = mean_gradients(learner, params, batch.take(order))
    assert_trees_close(grads, reference[0], rtol=2e-5)
    np.testing.assert_allclose(metrics["loss"], reference[1]["loss"], rtol=1e-6)

    config = LearnerConfig(length_buckets=(40,), micro_batch_tokens=400, tokens_per_chunk=32)
    padding = np.random.default_rng(2)
    garbled = batch.replace(
        tokens=np.where(
            np.arange(24)[None, :] < batch.lengths[:, None],
            batch.tokens,
            padding.integers(0, CONFIG.vocab_size, batch.tokens.shape, np.int32),
        ),
        old_logp=np.where(batch.response_mask > 0, batch.old_logp, np.float32(1e3)),
    )
    grads, metrics = mean_gradients(make_learner(config=config), params, garbled)
    assert_trees_close(grads, reference[0], rtol=2e-5)
    np.testing.assert_allclose(metrics["loss"], reference[1]["loss"], rtol=1e-6)


def test_eight_devices_equal_one(learner: Learner, params: Any, batch: TrainBatch):
    """data 2 x fsdp 2 x tensor 2: same log-probs, loss and parameters after a step."""
    sharded = make_learner((2, 2, 2))
    assert sharded.mesh.size == 8
    states, metrics, logps = [], [], []
    for each in (learner, sharded):
        state = each.init_state(jax.device_get(params))
        logps.append(each.score(state.params, batch)[0])
        state, metric = each.update(state, batch, 1)
        states.append(state)
        metrics.append(metric)
    table = states[1].params["embedder"]["table"]
    assert table.sharding.shard_shape(table.shape) == (24, 8)
    moment = states[1].opt_state.mu["embedder"]["table"]
    assert moment.sharding == table.sharding
    np.testing.assert_allclose(logps[1], logps[0], rtol=1e-5, atol=1e-5)
    for name in metrics[0]:
        np.testing.assert_allclose(metrics[1][name], metrics[0][name], rtol=1e-4, err_msg=name)
    assert_trees_close(states[1].opt_state.mu, states[0].opt_state.mu)
    abstract = sharded.abstract_state()
    assert jax.tree.structure(abstract) == jax.tree.structure(states[1])
    for spec, leaf in zip(jax.tree.leaves(abstract), jax.tree.leaves(states[1]), strict=True):
        assert (spec.shape, spec.dtype, spec.sharding) == (leaf.shape, leaf.dtype, leaf.sharding)


def test_step_is_adamw(learner: Learner, params: Any, batch: TrainBatch, reference: tuple):
    """Two steps against AdamW written out: clipping, bias correction, decay on every tensor."""
    state = learner.init_state(params)
    expected = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
    m = jax.tree.map(np.zeros_like, expected)
    v = jax.tree.map(np.zeros_like, expected)
    c = OPTIMIZER
    for step in (1, 2):
        grads, _ = mean_gradients(learner, state.params, batch)
        norm = np.sqrt(sum(np.square(g.astype(np.float64)).sum() for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g, n=norm: g * min(1.0, 1.0 / (n + 1e-6)), grads)
        m = jax.tree.map(lambda m, g: c.b1 * m + (1 - c.b1) * g, m, grads)
        v = jax.tree.map(lambda v, g: c.b2 * v + (1 - c.b2) * g * g, v, grads)
        expected = jax.tree.map(
            lambda p, m, v, s=step: (
                p * (1 - c.peak_lr * c.weight_decay)
                - c.peak_lr * m / (1 - c.b1**s) / (np.sqrt(v / (1 - c.b2**s)) + c.eps)
            ),
            expected,
            m,
            v,
        )
        state, metrics = learner.update(state, batch, step)
        np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-5)
        assert norm > 1.0  # clipping is at work
    assert int(state.num_updates) == 2
    assert_trees_close(state.params, expected, rtol=1e-4)
    assert metrics["lr"] == c.peak_lr


def test_on_policy_step(learner: Learner, params: Any, batch: TrainBatch):
    """With old = reference = current log-probs every ratio is 1 and the KL is 0."""
    logp, entropy = learner.score(params, batch)
    _, metrics = learner.gradients(params, batch.replace(old_logp=logp, ref_logp=logp))
    weights = batch.response_mask * batch.advantages[:, None]
    np.testing.assert_allclose(
        metrics["loss"], -weights.sum() / batch.num_response_tokens, atol=1e-6
    )
    np.testing.assert_allclose(metrics["ratio_max"], 1.0, atol=1e-5)
    np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)
    np.testing.assert_allclose(
        metrics["entropy"], entropy.sum() / batch.num_response_tokens, rtol=1e-5
    )


def leaves(state: TrainState) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree.leaves((state.params, state.opt_state))]


def test_nonfinite_and_empty_steps_change_nothing(learner: Learner, params: Any, batch: TrainBatch):
    state, _ = learner.update(learner.init_state(params), batch, 1)
    before = leaves(state)
    advantages = batch.advantages.copy()
    advantages[0] = np.inf
    state, metrics = learner.update(state, batch.replace(advantages=advantages), 2)
    assert metrics["is_skipped"] == 1
    assert not np.isfinite(metrics["grad_norm"])
    nothing = batch.replace(response_mask=np.zeros_like(batch.response_mask))
    state, metrics = learner.update(state, nothing, 3)
    assert metrics["is_skipped"] == 1
    assert all(np.isfinite(value) for value in metrics.values())
    assert (int(state.num_updates), int(state.num_skipped)) == (1, 2)
    for old, new in zip(before, leaves(state), strict=True):
        np.testing.assert_array_equal(old, new)
    state, metrics = learner.update(state, batch, 4)
    assert (int(state.num_updates), metrics["is_skipped"]) == (2, 0)


def test_state_does_not_consume_the_reference(learner: Learner, params: Any, batch: TrainBatch):
    """The caller's parameters stay usable although every update donates its state."""
    before = jax.tree.map(np.array, params)
    state, _ = learner.update(learner.init_state(params), batch, 1)
    assert_trees_close(params, before, rtol=0)
    assert not np.array_equal(state.params["final_norm"]["scale"], before["final_norm"]["scale"])


def test_programs_are_few(learner: Learner):
    """Everything above ran through one compiled program each: no shape leaks into the cache."""
    if not learner._policy_gradients._cache_size():
        pytest.skip("meaningful only after the other tests of this module")
    assert learner._policy_gradients._cache_size() == 1
    assert learner._logprobs._cache_size() == 1
    assert learner._apply._cache_size() == 1


def test_no_full_logits(learner: Learner, params: Any, batch: TrainBatch):
    """Logits exist for a chunk of columns; [B, L, V] of them would not fit at full size."""
    (rows,) = learner.micro_batches(batch)
    assert rows.tokens.shape == (4, 24)
    with jax.set_mesh(learner.mesh):
        text = learner._policy_gradients.lower(params, rows.arrays(), np.float32(1.0)).as_text()
    assert "4x8x48xf32" in text  # tokens_per_chunk=32 over 4 rows
    assert "4x24x48x" not in text


def test_sft_learns_a_toy_batch():
    """An untied head and bfloat16 compute, since the other tests use neither."""
    model = LanguageModel(
        dataclasses.replace(CONFIG, tie_word_embeddings=False), compute_dtype=jnp.bfloat16
    )
    learner = make_learner(model=model)
    state = learner.init_state(jax.jit(model.init)(jax.random.key(1)))
    samples = [TrainSample([1, 2, 3 + i], [10 + i, 20, 30 + i, 0]) for i in range(4)]
    batch = build_batch(samples, length_buckets=(24,))
    losses = []
    for step in range(1, 61):
        state, metrics = learner.sft_update(state, batch, step)
        losses.append(metrics["loss"])
    np.testing.assert_allclose(losses[0], np.log(CONFIG.vocab_size), rtol=0.02)
    assert losses[-1] < 0.1
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params))


@pytest.mark.parametrize(
    ("zero_first", "expected"),
    [
        (True, [0, 0.1, 0.5, 0.9, 1.0, 0.99976, 0.83379, 0.58512, 0.29616, 0.00024]),
        (False, [0.1, 0.2, 0.6, 1.0, 1.0, 0.99976, 0.83379, 0.58512, 0.29616, 0.00024]),
    ],
)
def test_lr_multiplier_vector(zero_first: bool, expected: list[float]):
    """The official schedule over 111 steps; the default only avoids a first step at rate 0."""
    config = OptimizerConfig(zero_first_step=zero_first)
    got = [lr_multiplier(config, s) for s in (1, 2, 6, 10, 11, 12, 38, 56, 75, 111)]
    np.testing.assert_allclose(got, expected, atol=5e-6)
    assert lr_multiplier(config, 500) == 0.0


def test_bad_input_is_named(learner: Learner, params: Any, batch: TrainBatch):
    mask = batch.response_mask.copy()
    mask[:, 0] = 1
    with pytest.raises(ValueError, match="column 0"):
        learner.logprobs(params, batch.tokens, batch.lengths, mask)
    with pytest.raises(ValueError, match="temperature=0"):
        learner.logprobs(params, batch.tokens, batch.lengths, batch.response_mask, 0.0)
    with pytest.raises(ValueError, match="count from 1"):
        learner.update(learner.init_state(params), batch, 0)
    with pytest.raises(ValueError, match="length_buckets"):
        LearnerConfig(length_buckets=(8, 4))
    with pytest.raises(ValueError, match=r"OptimizerConfig.schedule='linear'"):
        OptimizerConfig(schedule="linear")  # type: ignore[arg-type]
