"""If this fails, a run starts on a mesh that was not asked for, or dies far from the wrong key."""

import jax
import pytest
from jax.sharding import AxisType

from codea1_jax.mesh import AXES, MeshError, make_mesh, resolve_sizes


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, -1, 1), (1, 8, 1)),
        ((-1, 2, 2), (2, 2, 2)),
        ((2, 1, -1), (2, 1, 4)),
        ((2, 4, 1), (2, 4, 1)),
        ((8, 1, -1), (8, 1, 1)),
    ],
)
def test_one_axis_takes_the_rest(sizes: tuple[int, ...], expected: tuple[int, ...]):
    assert resolve_sizes(*sizes, num_devices=8) == expected


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, -1, 1), r"mesh.data=0; must be at least 1, or -1"),
        ((1, 2, -2), r"mesh.tensor=-2; must be"),
        ((-1, -1, 1), r"data and fsdp are both -1; only one"),
        ((-1, 3, 1), r"mesh.data=-1: 8 devices don't divide by .* 3 .*choose a divisor of 8"),
        ((1, 4, 1), r"data=1, fsdp=4, tensor=1 needs 4 devices, there are 8"),
        ((4, 4, 1), r"needs 16 devices, there are 8"),
    ],
)
def test_wrong_sizes_name_the_key(sizes: tuple[int, ...], message: str):
    with pytest.raises(MeshError, match=message):
        resolve_sizes(*sizes, num_devices=8)


def test_axes_are_auto_and_ordered():
    mesh = make_mesh(2, -1, 2)
    assert mesh.axis_names == AXES
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert [d.id for d in mesh.devices.flat] == [d.id for d in jax.devices()]


def test_devices_can_be_chosen():
    mesh = make_mesh(devices=jax.devices()[:2])
    assert dict(mesh.shape) == {"data": 1, "fsdp": 2, "tensor": 1}
