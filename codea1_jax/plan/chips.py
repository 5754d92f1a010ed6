"""TPU chips and slices: what a plan is measured against.

Peak FLOP/s, bandwidths and chips per slice are from the Cloud TPU documentation
(docs.cloud.google.com/tpu/docs/v4, v5e, v5p, v6e), read in November 2026. `ici_bandwidth` is one
direction over all ports, half of the "bidirectional" figure printed there. `hbm_bytes` is not the
printed capacity but what libtpu 0.0.50 leaves to a program: the limit in the compiler's own
out-of-memory message. Host memory is that of the TPU VMs' machine types. `host_bandwidth` is from
Austin et al., How to Scale Your Model (2025), part 2: "typically around 1.5e10", named for v4, v6e.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from codea1_jax.errors import UserError

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One TPU chip as one JAX device.

    Attributes:
      hbm_bytes: device memory that a program may use.
      peak_flops: bfloat16, per second.
      hbm_bandwidth: bytes per second.
      ici_bandwidth: bytes per second that leave the chip over all of its ports.
      host_bandwidth: bytes per second over PCIe between the chip and its host, one direction.
    """

    name: str
    hbm_bytes: int
    peak_flops: float
    hbm_bandwidth: float
    ici_bandwidth: float
    host_bandwidth: float


V4 = Chip("v4", int(30.75 * _GIB), 275e12, 1200e9, 300e9, 16e9)
V5E = Chip("v5e", int(15.75 * _GIB), 197e12, 819e9, 200e9, 15e9)
V5P = Chip("v5p", int(95.73 * _GIB), 459e12, 2765e9, 600e9, 15e9)
V6E = Chip("v6e", int(31.24 * _GIB), 918e12, 1640e9, 400e9, 32e9)


@dataclasses.dataclass(frozen=True)
class Slice:
    """A set of connected chips under the name it is rented by.

    Attributes:
      topology: libtpu's name of its shape.
      num_hosts: virtual machines, each with an equal share of the chips.
      host_bytes: memory of one of them.
      options: further arguments of `get_topology_desc`.
    """

    name: str
    chip: Chip
    topology: str
    num_chips: int
    num_hosts: int
    host_bytes: int
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _slices() -> dict[str, Slice]:
    slices = []
    # v4 and v5p are named by TensorCores (two a chip, one JAX device), the others by chips.
    cubes = {8: "2x2x1", 16: "2x2x2", 32: "2x2x4", 64: "2x4x4", 128: "4x4x4", 256: "4x4x8"}
    for cores, shape in cubes.items():
        chips, hosts = cores // 2, cores // 8
        # Without megacore the two cores of a v4 chip are two devices with half the memory each.
        v4 = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}
        slices.append(Slice(f"v4-{cores}", V4, f"v4:{shape}", chips, hosts, 407 * 10**9, v4))
        slices.append(Slice(f"v5p-{cores}", V5P, f"v5p:{shape}", chips, hosts, 448 * 10**9))
    squares = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16"}
    machines = {1: (1, 1, 1), 8: (2, 4, 1)}  # whose shape is not 2x2
    for chips, shape in (squares | {256: "16x16"}).items():
        # Up to 8 chips hang on one machine; larger slices are made of machines with 4.
        hosts = 1 if chips <= 8 else chips // 4
        share = chips // hosts
        options = {"chips_per_host_bounds": machines[chips]} if chips in machines else {}
        v5e_bytes, v6e_bytes = share * 48 * 10**9, share * 180 * 10**9
        slices.append(Slice(f"v5e-{chips}", V5E, f"v5e:{shape}", chips, hosts, v5e_bytes, options))
        slices.append(Slice(f"v6e-{chips}", V6E, f"v6e:{shape}", chips, hosts, v6e_bytes, options))
    return {slice_.name: slice_ for slice_ in slices}


SLICES = _slices()


def slice_named(name: str) -> Slice:
    """Raises UserError with the known names."""
    if name not in SLICES:
        known = ", ".join(sorted(SLICES, key=lambda n: (n.split("-")[0], int(n.split("-")[1]))))
        raise UserError(f"--topology={name}: known slices are {known}")
    return SLICES[name]
