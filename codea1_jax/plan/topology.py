"""Devices of a TPU slice on a machine that has none, through libtpu's ahead-of-time compiler."""

import importlib.metadata
import os
from typing import Any

import jax

from codea1_jax.errors import UserError
from codea1_jax.plan.chips import Slice

# What libtpu asks its machine about; without these it waits for a metadata server and complains.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}


def compiler_version() -> str:
    """Raises UserError where libtpu is not installed."""
    try:
        return f"libtpu {importlib.metadata.version('libtpu')}"
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(
            "compiling for a TPU needs libtpu; install it with pip install 'codea1-jax[aot]'"
        ) from error


def devices_of(slice_: Slice) -> list[Any]:
    """The slice's devices, for lowering and compiling only: nothing can run on them.

    Raises:
      UserError: libtpu is missing or does not know the slice.
    """
    compiler_version()
    os.environ |= {key: os.environ.get(key, value) for key, value in _ENVIRONMENT.items()}
    from jax.experimental import topologies

    try:
        topology = topologies.get_topology_desc(
            platform="tpu", topology_name=slice_.topology, **slice_.options
        )
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"libtpu has no topology for {slice_.name}: {reason}") from error
    if len(topology.devices) != slice_.num_chips:
        raise UserError(
            f"libtpu gives {slice_.name} {len(topology.devices)} devices, expected "
            f"{slice_.num_chips}; install the libtpu of constraints.txt"
        )
    return topology.devices
