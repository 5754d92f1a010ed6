"""Samples must come from the policy that is trained, whatever machine and batch drew them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codea1_jax.mesh import make_mesh
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rollout.engine import RolloutConfig, RolloutEngine
from codea1_jax.rollout.types import GroupRequest, SamplingParams

VOCAB = 300
CONFIG = Qwen2Config(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    max_position_embeddings=64,
)
MODEL = LanguageModel(CONFIG)
BASE = RolloutConfig(prompt_buckets=(32,), rows=8, min_rows=8, prefill_rows=4, decode_chunk=4)
SAMPLING = SamplingParams(max_new_tokens=14)
PAD = 0


def single_mesh():
    return make_mesh(1, 1, 1, devices=jax.devices()[:1])


@pytest.fixture(scope="module")
def params():
    # Larger than the usual initialisation, so that distributions differ between positions.
    init = jax.jit(lambda key: jax.tree.map(lambda leaf: leaf * 5, MODEL.init(key)))
    return init(jax.random.key(0))


@pytest.fixture(scope="module")
def groups():
    rng = np.random.default_rng(0)
    lengths = [3, 16, 17, 9, 32, 25]
    return [
        GroupRequest(f"r{i}", tuple(rng.integers(0, VOCAB, length).tolist()), 3, seed=5)
        for i, length in enumerate(lengths)
    ]


def collect(engine, params, groups, sampling=SAMPLING, version=1):
    samples = list(engine.generate(params, groups, sampling, policy_version=version))
    by_key = {(sample.request_id, sample.sample_index): sample for sample in samples}
    assert len(by_key) == len(samples) == sum(group.num_samples for group in groups)
    assert set(by_key) == {(g.request_id, i) for g in groups for i in range(g.num_samples)}
    return by_key


def assert_same(left, right):
    assert set(left) == set(right)
    for key, sample in left.items():
        other = right[key]
        np.testing.assert_array_equal(sample.tokens, other.tokens, err_msg=str(key))
        assert sample.finish_reason == other.finish_reason
        np.testing.assert_allclose(sample.sampler_logp, other.sampler_logp, atol=2e-5)
        np.testing.assert_allclose(sample.kept_mass, other.kept_mass, atol=2e-5)


@pytest.fixture(scope="module")
def engine():
    return RolloutEngine(MODEL, single_mesh(), BASE, PAD)


@pytest.fixture(scope="module")
def plain(engine, params, groups):
    """The samples every other way of drawing them is compared with."""
    return collect(engine, params, groups)


@functools.partial(jax.jit, static_argnames="model")
def _forward(model, params, tokens, positions, segment_ids):
    return model.logits(params, model.hidden(params, tokens, positions, segment_ids))


def logits_of(model, params, sample):
    """Scores before each generated token, from one whole forward pass, float64 [R V]."""
    tokens = np.concatenate([sample.prompt, sample.tokens]).astype(np.int32)
    padded = np.zeros((1, 48), np.int32)  # one compiled shape
    padded[0, : len(tokens)] = tokens
    index = np.arange(48, dtype=np.int32)[None]
    segment = (index < len(tokens)).astype(np.int32)
    logits = _forward(model, params, padded, index, segment)[0]
    first = len(sample.prompt) - 1
    return np.asarray(logits, np.float64)[first : first + len(sample.tokens)]


def truncated(logits, temperature, top_k, top_p):
    """(log-probabilities with -inf for what is cut, kept mass) of one position, by sorting."""
    scaled = logits / temperature
    full = np.exp(scaled - scaled.max())
    full /= full.sum()
    order = np.argsort(-full, kind="stable")
    kept = full[order].copy()
    kept[top_k or len(kept) :] = 0
    share = kept / kept.sum()
    if top_p < 1:
        kept[np.cumsum(share) - share >= top_p] = 0
    probabilities = np.zeros_like(full)
    probabilities[order] = kept / kept.sum()
    with np.errstate(divide="ignore"):
        return np.log(probabilities), kept.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (0.6, 0, 1.0),
        (1.0, 0, 1.0),
        (1.5, 0, 1.0),
        (0.6, 0, 0.9),
        (1.5, 0, 0.9),
        (1.0, 20, 0.8),
        (0.0, 0, 1.0),
    ],
)
def test_logp_equals_rescoring(engine, params, groups, temperature, top_k, top_p):
    """The importance ratio of an unchanged policy would not be 1."""
    sampling = dataclasses.replace(SAMPLING, temperature=temperature, top_k=top_k, top_p=top_p)
    for sample in collect(engine, params, groups[::2], sampling).values():
        assert sample.tokens.dtype == np.int32
        assert sample.sampler_logp.dtype == sample.kept_mass.dtype == np.float32
        assert len(sample.tokens) == len(sample.sampler_logp) == len(sample.kept_mass) == 14
        for t, logits in enumerate(logits_of(MODEL, params, sample)):
            expected, mass = truncated(logits, temperature or 1.0, top_k, top_p)
            token = sample.tokens[t]
            assert abs(sample.sampler_logp[t] - expected[token]) < 1e-4
            assert abs(sample.kept_mass[t] - mass) < 1e-4
            if temperature == 0:
                assert logits[token] > logits.max() - 1e-4


def test_tokens_do_not_depend_on_shapes_or_company(engine, plain, params, groups):
    """A resumed or resized run would train on other samples."""
    # Other slots, buckets, prefills and loop lengths; leftovers move to smaller programs.
    for config in (
        RolloutConfig((40,), rows=32, min_rows=16, prefill_rows=6, decode_chunk=5),
        RolloutConfig((16, 32), rows=4, min_rows=2, prefill_rows=1, decode_chunk=16),
    ):
        other = RolloutEngine(MODEL, single_mesh(), config, PAD)
        assert_same(plain, collect(other, params, groups))
    assert_same(plain, collect(engine, params, groups[::-1]))
    alone = collect(engine, params, [groups[3]])
    assert_same({key: plain[key] for key in alone}, alone)
    fewer = collect(engine, params, [dataclasses.replace(groups[2], num_samples=2), groups[5]])
    assert_same({key: plain[key] for key in fewer}, fewer)


def test_a_cache_that_grows_and_one_row_draw_the_same(plain, params, groups):
    """Room for the second half of the tokens must keep the first; a single row has an empty one."""
    config = RolloutConfig((9,), rows=8, min_rows=1, decode_chunk=7)
    engine = RolloutEngine(MODEL, single_mesh(), config, PAD)
    together = collect(engine, params, [groups[0], groups[3]])
    assert_same({key: plain[key] for key in together}, together)
    assert any(name.startswith("grow") for name in engine.program_names())
    one = collect(engine, params, [dataclasses.replace(groups[3], num_samples=1)])
    assert_same({("r3", 0): plain["r3", 0]}, one)
    assert {loop.rows for loop in engine.stats.loops} == {2}


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 2, 4)])
def test_eight_devices_draw_the_same_tokens(plain, params, groups, sizes):
    """Sharding must not change the experiment. With tensor=4 two key/value heads don't divide."""
    engine = RolloutEngine(MODEL, make_mesh(*sizes), BASE, PAD)
    assert_same(plain, collect(engine, params, groups))


