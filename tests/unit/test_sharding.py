"""If this fails, a large parameter is replicated (memory) or a model is split where it can't be."""

import dataclasses
import math

import jax
import pytest
from jax.sharding import PartitionSpec as P

from codea1_jax.mesh import MeshError, make_mesh
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.layers import repeats_for_tensor
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.sharding import (
    RULES,
    batch_sharding,
    cache_sharding,
    check_divisibility,
    constrain,
    param_shardings,
    partition_spec,
)

# Qwen2.5-Coder: layers, width, query and key/value heads, head size, MLP width, vocabulary, tied.
REAL_SIZES = {
    "0.5B": (24, 896, 14, 2, 64, 4864, 151936, True),
    "1.5B": (28, 1536, 12, 2, 128, 8960, 151936, True),
    "3B": (36, 2048, 16, 2, 128, 11008, 151936, True),
    "7B": (28, 3584, 28, 4, 128, 18944, 152064, False),
}


def real_model(size: str) -> LanguageModel:
    layers, d, n, k, h, f, v, tied = REAL_SIZES[size]
    return LanguageModel(
        Qwen2Config(
            vocab_size=v,
            hidden_size=d,
            intermediate_size=f,
            num_hidden_layers=layers,
            num_attention_heads=n,
            num_key_value_heads=k,
            head_dim=h,
            rope_theta=1e6,
            rms_norm_eps=1e-6,
            tie_word_embeddings=tied,
            max_position_embeddings=32768,
        )
    )


def specs(model: LanguageModel, mesh: jax.sharding.Mesh) -> dict[str, tuple[P, tuple[int, ...]]]:
    flat = jax.tree_util.tree_flatten_with_path(param_shardings(model, mesh))[0]
    shapes = jax.tree.leaves(model.abstract_params())
    return {
        ".".join(key.key for key in path): (sharding.spec, leaf.shape)
        for (path, sharding), leaf in zip(flat, shapes, strict=True)
    }


@pytest.mark.parametrize("size", REAL_SIZES)
def test_every_large_parameter_is_split_over_fsdp(size: str):
    table = specs(real_model(size), make_mesh(1, 8, 1))
    large = {name: spec for name, (spec, shape) in table.items() if math.prod(shape) > 2**20}
    assert len(large) >= 8
    for name, spec in large.items():
        assert "fsdp" in spec, (name, spec)


def test_the_whole_table_of_one_model():
    table = {name: spec for name, (spec, _) in specs(real_model("7B"), make_mesh(2, 2, 2)).items()}
    layer = "layers.attention"
    column, row = P(None, "fsdp", "tensor", None), P(None, "tensor", None)
    assert table == {
        "embedder.table": P("tensor", "fsdp"),
        "head.table": P("tensor", "fsdp"),
        "final_norm.scale": P(None),
        "layers.input_norm.scale": P(None, None),
        "layers.post_attention_norm.scale": P(None, None),
        **{f"{layer}.{name}.kernel": column for name in "qkv"},
        **{f"{layer}.{name}.bias": row for name in "qkv"},
        f"{layer}.o.kernel": P(None, "tensor", None, "fsdp"),
        "layers.mlp.gate.kernel": P(None, "fsdp", "tensor"),
        "layers.mlp.up.kernel": P(None, "fsdp", "tensor"),
        "layers.mlp.down.kernel": P(None, "tensor", "fsdp"),
    }


def test_key_value_heads_that_do_not_divide_are_replicated():
    model, mesh = real_model("1.5B"), make_mesh(1, 2, 4)
    table = specs(model, mesh)
    assert table["layers.attention.k.kernel"][0] == P(None, "fsdp", None, None)
    assert table["layers.attention.q.kernel"][0] == P(None, "fsdp", "tensor", None)
    expected = P(("data", "fsdp"), None, None, None, None)
    assert cache_sharding(model.config, mesh, 8).spec == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor": 4}, r"mesh.tensor=4 does not divide num_attention_heads=14.*1, 2, 7, 14"),
        ({"fsdp": 3}, r"mesh.fsdp=3 does not divide hidden_size=896"),
        ({"tensor": 7}, r"mesh.tensor=7 does not divide intermediate_size=4864"),
    ],
)
def test_sizes_that_cannot_be_split_name_the_key(sizes: dict[str, int], message: str):
    with pytest.raises(MeshError, match=message):
        check_divisibility(real_model("0.5B").config, sizes)


def test_param_shardings_check_divisibility():
    model = real_model("0.5B")
    odd = dataclasses.replace(model, config=dataclasses.replace(model.config, hidden_size=900))
    with pytest.raises(MeshError, match="hidden_size=900"):
        param_shardings(odd, make_mesh(1, 8, 1))


def test_one_mesh_axis_is_never_used_twice():
    with pytest.raises(ValueError, match=r"'vocab' and 'mlp' of .* both map to 'tensor'"):
        partition_spec(("vocab", "mlp"), (8, 8), {"tensor": 2})
    with pytest.raises(KeyError):
        partition_spec(("heights",), (8,), {})
    with pytest.raises(ValueError, match="do not describe"):
        partition_spec(("embed",), (8, 8), {})


def test_every_axis_of_the_model_is_in_the_table():
    for axes in jax.tree.leaves(
        real_model("7B").logical_axes(), is_leaf=lambda node: isinstance(node, P)
    ):
        assert set(axes) <= RULES.keys()


def test_constrain_follows_the_ambient_mesh():
    x = jax.numpy.zeros((8, 4, 16))
    assert constrain(x, "batch", "length", "act_embed") is x  # no mesh: nothing
    mesh = make_mesh(2, 4, 1)
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x: constrain(x, "batch", "length", "act_embed"))(x)
        one_row = jax.jit(lambda x: constrain(x, "batch", "length", "act_embed"))(x[:1])
    assert y.sharding.is_equivalent_to(batch_sharding(mesh), 3)
    assert one_row.sharding.is_fully_replicated  # a batch that doesn't divide stays whole


@pytest.mark.parametrize(
    ("heads", "tensor", "repeats"),
    [((2, 7), 1, 1), ((2, 7), 2, 1), ((2, 6), 4, 2), ((2, 8), 16, 8), ((4, 7), 14, 7)],
)
def test_repeats_are_the_fewest_that_divide(heads: tuple[int, int], tensor: int, repeats: int):
    assert repeats_for_tensor(*heads, tensor) == repeats
    assert heads[0] * repeats % tensor == 0


def test_repeats_need_divisible_query_heads():
    with pytest.raises(ValueError, match="14 query heads do not divide over tensor=4"):
        repeats_for_tensor(2, 7, 4)
