"""The head's gradient over devices: what is sent, and when."""

import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from codea1_jax.mesh import make_mesh
from codea1_jax.models.sharding import batch_sharding
from codea1_jax.plan.collectives import collectives_of
from codea1_jax.rl.token_logp import response_logp

ROWS, LENGTH, WIDTH, VOCAB = 8, 64, 32, 512


def test_table_gradient_is_summed_over_devices_once():
    """Summed in every chunk, it is the largest transfer of an update: 890 MiB a chunk for 1.5B."""
    mesh = make_mesh(1, 8, 1, devices=jax.devices())

    def loss(table, hidden, index, targets, mask):
        logp, entropy = response_logp(
            table, hidden, index, targets, mask, jnp.float32(1.0), chunk_length=8
        )
        return jnp.sum(logp + 0.1 * entropy)

    table = jax.ShapeDtypeStruct(
        (VOCAB, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P(None, "fsdp"))
    )
    rows = functools.partial(jax.ShapeDtypeStruct, sharding=batch_sharding(mesh))
    with jax.set_mesh(mesh):
        program = jax.jit(jax.grad(loss, argnums=(0, 1)), out_shardings=(table.sharding, None))
        compiled = program.lower(
            table,
            rows((ROWS, LENGTH, WIDTH), jnp.float32),
            *(rows((ROWS, LENGTH), dtype) for dtype in (jnp.int32, jnp.int32, jnp.float32)),
        ).compile()
    chunks = LENGTH // 8
    sums = [
        one
        for one in collectives_of(compiled.as_text(), 8, chunks)
        if one.kind in ("all-reduce", "reduce-scatter", "all-to-all")
        and one.num_bytes >= 4 * math.prod(table.shape) // 8
    ]
    assert sum(one.count for one in sums) == 1
