"""A wrong sampler trains on log-probabilities of a distribution that nobody sampled from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codea1_jax.rollout import sampling
from codea1_jax.rollout.sampling import Method
from codea1_jax.rollout.types import SamplingParams

_draw = jax.jit(sampling.draw, static_argnames="method")


def run(logits, temperature=1.0, top_k=0, top_p=1.0, keys=None, index=None):
    """Draws one token for each row of numpy logits."""
    rows, vocab_size = logits.shape
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    method = Method.from_params(params, vocab_size)
    if keys is None:
        keys = np.stack([sampling.request_key(0, 0, str(i), 0) for i in range(rows)])
    if index is None:
        index = np.zeros(rows, np.int32)
    drawn = _draw(
        jnp.asarray(logits.T, jnp.float32),
        jnp.asarray(keys),
        jnp.asarray(index),
        jnp.float32(temperature or 1),
        jnp.float32(top_p),
        method=method,
    )
    return np.asarray(drawn.token), np.asarray(drawn.logp), np.asarray(drawn.kept_mass)


def reference(logits, temperature, top_k, top_p):
    """(probabilities after truncation, kept mass) of one row, by sorting, in float64.

    Top-k first, then top-p over the renormalised rest, as Hugging Face's warpers do.
    """
    scaled = logits.astype(np.float64) / temperature
    full = np.exp(scaled - scaled.max())
    full /= full.sum()
    order = np.argsort(-full, kind="stable")
    kept = full[order].copy()
    if top_k:
        kept[top_k:] = 0
    if top_p < 1:
        share = kept / kept.sum()
        kept[np.cumsum(share) - share >= top_p] = 0
    probabilities = np.zeros_like(full)
    probabilities[order] = kept
    return probabilities / kept.sum(), kept.sum()


SETTINGS = [
    (1.0, 0, 1.0),
    (0.6, 0, 1.0),
    (1.5, 0, 1.0),
    (1.0, 7, 1.0),
    (1.0, 0, 0.8),
    (0.7, 20, 0.9),
    (1.5, 0, 0.97),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_draws_follow_the_distribution(temperature, top_k, top_p):
    """Biased draws make every advantage an estimate for another policy."""
    num_draws, vocab_size = 40_000, 300  # three blocks, the last one padded
    logits = np.random.default_rng(1).normal(0, 2, vocab_size).astype(np.float32)
    index = np.arange(num_draws, dtype=np.int32)  # successive tokens of one sample
    keys = np.tile(sampling.request_key(3, 1, "q", 2), (num_draws, 1))
    tokens, logp, kept_mass = run(
        np.tile(logits, (num_draws, 1)), temperature, top_k, top_p, keys, index
    )
    probabilities, mass = reference(logits, temperature, top_k, top_p)
    counts = np.bincount(tokens, minlength=vocab_size)
    assert counts[probabilities == 0].sum() == 0
    expected = probabilities * num_draws
    is_common = expected >= 5
    rest = expected[~is_common].sum()
    chi_square = ((counts - expected)[is_common] ** 2 / expected[is_common]).sum()
    if rest > 0:
        chi_square += (counts[~is_common].sum() - rest) ** 2 / rest
    freedom = is_common.sum()
    # Five standard deviations of the chi-square distribution: one false alarm in a million.
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom) + 5
    np.testing.assert_allclose(logp, np.log(probabilities[tokens]), atol=2e-5)
    np.testing.assert_allclose(kept_mass, mass, atol=1e-5)


@pytest.mark.parametrize("spread", [0.01, 0.3, 1.0, 6.0])
@pytest.mark.parametrize("top_p", [0.02, 0.5, 0.999])
def test_top_p_without_sorting_keeps_the_nucleus(spread, top_p):
    """Flat rows exceed the candidate list: the search must find the same nucleus as a sort."""
    rows, vocab_size = 6, 3000
    spreads = np.array([spread] * 5 + [20.0])[:, None]  # the last row never needs the search
    logits = np.random.default_rng(2).normal(0, 1, (rows, vocab_size)) * spreads
    logits = logits.astype(np.float32)
    tokens, logp, kept_mass = run(logits, top_p=top_p)
    for row in range(rows):
        probabilities, mass = reference(logits[row], 1.0, 0, top_p)
        # Where the running sum passes top_p a token more or less can be kept by float32 rounding.
        slack = 2 * probabilities.max() * mass if spread < 0.1 else 1e-4
        assert abs(kept_mass[row] - mass) <= slack + 1e-6
        assert abs(logp[row] - np.log(probabilities[tokens[row]])) < 1e-2
    np.testing.assert_array_equal(run(logits[5:], top_p=top_p, keys=_key(5))[0], tokens[5:])


def _key(i):
    return sampling.request_key(0, 0, str(i), 0)[None]


def test_ties_at_the_limit_are_all_kept():
    """Dropping one of two equal tokens would make the result depend on the order of the sort."""
    logits = np.array([[0.0, 2.0, 1.0, 1.0, 1.0, -1.0]], np.float32)
    _, _, kept_mass = run(logits, top_k=2)
    weights = np.exp(logits[0].astype(np.float64))
    assert kept_mass[0] == pytest.approx(weights[1:5].sum() / weights.sum(), rel=1e-5)


def test_greedy_is_the_mode_with_untruncated_logp():
    """The learner rescores at temperature 1; greedy log-probabilities must be comparable."""
    logits = np.random.default_rng(3).normal(0, 3, (4, 1000)).astype(np.float32)
    tokens, logp, kept_mass = run(logits, temperature=0.0, top_k=5, top_p=0.5)
    np.testing.assert_array_equal(tokens, logits.argmax(-1))
    for row in range(4):
        probabilities, _ = reference(logits[row], 1.0, 0, 1.0)
        assert logp[row] == pytest.approx(np.log(probabilities.max()), abs=1e-5)
    np.testing.assert_array_equal(kept_mass, 1)


def test_impossible_tokens_are_never_drawn():
    """A token of probability zero has log-probability -inf and poisons the loss."""
    rows, vocab_size = 512, 1000  # the last block has 24 padded entries
    logits = np.full((rows, vocab_size), -np.inf, np.float32)
    allowed = np.array([3, 127, 128, 640, 999])
    logits[:, allowed] = np.log([1e-30, 1e-3, 0.5, 0.4, 1e-20])
    tokens, logp, _ = run(logits)
    assert set(tokens) <= set(allowed)
    assert np.isfinite(logp).all()


@settings(deadline=None, max_examples=60)
@given(
    weights=st.lists(
        st.sampled_from([0.0, 0.0, 1e-37, 1e-7, 0.1, 1.0, 3e4]), min_size=8, max_size=8
    ).filter(any),
    uniform=st.sampled_from([0.0, 1e-7, 0.3, 0.5, 1 - 2.0**-23, 1 - 2.0**-24]),
)
def test_inverse_cdf_at_its_edges(weights, uniform):
    """Rounding of the running sum must not select an empty entry."""
    weights = np.array([weights], np.float32)
    chosen = int(sampling._first_above(jnp.asarray(weights.T), jnp.float32([uniform]))[0])
    assert weights[0, chosen] > 0
    mass = np.cumsum(weights[0].astype(np.float64))
    slack = 1e-6 * mass[-1]
    assert mass[chosen] >= uniform * mass[-1] - slack
    assert mass[chosen] - weights[0, chosen] <= uniform * mass[-1] + slack


def test_a_row_does_not_depend_on_its_neighbours():
    """Results that change with the batch can't be reproduced after a restart."""
    logits = np.random.default_rng(4).normal(0, 2, (16, 700)).astype(np.float32)
    keys = np.stack([sampling.request_key(1, 2, f"r{i}", i) for i in range(16)])
    index = np.arange(16, dtype=np.int32)
    for options in ({}, {"top_k": 11}, {"top_p": 0.7}):
        together = run(logits, keys=keys, index=index, **options)
        order = np.random.default_rng(5).permutation(16)[:5]
        apart = run(logits[order], keys=keys[order], index=index[order], **options)
        np.testing.assert_array_equal(together[0][order], apart[0])
        np.testing.assert_allclose(together[1][order], apart[1], atol=1e-6)


