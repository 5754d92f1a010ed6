"""A cache that moves to another program must keep every row's keys and values; else the last
answers of a batch continue from another sample's context."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import SMALL

from codea1_jax.mesh import make_mesh
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rollout.programs import CacheShape, Programs

BEFORE = CacheShape(16, 12)


@pytest.mark.parametrize("after", [CacheShape(8, 12), CacheShape(16, 8)], ids=["rows", "length"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 4, 1), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_shrink_takes_each_device_s_own_rows(sizes, after, dtype):
    mesh = make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    programs = Programs(LanguageModel(SMALL, dtype), mesh, pad_id=0, chunk=4)
    rng = np.random.default_rng(0)
    before = jax.tree.map(
        lambda leaf: np.asarray(rng.normal(size=leaf.shape), leaf.dtype),
        programs.abstract_cache(*BEFORE),
    )
    on_devices = jax.tree.map(
        lambda array, leaf: jax.device_put(array, leaf.sharding),
        before,
        programs.abstract_cache(*BEFORE),
    )
    shares = np.arange(BEFORE.rows, dtype=np.int32).reshape(programs.num_row_shards, -1)
    kept = after.rows // programs.num_row_shards
    old = np.concatenate([rng.permutation(share)[:kept] for share in shares])
    program = programs.shrink(BEFORE, after)
    shrunk = program(on_devices, old)
    for array, leaf in zip(jax.tree.leaves(before), jax.tree.leaves(shrunk), strict=True):
        wanted = array[old][:, :, : after.length]
        np.testing.assert_array_equal(np.asarray(leaf), wanted)

    assert not re.search(r"all-|permute|reduce-scatter", program.as_text())


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 4, 1)], ids=str)
def test_a_longer_cache_begins_with_the_shorter_one(sizes):
    mesh = make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    programs = Programs(LanguageModel(SMALL), mesh, pad_id=0, chunk=4)
    ones = jax.tree.map(
        lambda leaf: jax.device_put(np.ones(leaf.shape, leaf.dtype), leaf.sharding),
        programs.abstract_cache(*BEFORE),
    )
    for leaf in jax.tree.leaves(programs.grow(BEFORE, 20)(ones)):
        np.testing.assert_array_equal(np.asarray(leaf)[:, :, :12], 1)
        assert leaf.shape[2] == 20
