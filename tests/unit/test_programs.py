"""A cache that moves to a smaller program must keep every row's keys and values, whichever device
has them; else the last answers of a batch continue from another sample's context."""

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
def test_shrink_takes_rows_from_any_device(sizes, after, dtype):
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
    old = rng.permutation(BEFORE.rows)[: after.rows].astype(np.int32)
    shrunk = programs.shrink(BEFORE, after)(on_devices, old)
    for array, leaf in zip(jax.tree.leaves(before), jax.tree.leaves(shrunk), strict=True):
        wanted = array[old][:, :, : after.length]
        np.testing.assert_array_equal(np.asarray(leaf), wanted)


def test_split_cache_is_never_whole_on_one_device():
    """A gather along the split rows would need all of the new cache on each device, in float32."""
    mesh = make_mesh(1, 8, 1, devices=jax.devices()[:8])
    programs = Programs(LanguageModel(SMALL, jnp.bfloat16), mesh, pad_id=0, chunk=4)
    memory = programs.shrink(CacheShape(64, 32), CacheShape(32, 32)).memory_analysis()
    # Of the arguments only single rows are in flight.
    assert memory.temp_size_in_bytes < memory.argument_size_in_bytes
