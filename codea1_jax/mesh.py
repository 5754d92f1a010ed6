"""The device mesh: axes `data` (replicas), `fsdp` (split parameters) and `tensor` (split heads)."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from codea1_jax.errors import UserError

AXES = ("data", "fsdp", "tensor")


class MeshError(UserError):
    """Mesh sizes that don't fit the devices or the model; names the key and a fix."""


def resolve_sizes(data: int, fsdp: int, tensor: int, num_devices: int) -> tuple[int, int, int]:
    """Replaces the one size that may be -1 ("the rest") by what the devices leave for it.

    Raises:
      MeshError: a size below 1 other than -1, more than one -1, or sizes that don't multiply to
        `num_devices`.
    """
    sizes = dict(zip(AXES, (data, fsdp, tensor)))
    for name, size in sizes.items():
        if size != -1 and size < 1:
            raise MeshError(f"mesh.{name}={size}; must be at least 1, or -1 for all devices left")
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise MeshError(f"mesh: {' and '.join(free)} are both -1; only one axis can take the rest")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free:
        if num_devices % fixed:
            raise MeshError(
                f"mesh.{free[0]}=-1: {num_devices} devices don't divide by the other axes' "
                f"product {fixed} ({_show(sizes)}); choose a divisor of {num_devices}"
            )
        sizes[free[0]] = num_devices // fixed
    elif fixed != num_devices:
        raise MeshError(
            f"mesh: {_show(sizes)} needs {fixed} devices, there are {num_devices}; "
            "change the sizes or set one of them to -1"
        )
    return sizes["data"], sizes["fsdp"], sizes["tensor"]


def make_mesh(
    data: int = 1, fsdp: int = -1, tensor: int = 1, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Mesh over all devices (or `devices`), neighbours on the fastest axis `tensor`.

    The axes are Auto: jax.make_mesh's own default, Explicit, puts shardings into types, where
    NNX modules fail with "contracting dimensions are sharded".

    Raises:
      MeshError: see `resolve_sizes`.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = resolve_sizes(data, fsdp, tensor, len(devices))
    auto = (AxisType.Auto,) * len(AXES)
    if devices[0].platform == "cpu":
        # Host devices have no topology; keep the given order.
        return Mesh(np.asarray(devices).reshape(sizes), AXES, axis_types=auto)
    # tensor=4 on a torus of 8 x 8 chips takes a part of one of its axes.
    grid = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return Mesh(grid, AXES, axis_types=auto)


def _show(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
