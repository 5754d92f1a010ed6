"""If this fails, the network is not Qwen2.5: loaded weights mean something else than they were
trained to mean, or sampling, training and sharded programs compute different models."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy_qwen2
import pytest

from codea1_jax.mesh import make_mesh
from codea1_jax.models import attention
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.hf_io import load_params
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.sharding import batch_sharding, cache_sharding, param_shardings

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
SIZES = ("qwen2_5_0_5b", "qwen2_5_1_5b", "qwen2_5_3b", "qwen2_5_7b")
CONFIG = Qwen2Config(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    max_position_embeddings=512,
)


@functools.cache
def loaded(name: str) -> tuple[LanguageModel, Any, dict[str, np.ndarray]]:
    model = LanguageModel(Qwen2Config.from_directory(FIXTURES / name))
    params = load_params(FIXTURES / name, model, make_mesh(devices=jax.devices()[:1]))
    return model, params, dict(np.load(FIXTURES / name / "expected.npz"))


@functools.cache
def random_params(config: Qwen2Config = CONFIG) -> Any:
    """Parameters with every bias and scale away from its neutral start."""
    rng = np.random.default_rng(0)

    def draw(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        mean = 1.0 if path[-1].key == "scale" else 0.0
        return rng.normal(mean, 0.1, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, LanguageModel(config).abstract_params())


def random_tokens(shape: tuple[int, ...], seed: int = 2) -> jax.Array:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(0, CONFIG.vocab_size, shape, dtype=np.int32))


def padded_inputs(lengths: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """positions, segment_ids of right-padded rows."""
    positions = np.broadcast_to(np.arange(width, dtype=np.int32), (len(lengths), width))
    return positions, (positions < lengths[:, None]).astype(np.int32)


def full_logits(model: LanguageModel, params: Any, tokens: Any, *where: Any) -> jax.Array:
    return model.logits(params, model.hidden(params, tokens, *where))


# Run op by op, a model spends seconds in compiling single operations: jit everything.
logits_of = jax.jit(full_logits, static_argnums=0)
hidden_of = jax.jit(LanguageModel.hidden, static_argnums=0)
prefill_of = jax.jit(LanguageModel.prefill, static_argnums=(0, 4))
decode_of = jax.jit(LanguageModel.decode, static_argnums=0)


class TestAgainstTorch:
    @pytest.mark.parametrize("name", SIZES)
    def test_logits(self, name: str):
        model, params, expected = loaded(name)
        where = padded_inputs(expected["lengths"], expected["tokens"].shape[1])
        ours = logits_of(model, params, expected["tokens"], *where)
        is_real = where[1] > 0
        assert np.abs(expected["logits"][is_real]).max() > 3  # not a comparison of near-zeros
        np.testing.assert_allclose(
            np.asarray(ours)[is_real], expected["logits"][is_real], atol=1e-4, rtol=0
        )

    @pytest.mark.parametrize("name", ["qwen2_5_0_5b", "qwen2_5_7b"])
    def test_gradients_of_biases_and_norms(self, name: str):
        model, params, expected = loaded(name)
        tokens = expected["tokens"]
        where = padded_inputs(expected["lengths"], tokens.shape[1])

        def loss_of(params: Any) -> jax.Array:
            logp = jax.nn.log_softmax(full_logits(model, params, tokens, *where)[:, :-1])
            taken = jnp.take_along_axis(logp, jnp.asarray(tokens)[:, 1:, None], axis=-1)[..., 0]
            mask = jnp.asarray(where[1])[:, 1:].astype(jnp.float32)
            return -(taken * mask).sum() / mask.sum()

        loss, grads = jax.jit(jax.value_and_grad(loss_of))(params)
        np.testing.assert_allclose(loss, expected["loss"], rtol=1e-5)
        num_compared = 0
        for layer in range(model.config.num_hidden_layers):
            mine = jax.tree.map(lambda g: np.asarray(g)[layer], grads["layers"])  # noqa: B023
            prefix = f"grad/model.layers.{layer}"
            for theirs, ours in (
                ("input_layernorm.weight", mine["input_norm"]["scale"]),
                ("post_attention_layernorm.weight", mine["post_attention_norm"]["scale"]),
                *(
                    (f"self_attn.{n}_proj.bias", mine["attention"][n]["bias"].reshape(-1))
                    for n in "qkv"
                ),
            ):
                reference = expected[f"{prefix}.{theirs}"]
                scale = np.abs(reference).max()
                # A key bias shifts all scores of a query alike: its true gradient is almost zero.
                assert scale > 1e-4 or theirs == "self_attn.k_proj.bias"
                np.testing.assert_allclose(ours, reference, atol=max(1e-4 * scale, 1e-6), rtol=0)
                num_compared += 1
        assert num_compared == 5 * model.config.num_hidden_layers

    @pytest.mark.parametrize("name", SIZES)
    def test_greedy_continuation_by_prefill_and_decode(self, name: str):
        model, params, expected = loaded(name)
        lengths = jnp.asarray(expected["lengths"])
        num_new = expected["greedy"].shape[1]
        num_slots = expected["tokens"].shape[1] + num_new
        hidden, cache = prefill_of(model, params, expected["tokens"], lengths, num_slots)

        @functools.partial(jax.jit, donate_argnums=2)
        def step(hidden: Any, positions: Any, cache: Any) -> Any:
            token = jnp.argmax(model.logits(params, hidden), -1).astype(jnp.int32)
            return token, model.decode(params, token, positions, cache)

        got = []
        for i in range(num_new):
            token, (hidden, cache) = step(hidden, lengths + i, cache)
            got.append(np.asarray(token))
        np.testing.assert_array_equal(np.stack(got, 1), expected["greedy"])


@pytest.mark.parametrize("name", SIZES)
def test_logits_equal_the_numpy_forward(name: str):
    model, params, expected = loaded(name)
    config, tensors = numpy_qwen2.load(FIXTURES / name)
    tokens = expected["tokens"][:1]
    positions = 200 + np.arange(tokens.shape[1], dtype=np.int32)[None]
    ours = logits_of(model, params, tokens, positions, np.ones_like(tokens))
    reference = numpy_qwen2.forward(config, tensors, tokens[0], first_position=200)
    np.testing.assert_allclose(ours[0], reference, atol=1e-4, rtol=0)


class TestPaddingAndSegments:
    def test_amount_and_content_of_padding_change_nothing(self):
        model, params = LanguageModel(CONFIG), random_params()
        tokens, lengths = np.asarray(random_tokens((3, 12))), np.array([12, 7, 1])
        wide = np.concatenate([tokens, np.full((3, 9), 63, np.int32)], axis=1)
        wide[1, 7:], wide[2, 1:] = 5, 9
        narrow = hidden_of(model, params, tokens, *padded_inputs(lengths, 12))
        other = hidden_of(model, params, wide, *padded_inputs(lengths, 21))
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(narrow[row, :length], other[row, :length], atol=1e-5, rtol=0)

    def test_packed_segments_equal_separate_rows(self):
        model, params = LanguageModel(CONFIG), random_params()
        tokens = random_tokens((1, 11))
        positions = jnp.asarray([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0]], jnp.int32)
        segments = jnp.asarray([[1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0]], jnp.int32)
        packed = hidden_of(model, params, tokens, positions, segments)
        for start, stop in ((0, 4), (4, 10)):
            piece = tokens[:, start:stop]
            alone = hidden_of(model, params, piece, positions[:, start:stop], jnp.ones_like(piece))
            np.testing.assert_allclose(packed[:, start:stop], alone, atol=1e-5, rtol=0)

    def test_fully_padded_row_is_finite_in_value_and_gradient(self):
        model, params = LanguageModel(CONFIG), random_params()
        tokens, where = random_tokens((2, 6)), padded_inputs(np.array([6, 0]), 6)

        def loss(params: Any) -> jax.Array:
            return jnp.sum(model.hidden(params, tokens, *where)[0])

        assert np.isfinite(hidden_of(model, params, tokens, *where)).all()
        grads = jax.jit(jax.grad(loss))(params)
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
        hidden, cache = prefill_of(model, params, tokens, jnp.asarray([6, 0], jnp.int32), 8)
        assert np.isfinite(hidden).all()
        hidden, _ = decode_of(model, params, tokens[:, 0], jnp.asarray([6, 0], jnp.int32), cache)
        assert np.isfinite(hidden).all()

    @pytest.mark.parametrize("block", [8, 512], ids=["blocks of 8", "one block"])
    def test_attention_equals_softmax(self, monkeypatch: pytest.MonkeyPatch, block: int):
        """Values and gradients of 21 queries; segments, branches of a prefix, padding."""
        monkeypatch.setattr(attention, "QUERY_BLOCK", block)
        rng = np.random.default_rng(5)
        q, k, v = (rng.normal(size=(2, 21, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
        segments = np.array([[1] * 21, [1] * 5 + [2] * 8 + [0] * 8], np.int32)
        branches = np.array([[0] * 6 + [1] * 9 + [2] * 6, [0] * 7 + [1] * 14], np.int32)
        weight = rng.normal(size=q.shape).astype(np.float32) * (segments > 0)[:, :, None, None]
        index = np.arange(21)
        visible = (segments[:, :, None] == segments[:, None]) & (index[:, None] >= index)
        visible &= (branches[:, None] == 0) | (branches[:, :, None] == branches[:, None])

        def plain(q: Any, k: Any, v: Any) -> jax.Array:
            k, v = (jnp.repeat(x, 2, axis=2) for x in (k, v))
            scores = jnp.einsum("BQNH,BSNH->BNQS", q, k) / np.sqrt(8)
            scores = jnp.where(visible[:, None], scores, -1e30)
            return jnp.einsum("BNQS,BSNH->BQNH", jax.nn.softmax(scores, axis=-1), v)

        def blocks(q: Any, k: Any, v: Any) -> jax.Array:
            return attention.attend_full(q, k, v, segments, branches)

        def run(attend: Any) -> Any:
            def loss(*args: Any) -> jax.Array:
                return jnp.sum(weight * attend(*args))

            return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, k, v)

        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-4),
            run(blocks),
            run(plain),
        )


class TestCache:
    @pytest.mark.parametrize("fused", [None, False, True], ids=["params", "stacked", "fused"])
    def test_prefill_and_decode_equal_hidden(self, fused: bool | None):
        """Rows of different lengths, garbage in the padding, decoded side by side."""
        model, params = LanguageModel(CONFIG), random_params()
        tokens, lengths = random_tokens((3, 14)), np.array([9, 4, 1], np.int32)
        full = hidden_of(model, params, tokens, *padded_inputs(np.array([14, 14, 14]), 14))
        used = params
        if fused is not None:
            used = jax.jit(functools.partial(model.decode_view, fused=fused))(params)
        hidden, cache = prefill_of(model, used, tokens[:, :9], lengths, 16)
        shapes = {leaf.shape for leaf in jax.tree.leaves(cache)}
        assert shapes == ({(3, 2, 16, 8)} if fused else {(3, 3, 16, 2, 8)})
        step = jax.jit(model.decode, donate_argnums=3)
        rows = np.arange(3)
        for i in range(6):
            np.testing.assert_allclose(
                hidden, np.asarray(full)[rows, lengths - 1 + i], atol=1e-5, rtol=0
            )
            if i < 5:
                token = np.asarray(tokens)[rows, lengths + i]
                hidden, cache = step(used, token, jnp.asarray(lengths + i), cache)

    def test_position_beyond_the_cache_writes_nothing(self):
        model, params = LanguageModel(CONFIG), random_params()
        tokens = random_tokens((2, 4))
        _, cache = prefill_of(model, params, tokens, jnp.asarray([4, 4], jnp.int32), 4)
        _, after = decode_of(model, params, tokens[:, 0], jnp.asarray([4, 4], jnp.int32), cache)
        np.testing.assert_array_equal(after.k, cache.k)
        np.testing.assert_array_equal(after.v, cache.v)

    def test_cache_shorter_than_the_prompt_is_refused(self):
        model, params = LanguageModel(CONFIG), random_params()
        with pytest.raises(ValueError, match="cache_length=3 is below the prompt length 4"):
            prefill_of(model, params, random_tokens((1, 4)), jnp.ones((1,), jnp.int32), 3)


class TestDtypesAndRemat:
    def test_bfloat16_stays_near_float32(self):
        model, params, expected = loaded("qwen2_5_0_5b")
        low = dataclasses.replace(model, compute_dtype=jnp.bfloat16)
        where = padded_inputs(expected["lengths"], expected["tokens"].shape[1])
        hidden = hidden_of(low, params, expected["tokens"], *where)
        assert hidden.dtype == jnp.bfloat16
        logits = low.logits(params, hidden)
        assert logits.dtype == jnp.float32
        is_real = where[1] > 0
        error = np.abs(np.asarray(logits) - expected["logits"])[is_real]
        spread = expected["logits"][is_real].std()
        assert 0 < error.mean() < 0.05 * spread
        _, cache = prefill_of(low, params, expected["tokens"], expected["lengths"], 41)
        assert cache.k.dtype == cache.v.dtype == jnp.bfloat16

    def test_rotation_is_exact_at_positions_bfloat16_cannot_hold(self):
        """Attention depends on distances only: shifting all positions by 1000 changes nothing."""
        model = LanguageModel(CONFIG, compute_dtype=jnp.bfloat16)
        tokens, (positions, segments) = random_tokens((1, 8)), padded_inputs(np.array([8]), 8)
        near = hidden_of(model, random_params(), tokens, positions, segments)
        far = hidden_of(model, random_params(), tokens, positions + 1001, segments)
        difference = np.abs(near.astype(jnp.float32) - far.astype(jnp.float32))
        assert difference.mean() < 0.02

    @pytest.mark.parametrize("remat", ["full", "dots"])
    def test_remat_changes_memory_not_gradients(self, remat: Any):
        params, tokens = random_params(), random_tokens((2, 6))
        where = padded_inputs(np.array([6, 4]), 6)

        def gradient(model: LanguageModel) -> Any:
            loss = lambda p: jnp.sum(jnp.square(model.hidden(p, tokens, *where)))  # noqa: E731
            return jax.jit(jax.grad(loss))(params)

        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-5),
            gradient(LanguageModel(CONFIG)),
            gradient(LanguageModel(CONFIG, remat=remat)),
        )

    def test_bad_options_are_refused(self):
        with pytest.raises(ValueError, match="compute_dtype=float16; use float32 or bfloat16"):
            LanguageModel(CONFIG, compute_dtype=jnp.float16)
        with pytest.raises(ValueError, match="remat='half'; use 'none', 'full' or 'dots'"):
            LanguageModel(CONFIG, remat="half")  # type: ignore[arg-type]

    def test_model_is_a_static_argument(self):
        same, other = LanguageModel(CONFIG), LanguageModel(CONFIG, compute_dtype=jnp.bfloat16)
        assert hash(same) == hash(LanguageModel(CONFIG, compute_dtype="float32"))
        assert same == LanguageModel(CONFIG, compute_dtype="float32") != other


def test_init_is_what_it_says():
    params = jax.jit(LanguageModel(CONFIG).init)(jax.random.key(3))
    q = params["layers"]["attention"]["q"]
    assert abs(float(q["kernel"].std()) - 0.02) < 0.002
    assert not np.array_equal(q["kernel"][0], q["kernel"][1])  # layers start apart
    assert np.all(np.asarray(q["bias"]) == 0)
    assert np.all(np.asarray(params["final_norm"]["scale"]) == 1)
    num_params = sum(x.size for x in jax.tree.leaves(params))
    assert num_params == CONFIG.num_params()


class TestSharded:
    """tensor=2 splits key/value heads, 4 replicates and repeats them."""

    @pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 2, 4)], ids=str)
    def test_values_and_gradients_equal_one_device(self, sizes: tuple[int, int, int]):
        model, params = LanguageModel(CONFIG), random_params()
        tokens, where = random_tokens((8, 10)), padded_inputs(np.arange(3, 11), 10)

        def loss(params: Any, tokens: Any, *where: Any) -> tuple[jax.Array, jax.Array]:
            logits = full_logits(model, params, tokens, *where)
            return jnp.mean(jnp.square(logits)), logits

        program = jax.value_and_grad(loss, has_aux=True)
        expected = jax.jit(program)(params, tokens, *where)
        mesh = make_mesh(*sizes)
        rows = batch_sharding(mesh)
        shardings = param_shardings(model, mesh)
        with jax.set_mesh(mesh):
            got = jax.jit(program)(
                jax.device_put(params, shardings), *jax.device_put((tokens, *where), rows)
            )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4), got, expected
        )

    @pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 2, 4)], ids=str)
    def test_prefill_and_decode_equal_one_device(self, sizes: Any):
        model, params = LanguageModel(CONFIG), random_params()
        tokens = random_tokens((8, 6))
        lengths = jnp.asarray([6, 5, 4, 3, 2, 1, 6, 6], jnp.int32)

        def two_steps(params: Any, tokens: Any, lengths: Any) -> tuple[Any, Any]:
            _, cache = model.prefill(params, tokens, lengths, 10)
            hidden, cache = model.decode(params, tokens[:, 0], lengths, cache)
            hidden, cache = model.decode(params, tokens[:, 1], lengths + 1, cache)
            return hidden, cache

        expected = jax.jit(two_steps)(params, tokens, lengths)
        mesh = make_mesh(*sizes)
        with jax.set_mesh(mesh):
            got = jax.jit(two_steps)(
                jax.device_put(params, param_shardings(model, mesh)),
                *jax.device_put((tokens, lengths), batch_sharding(mesh)),
            )
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-4), got, expected
        )
        assert got[1].k.sharding.is_equivalent_to(cache_sharding(CONFIG, mesh, 8), 5)