def test_nan_shows_up_as_nan():
    """Broken weights must be noticed, not turned into plausible tokens."""
    logits = np.zeros((2, 200), np.float32)
    logits[1, 7] = np.nan
    for options in ({}, {"top_p": 0.9}, {"top_k": 3}, {"temperature": 0.0}):
        tokens, logp, _ = run(logits, **options)
        assert np.isfinite(logp[0])
        assert np.isnan(logp[1])
        assert 0 <= tokens.min() <= tokens.max() < 200


def test_keys_are_a_stable_function_of_the_request():
    """A resumed run must draw what the interrupted one would have drawn."""
    key = sampling.request_key(1, 2, "coder/3", 4)
    assert key.dtype == np.uint32
    # Written out, so that a change of the derivation is seen.
    assert key.tolist() == [1341121974, 663600297]
    changed = [(2, 2, "coder/3", 4), (1, 3, "coder/3", 4), (1, 2, "coder/33", 4), (1, 2, "", 4)]
    changed += [(1, 2, "coder/3", 5), (12, 0, "x", 1), (1, 20, "x", 1), (1, 2, '", 1', 0)]
    keys = {tuple(sampling.request_key(*parts)) for parts in changed} | {tuple(key)}
    assert len(keys) == len(changed) + 1


def test_uniforms_are_uniform_and_follow_the_index():
    """Correlated randomness across positions would repeat tokens."""
    keys = np.tile(sampling.request_key(0, 0, "a", 0), (4096, 1))
    numbers = np.asarray(sampling.uniforms(jnp.asarray(keys), jnp.arange(4096)))
    assert ((numbers >= 0) & (numbers < 1)).all()
    for column in numbers.T:
        counts = np.histogram(column, bins=16, range=(0, 1))[0]
        assert ((counts - 256) ** 2 / 256).sum() < 15 + 5 * np.sqrt(30)
    assert abs(np.corrcoef(numbers.T)[0, 1]) < 0.08
    assert abs(np.corrcoef(numbers[1:, 0], numbers[:-1, 0])[0, 1]) < 0.08


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (SamplingParams(temperature=-1), "temperature"),
        (SamplingParams(temperature=float("nan")), "temperature"),
        (SamplingParams(top_p=0), "top_p"),
        (SamplingParams(top_p=1.5), "top_p"),
        (SamplingParams(top_k=-1), "top_k"),
        (SamplingParams(max_new_tokens=0), "max_new_tokens"),
        (SamplingParams(stop_token_ids=(100,)), "stop_token_ids"),
    ],
)
def test_bad_parameters_are_named(params, name):
    """A typo in a run file must not silently sample something else."""
    with pytest.raises(ValueError, match=name):
        Method.from_params(params, 100)