def test_samples_differ_as_they_should(engine, plain, params, groups):
    """Equal samples in a group have no advantage to learn from."""
    for group in groups:
        texts = {tuple(plain[group.request_id, i].tokens) for i in range(group.num_samples)}
        assert len(texts) == group.num_samples
    reseeded = [dataclasses.replace(group, seed=6) for group in groups]
    for other in (
        collect(engine, params, reseeded),
        collect(engine, params, groups, version=2),
    ):
        same = [np.array_equal(plain[key].tokens, other[key].tokens) for key in plain]
        assert not any(same)
        assert {sample.policy_version for sample in other.values()} in ({1}, {2})


def assert_stopped(stopped, full, stop_token_ids):
    ends = np.flatnonzero(np.isin(full.tokens, stop_token_ids))
    length = ends[0] + 1 if ends.size else len(full.tokens)
    np.testing.assert_array_equal(stopped.tokens, full.tokens[:length])
    np.testing.assert_allclose(stopped.sampler_logp, full.sampler_logp[:length], atol=2e-5)
    assert stopped.finish_reason == ("stop" if ends.size else "length")


def test_stops_exactly_at_a_stop_token(engine, plain, params, groups):
    """A lost or doubled end-of-text token shifts every reward by one sample's tail."""
    # A token of the middle as a stop token: the sample must end at its first occurrence.
    stop = int(plain["r1", 0].tokens[7])
    sampling = dataclasses.replace(SAMPLING, stop_token_ids=(stop, VOCAB - 1, VOCAB - 2))
    stopped = collect(engine, params, groups, sampling)
    for key, full in plain.items():
        assert_stopped(stopped[key], full, sampling.stop_token_ids)
    assert {sample.finish_reason for sample in stopped.values()} == {"stop", "length"}
    assert len(stopped["r1", 0].tokens) <= 8


