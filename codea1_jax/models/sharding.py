"""Where arrays live: one table from logical axis names to mesh axes.

Every parameter and activation names its dimensions (`embed`, `heads`, ...); this module alone knows
which mesh axis each name is split over. What can't be split is replicated, by two rules:

- key/value heads (and the vocabulary) that don't divide `tensor` stay whole on every tensor shard;
  queries are still split, and attention repeats the key/value heads as often as needed;
- an activation dimension that doesn't divide its mesh axes (a batch of one prompt) stays whole.

Sizes that must divide are checked by `check_divisibility` with an error that names the key.

Shardings of activations are constraints on the ambient mesh: call jitted programs under
`with jax.set_mesh(mesh):`. Without an ambient mesh `constrain` does nothing.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from codea1_jax.mesh import MeshError
from codea1_jax.models.config import Qwen2Config

# Logical axis -> mesh axes. Parameters first, then activations (`act_*`) and the cache.
RULES: dict[str, tuple[str, ...]] = {
    "layers": (),
    "vocab": ("tensor",),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "head_dim": (),
    "mlp": ("tensor",),
    "norm": (),  # D values a layer: cheaper whole than gathered
    "batch": ("data", "fsdp"),
    "length": (),
    "act_embed": (),
    "act_heads": ("tensor",),
    "act_kv_heads": ("tensor",),
    "act_mlp": ("tensor",),
}
CACHE_AXES = ("batch", "layers", "length", "act_kv_heads", "head_dim")


def partition_spec(
    names: tuple[str | None, ...], shape: tuple[int, ...], mesh_shape: Mapping[str, int]
) -> P:
    """Mesh axes of an array whose dimensions are called `names` (None: not split).

    Raises:
      KeyError: a name that is not in the table.
      ValueError: two dimensions of one array that map to the same mesh axis.
    """
    if len(names) != len(shape):
        raise ValueError(f"logical axes {names} do not describe an array of shape {shape}")
    entries: list[Any] = []
    used: dict[str, str] = {}
    for name, size in zip(names, shape):
        axes = RULES[name] if name is not None else ()
        for axis in axes:
            if axis in used:
                raise ValueError(f"{used[axis]!r} and {name!r} of {names} both map to {axis!r}")
            used[axis] = str(name)
        if size % math.prod(mesh_shape.get(axis, 1) for axis in axes):
            axes = ()
        entries.append(axes[0] if len(axes) == 1 else (axes or None))
    return P(*entries)


def check_divisibility(config: Qwen2Config, mesh_shape: Mapping[str, int]) -> None:
    """Checks that the model can be split over a mesh of these sizes (`dict(mesh.shape)`).

    Raises:
      MeshError: `tensor` doesn't divide the query heads or the MLP width, or `fsdp` the width.
    """
    for axis, key in (
        ("tensor", "num_attention_heads"),
        ("tensor", "intermediate_size"),
        ("fsdp", "hidden_size"),
    ):
        size, dim = mesh_shape.get(axis, 1), getattr(config, key)
        if dim % size:
            fits = [n for n in range(1, min(dim, 64) + 1) if dim % n == 0]
            raise MeshError(
                f"mesh.{axis}={size} does not divide {key}={dim} of the model; "
                f"choose one of {', '.join(map(str, fits))}"
            )


def param_shardings(model: Any, mesh: Mesh) -> Any:
    """NamedSharding of every parameter of a `LanguageModel`; same tree as its parameters.

    Raises:
      MeshError: the model can't be split over this mesh.
    """
    check_divisibility(model.config, mesh.shape)
    return jax.tree.map(
        lambda names, param: NamedSharding(
            mesh, partition_spec(tuple(names), param.shape, mesh.shape)
        ),
        model.logical_axes(),
        model.abstract_params(),
        is_leaf=lambda node: isinstance(node, P),
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows (the leading axis) over `data` and `fsdp`; other dimensions whole, whatever the rank."""
    return NamedSharding(mesh, P(RULES["batch"]))


def cache_sharding(config: Qwen2Config, mesh: Mesh, num_rows: int) -> NamedSharding:
    """Sharding of both arrays [B Y S K H] of a KV cache with `num_rows` rows."""
    shape = (num_rows, 1, 1, config.num_key_value_heads, 1)
    return NamedSharding(mesh, partition_spec(CACHE_AXES, shape, mesh.shape))


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Pins an activation to the ambient mesh inside jit; a no-op without one."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(names, x.shape, mesh.shape))


def ambient_axis_size(axis: str) -> int:
    """Size of a mesh axis where this is traced; 1 without an ambient mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.shape.get(axis, 1)
