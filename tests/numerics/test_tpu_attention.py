"""Pallas kernels against XLA's form, in Pallas's interpreter.

What breaks otherwise: log-probs, gradients and samples on a TPU, where nobody compares them.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from tiny_models import SMALL

from codea1_jax.errors import UserError
from codea1_jax.mesh import make_mesh
from codea1_jax.models import attention, tpu_attention
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel

# bfloat16 has 8 bits; the kernels round scaled queries and weights, XLA's form scores' products.
TOLERANCE = {"float32": 2e-5, "bfloat16": 5e-2}


def normal(seed: int, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def rows_of_segments(rows: int, length: int) -> tuple[jax.Array, jax.Array]:
    """Two segments and padding a row; in each a prefix of 30 tokens and branches of 40."""
    index = jnp.arange(length)
    second = length * 2 // 3
    segments = jnp.where(index < second, 1, 2)
    segments = jnp.where(index < length - 17, segments, 0)
    inside = jnp.where(index < second, index, index - second)
    branches = jnp.where(inside < 30, 0, 1 + (inside - 30) // 40)
    return tuple(jnp.tile(x[None], (rows, 1)) for x in (segments, branches))


def value_and_gradients(attend: Any, q: Any, k: Any, v: Any, segments: Any, branches: Any) -> Any:
    counts = (segments > 0)[:, :, None, None]
    weights = normal(9, q.shape)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = attend(q, k, v, segments, branches)
        return jnp.sum(jnp.where(counts, out, 0.0).astype(jnp.float32) * weights), out

    (_, out), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    assert np.isfinite(np.asarray(out, np.float32)).all()  # padding too
    return jax.tree.map(lambda x: np.asarray(x, np.float32), (jnp.where(counts, out, 0), grads))


def assert_close(got: Any, wanted: Any, dtype: str) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("length", "heads", "has_branches", "dtype"),
    [
        (200, (14, 2, 64), False, "float32"),  # 7 query heads a key/value head, as in 0.5B and 7B
        (200, (14, 2, 64), True, "float32"),
        (600, (4, 1, 128), True, "bfloat16"),  # two blocks, the second partly padding
    ],
)
def test_splash_equals_the_block_form(length, heads, has_branches, dtype):
    n, k, h = heads
    query, key, value = (
        normal(seed, (2, length, count, h), dtype) for seed, count in enumerate((n, k, k))
    )
    segments, branches = rows_of_segments(2, length)
    inputs = (query, key, value, segments, branches if has_branches else None)
    kernel = functools.partial(tpu_attention.attend_full, interpret=True)
    got = value_and_gradients(kernel, *inputs)
    assert_close(got, value_and_gradients(attention.attend_full, *inputs), dtype)


@pytest.mark.parametrize("sizes", [(1, 2, 2), (1, 2, 4)])
def test_splash_on_split_rows_and_heads(sizes):
    """With tensor=4 the two key/value heads are repeated; rows stay on their devices."""
    mesh = make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    query, key, value = (normal(seed, (2, 96, n, 16)) for seed, n in enumerate((4, 2, 2)))
    segments, branches = rows_of_segments(2, 96)
    with jax.set_mesh(mesh):
        kernel = functools.partial(tpu_attention.attend_full, interpret=True)
        got = value_and_gradients(kernel, query, key, value, segments, branches)
    wanted = value_and_gradients(attention.attend_full, query, key, value, segments, branches)
    assert_close(got, wanted, "float32")


def stack(rows: int, layers: int, slots: int, heads: int, head_dim: int, dtype: Any) -> Any:
    shape = (rows, layers, slots, heads, head_dim)
    return normal(1, shape, dtype), normal(2, shape, dtype)


@pytest.mark.parametrize(
    ("heads", "dtype"),
    [((14, 2, 64), "float32"), ((6, 1, 128), "float32"), ((28, 4, 128), "bfloat16")],
)
def test_decode_equals_the_whole_cache_form(heads, dtype):
    n, num_kv, h = heads
    k, v = stack(5, 2, 96, num_kv, h, dtype)
    query = normal(0, (5, 1, n, h), dtype)
    positions = jnp.array([0, 95, 31, 32, 200])  # the last: a full row writes nothing, sees all
    for layer in range(2):
        inputs = (query, k, v, jnp.int32(layer), positions)
        got = jax.jit(functools.partial(tpu_attention.attend_stack, interpret=True))(*inputs)
        wanted = attention.attend_stack(*inputs)
        assert_close(np.asarray(got, np.float32), np.asarray(wanted, np.float32), dtype)


def test_decode_reads_live_blocks_only():
    """A cache is as long as the longest answer may become; most of its slots are not live."""
    k, v = stack(2, 1, 80, 2, 64, jnp.float32)  # in blocks of 16
    positions = jnp.array([5, 40])
    is_read = jnp.arange(80)[None] < jnp.array([16, 48])[:, None]
    k, v = (jnp.where(is_read[:, None, :, None, None], x, jnp.nan) for x in (k, v))
    inputs = (normal(0, (2, 1, 4, 64)), k, v, jnp.int32(0), positions)
    assert np.isfinite(tpu_attention.attend_stack(*inputs, interpret=True)).all()
    assert np.isnan(attention.attend_stack(*inputs)).any()


def test_decode_on_split_rows_and_heads():
    mesh = make_mesh(1, 4, 2, devices=jax.devices())
    k, v = stack(8, 2, 32, 2, 16, jnp.float32)
    inputs = (normal(0, (8, 1, 4, 16)), k, v, jnp.int32(1), jnp.arange(8) * 4)
    with jax.set_mesh(mesh):
        got = jax.jit(functools.partial(tpu_attention.attend_stack, interpret=True))(*inputs)
    assert_close(np.asarray(got), np.asarray(attention.attend_stack(*inputs)), "float32")


def test_model_samples_the_same_through_the_kernels(monkeypatch):
    """Prompt and three tokens: the kernels are given what the XLA forms are given."""
    model = LanguageModel(SMALL)
    params = model.init(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 24), 0, SMALL.vocab_size)
    lengths = jnp.array([24, 9], jnp.int32)

    def run() -> list[jax.Array]:
        decode = jax.jit(lambda *inputs: model.decode(*inputs))
        prefill = jax.jit(lambda *inputs: model.prefill(*inputs, cache_length=32))
        hidden, cache = prefill(params, tokens, lengths)
        positions, segments = jnp.tile(jnp.arange(24), (2, 1)), jnp.ones((2, 24), jnp.int32)
        seen = [hidden, model.hidden(params, tokens, positions, segments, segments)]
        for step in range(3):
            hidden, cache = decode(params, tokens[:, step], lengths + step, cache)
            seen.append(hidden)
        return seen

    wanted = run()
    monkeypatch.setattr(tpu_attention, "why_xla", lambda choice, refused: "")
    for name in ("attend_full", "attend_stack"):
        kernel = functools.partial(getattr(tpu_attention, name), interpret=True)
        monkeypatch.setattr(tpu_attention, name, kernel)
    assert_close(run(), wanted, "float32")


def tpu_mesh(tensor: int = 1) -> AbstractMesh:
    return AbstractMesh(
        (1, 1, tensor),
        ("data", "fsdp", "tensor"),
        axis_types=(AxisType.Auto,) * 3,
        abstract_device=jax.sharding.AbstractDevice("TPU v5", None, "tpu"),
    )


def test_devices_of_the_mesh_decide():
    why = tpu_attention.why_xla
    with jax.set_mesh(make_mesh(1, 1, 1, devices=jax.devices()[:1])):
        assert why("auto", "") == "the mesh has no TPUs"
        with pytest.raises(UserError, match="no TPUs; use 'auto' or 'xla'"):
            why("pallas", "")
    with jax.sharding.use_abstract_mesh(tpu_mesh()):
        assert why("auto", "") == why("pallas", "") == ""
        assert why("auto", "too odd") == "too odd"
        assert why("xla", "") == "attention='xla'"
        with pytest.raises(UserError, match="too odd"):
            why("pallas", "too odd")


def test_refusals_name_their_reason():
    def sizes(num_kv: int, head_dim: int) -> Qwen2Config:
        return dataclasses.replace(SMALL, num_key_value_heads=num_kv, head_dim=head_dim)

    with jax.sharding.use_abstract_mesh(tpu_mesh(tensor=4)):
        assert "float32" in tpu_attention.refuse_full(jnp.dtype(jnp.float32))
        assert not tpu_attention.refuse_full(jnp.dtype(jnp.bfloat16))
        assert "head_dim=64" in tpu_attention.refuse_stack(sizes(4, 64), 512)
        assert "513 slots" in tpu_attention.refuse_stack(sizes(4, 128), 513)
        assert "tensor=4" in tpu_attention.refuse_stack(sizes(2, 128), 512)
        assert not tpu_attention.refuse_stack(sizes(4, 128), 512)