def test_the_padding_token_may_be_a_stop_token(plain, params, groups):
    """Many tokenizers pad with end-of-text: padding must end nothing and be no sample's end."""
    stop = int(plain["r1", 0].tokens[7])
    group = dataclasses.replace(groups[1], prompt=(stop, *groups[1].prompt[1:-1], stop))
    engine = RolloutEngine(MODEL, single_mesh(), BASE, pad_id=stop)
    full = collect(engine, params, [group])
    sampling = dataclasses.replace(SAMPLING, stop_token_ids=(stop,))
    if not any(stop in sample.tokens for sample in full.values()):
        sampling = dataclasses.replace(
            sampling, stop_token_ids=(stop, int(full["r1", 0].tokens[5]))
        )
    stopped = collect(engine, params, [group], sampling)
    for key, sample in full.items():
        assert len(sample.tokens) == SAMPLING.max_new_tokens
        assert_stopped(stopped[key], sample, sampling.stop_token_ids)


def test_the_stop_token_may_be_the_first_or_the_last(engine, plain, params, groups):
    """Off-by-one at either end of the length limit."""
    base = plain["r2", 1]
    first = dataclasses.replace(SAMPLING, stop_token_ids=(int(base.tokens[0]),))
    sample = collect(engine, params, [groups[2]], first)["r2", 1]
    assert (sample.tokens.tolist(), sample.finish_reason) == ([base.tokens[0]], "stop")

    limit = 1 + int(np.flatnonzero(~np.isin(base.tokens[1:], base.tokens[:1]))[0])
    last = SamplingParams(max_new_tokens=limit, stop_token_ids=(int(base.tokens[limit - 1]),))
    sample = collect(engine, params, [groups[2]], last)["r2", 1]
    assert sample.finish_reason == "stop"

    one = collect(engine, params, groups, SamplingParams(max_new_tokens=1))
    assert {(len(s.tokens), s.finish_reason) for s in one.values()} == {(1, "length")}
    for key, sample in one.items():
        assert sample.tokens[0] == plain[key].tokens[0]


def test_new_weights_are_used_at_once(plain, params, groups):
    """Stale weights or keys and values make on-policy training off-policy without a sign."""
    engine = RolloutEngine(MODEL, single_mesh(), BASE, PAD)
    other = jax.tree.map(lambda leaf: leaf * 0.9, params)
    expected = collect(RolloutEngine(MODEL, single_mesh(), BASE, PAD), other, groups)
    assert any(not np.array_equal(expected[key].tokens, plain[key].tokens) for key in plain)

    mutable = dict(params)
    assert_same(plain, collect(engine, mutable, groups))
    mutable.update(other)  # the same container and the same version, other arrays
    assert_same(expected, collect(engine, mutable, groups))
    assert_same(plain, collect(engine, params, groups))
    engine.release()
    assert_same(plain, collect(engine, params, groups))


def test_weights_are_converted_once_per_version(params, groups):
    """Converting 0.5B parameters for every call of a step would cost seconds."""
    engine = RolloutEngine(MODEL, single_mesh(), BASE, PAD)
    collect(engine, params, groups[:1])
    assert engine.stats.weights_s > 0
    collect(engine, params, groups[1:2])
    assert engine.stats.weights_s == 0
    collect(engine, params, groups[:1], version=2)
    assert engine.stats.weights_s > 0


def test_nothing_compiles_after_warm_up(params):
    """A recompilation in the middle of a run stops every device for minutes."""
    config = RolloutConfig((8, 16), rows=4, min_rows=2, prefill_rows=1, decode_chunk=4)
    engine = RolloutEngine(MODEL, single_mesh(), config, PAD)
    sampling = dataclasses.replace(SAMPLING, stop_token_ids=(1, 2, 3, 4, 5, 6, 7))
    engine.warm_up(sampling)
    rng = np.random.default_rng(1)

    def batch(step):
        return [
            GroupRequest(
                f"{step}/{i}",
                tuple(rng.integers(0, VOCAB, rng.integers(1, 17)).tolist()),
                int(rng.integers(1, 6)),
            )
            for i in range(rng.integers(1, 6))
        ]

    collect(engine, params, batch(0), sampling)  # converts the weights
    before = engine.num_compilations()
    assert before == len(set(engine.program_names()))

    events = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, duration, **kwargs: events.append(name) if "compile" in name else None
    )
    try:
        for step in range(1, 9):
            temperature = float(rng.uniform(0.5, 1.5))
            changed = dataclasses.replace(sampling, temperature=temperature, max_new_tokens=16)
            collect(engine, params, batch(step), changed, version=step)
        assert engine.num_compilations() == before
        assert events == []
        jax.jit(lambda x: x * 3 + 1)(np.float32(2))
        assert events  # the listener does hear compilations
    finally:
        jax.monitoring.clear_event_listeners()


