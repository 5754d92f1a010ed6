"""Several processes as one run.

Every process runs the same program on the same host data, and device arrays are global. What a
process works out alone (verdicts of its share of the rollouts, a signal it got) is exchanged before
anything depends on it, so that all processes take the same way. With one process all of this costs
nothing.

A process that dies takes the run with it: the others end when the coordinator misses its heartbeat,
and the same command continues from the last checkpoint.
"""

import os
import pickle
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from codea1_jax.errors import UserError

_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


class DistributedError(UserError):
    """The processes of a run cannot find each other; says which setting is wrong."""


def initialize() -> None:
    """Joins the processes of a run; call before anything touches a device.

    Addresses come from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID where they are
    set (launch/local_pod.sh does), else from the TPU slice's own metadata.

    Raises:
      DistributedError: some of the three variables are missing or no numbers, or nobody answers.
    """
    found = {name: os.environ.get(name, "") for name in _VARIABLES}
    arguments: dict[str, Any] = {}
    if any(found.values()):
        address, num_processes, process_id = found.values()
        missing = [name for name, value in found.items() if not value]
        if missing:
            raise DistributedError(
                f"--distributed: {' and '.join(missing)} not set; set all of "
                f"{', '.join(_VARIABLES)}, or none on a TPU slice"
            )
        if not (num_processes.isdigit() and process_id.isdigit()):
            raise DistributedError(
                f"--distributed: JAX_NUM_PROCESSES={num_processes!r}, JAX_PROCESS_ID="
                f"{process_id!r}; both must be numbers"
            )
        arguments = {
            "coordinator_address": address,
            "num_processes": int(num_processes),
            "process_id": int(process_id),
        }
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(**arguments)
    except (RuntimeError, ValueError) as error:
        where = found["JAX_COORDINATOR_ADDRESS"] or "the slice's metadata"
        raise DistributedError(f"--distributed: no run to join through {where}: {error}") from error


def is_leader() -> bool:
    """True in the one process that writes metrics, rollouts and messages."""
    return jax.process_index() == 0


def put(tree: Any, sharding: jax.sharding.Sharding) -> Any:
    """Global arrays from host arrays that are equal in every process."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def place(value: Any) -> jax.Array:
        value = np.asarray(value)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    return jax.tree.map(place, tree)


def exchange[T](value: T) -> list[T]:
    """What every process passed, by process; all must call it at the same point."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([data.size], np.int32)).reshape(-1)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: data.size] = data
    gathered = multihost_utils.process_allgather(padded).reshape(len(sizes), -1)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(gathered, sizes, strict=True)]


def share[T](values: list[T]) -> list[T]:
    """This process's part of a list that all hold: every n-th, from its own number on."""
    return values[jax.process_index() :: jax.process_count()]


def collect[T](values: list[T]) -> list[T]:
    """The whole list from what every process made of its `share`, in the list's order."""
    parts = exchange(values)
    whole: list[T | None] = [None] * sum(map(len, parts))
    for process, part in enumerate(parts):
        whole[process :: len(parts)] = part
    return whole  # type: ignore[return-value]


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process; all must call it at the same point."""
    return any(exchange(flag))
