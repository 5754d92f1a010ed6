"""Arrays that wait in the host's memory while the devices need theirs for something else.

They are moved between programs, never inside one: programs are the same with and without it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

HOST = "pinned_host"  # JAX's name of host memory that a device copies from and to by itself


def has_host_memory() -> bool:
    """Whether every device of this process has pinned memory on its host."""
    return all(
        HOST in (memory.kind for memory in device.addressable_memories())
        for device in jax.local_devices()
    )


def host_shardings(shardings: Any) -> Any:
    """A tree of shardings, the same on the host."""
    return jax.tree.map(lambda where: where.with_memory_kind(HOST), shardings)


def to_host(tree: Any) -> Any:
    """Moves arrays to their devices' hosts. `tree` is freed: do not use it again."""
    return _moved(tree, host_shardings(_shardings(tree)))


def to_device(tree: Any) -> Any:
    """Moves arrays from the host to their devices. `tree` is freed: do not use it again."""
    return _moved(tree, _device_shardings(tree))


@contextlib.contextmanager
def on_device(tree: Any) -> Iterator[Any]:
    """Arrays in device memory: a copy for this long of what waits on the host, or `tree` itself."""
    if all(leaf.sharding.memory_kind != HOST for leaf in jax.tree.leaves(tree)):
        yield tree
        return
    copy = jax.device_put(tree, _device_shardings(tree))
    try:
        yield copy
    finally:
        free(copy)


def free(tree: Any) -> None:
    """Gives back the memory of arrays at once, whoever still refers to them."""
    jax.tree.map(lambda leaf: leaf.delete(), tree)


def _moved(tree: Any, where: Any) -> Any:
    if _shardings(tree) == where:
        return tree
    moved = jax.device_put(tree, where)  # JAX donates nothing from one kind of memory to another
    jax.block_until_ready(moved)
    free(tree)
    return moved


def _shardings(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def _device_shardings(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding.with_memory_kind(None), tree)