def test_limits_are_refused_before_anything_runs(engine, params, groups):
    """An over-long prompt must not abort a step half-way."""
    long = GroupRequest("long", (1,) * 33, 1)
    with pytest.raises(ValueError, match=r"'long'.*33 tokens; the limit is 32"):
        engine.generate(params, [groups[0], long], SAMPLING, policy_version=0)
    with pytest.raises(ValueError, match="64 positions"):
        engine.generate(params, groups, SamplingParams(max_new_tokens=33), policy_version=0)
    with pytest.raises(ValueError, match="top_p"):
        engine.generate(params, groups, SamplingParams(top_p=0.0), policy_version=0)
    with pytest.raises(ValueError, match=r"rows=6.*= 4"):
        RolloutEngine(MODEL, make_mesh(2, 2, 2), dataclasses.replace(BASE, rows=6), PAD)
    with pytest.raises(ValueError, match="pad_id"):
        RolloutEngine(MODEL, single_mesh(), BASE, VOCAB)
    with pytest.raises(ValueError, match="prompt_buckets"):
        RolloutConfig(())
    assert list(engine.generate(params, [], SAMPLING, policy_version=0)) == []


def test_broken_weights_are_reported(engine, params, groups):
    """A diverged policy must stop the run, not fill it with noise."""
    broken = dict(params, final_norm=jax.tree.map(lambda leaf: leaf * np.nan, params["final_norm"]))
    with pytest.raises(FloatingPointError, match="policy version 1"):
        collect(engine, broken, groups)


def test_samples_arrive_while_others_decode(engine, plain, params, groups):
    """Judging could not overlap with sampling; statistics feed the metrics of every step."""
    iterator = engine.generate(params, groups, SAMPLING, policy_version=1)
    next(iterator)
    assert engine.stats.num_samples < len(plain)
    list(iterator)
    stats = engine.stats
    assert stats.num_samples == len(plain)
    assert stats.num_tokens == sum(len(sample.tokens) for sample in plain.values())
    assert stats.num_prefill_tokens == sum(len(group.prompt) for group in groups)
    assert stats.num_live_row_steps == stats.num_tokens
    assert {loop.rows for loop in stats.loops} == {8}
    assert stats.loops[0].live == 8
    assert stats.loops[-1].end_s == stats.prefill_s + stats.decode_s
    assert 0 < stats.occupancy <= 1
    assert stats.prefill_s > 0
    assert stats.decode_s > 0
    assert stats.tokens_per_s > 0


def test_bfloat16_samples_from_float32_masters(params, groups):
    """The sampler's bfloat16 copy must be the same policy up to bfloat16's rounding."""
    model = LanguageModel(CONFIG, compute_dtype=jnp.bfloat16)
    engine = RolloutEngine(model, single_mesh(), BASE, PAD)
    samples = collect(engine, params, groups[:2])
    for sample in samples.values():
        logits = logits_of(model, params, sample)
        expected = [truncated(row, 1.0, 0, 1.0)[0][t] for row, t in zip(logits, sample.tokens)]
        # 8 bits of mantissa through two layers, logits up to about 10.
        assert np.abs(sample.sampler_logp - expected).max() < 0.3
        assert np.abs(sample.sampler_logp - expected).mean() < 0.05


def test_weights_kept_in_bfloat16_sample_as_well(params, groups):
    """An evaluation loads a checkpoint in the compute dtype, and its norms' scales with it."""
    model = LanguageModel(CONFIG, compute_dtype=jnp.bfloat16)
    engine = RolloutEngine(model, single_mesh(), BASE, PAD)
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), narrow)
    assert_same(collect(engine, narrow, groups), collect(engine, wide, groups))
