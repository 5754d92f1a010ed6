"""A checkpoint that restores the wrong weights silently ruins every later step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from codea1_jax.ckpt.manager import CheckpointManager, RestoreError


@pytest.fixture
def arrays():
    mesh = Mesh(np.array(jax.devices()), ("fsdp",))
    weight = jnp.arange(32, dtype=jnp.float32).reshape(8, 4)
    return {
        "coder": {
            "weight": jax.device_put(weight, NamedSharding(mesh, P("fsdp"))),
            "count": jnp.int32(3),
        }
    }


def abstract(arrays):
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), arrays
    )


def saved(tmp_path, arrays):
    manager = CheckpointManager(tmp_path / "checkpoints", keep_last=2)
    manager.save(3, arrays, {"step": 3, "book": {"b": 1, "a": [2]}})
    return manager


def test_arrays_and_meta_come_back_exactly(tmp_path, arrays):
    saved(tmp_path, arrays).close()
    manager = CheckpointManager(tmp_path / "checkpoints")
    assert manager.latest_step() == 3
    meta = manager.restore_meta(3)
    assert meta == {"step": 3, "book": {"b": 1, "a": [2]}}
    assert list(meta["book"]) == ["b", "a"]  # order is part of the book's state
    restored = manager.restore_arrays(3, abstract(arrays))
    jax.tree.map(np.testing.assert_array_equal, restored, arrays)
    assert restored["coder"]["weight"].sharding == arrays["coder"]["weight"].sharding
    manager.close()


def test_restores_onto_another_mesh(tmp_path, arrays):
    manager = saved(tmp_path, arrays)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "tensor"))
    target = abstract(arrays)
    target["coder"]["weight"] = jax.ShapeDtypeStruct(
        (8, 4), jnp.float32, sharding=NamedSharding(mesh, P(None, "tensor"))
    )
    restored = manager.restore_arrays(3, target)
    np.testing.assert_array_equal(restored["coder"]["weight"], arrays["coder"]["weight"])
    manager.close()


def test_a_save_does_not_alias_donated_memory(tmp_path, arrays):
    """On CPU host and device share memory: the next update writes over what is being saved."""
    manager = saved(tmp_path, arrays)
    want = jax.tree.map(np.array, arrays)
    target = abstract(arrays)
    jax.block_until_ready(
        jax.jit(lambda tree: jax.tree.map(lambda a: a * 0 - 1, tree), donate_argnums=0)(arrays)
    )
    jax.tree.map(np.testing.assert_array_equal, manager.restore_arrays(3, target), want)
    manager.close()


@pytest.mark.parametrize("change", ["dtype", "shape", "extra", "missing"])
def test_any_mismatch_is_refused(tmp_path, arrays, change):
    saved(tmp_path, arrays).close()
    manager = CheckpointManager(tmp_path / "checkpoints")  # has saved nothing, as after a restart
    target = abstract(arrays)
    weight = target["coder"]["weight"]
    if change == "dtype":
        target["coder"]["weight"] = jax.ShapeDtypeStruct(
            weight.shape, jnp.bfloat16, sharding=weight.sharding
        )
    elif change == "shape":
        target["coder"]["weight"] = jax.ShapeDtypeStruct(
            (16, 4), jnp.float32, sharding=weight.sharding
        )
    elif change == "extra":
        target["coder"]["other"] = weight
    else:
        del target["coder"]["count"]
    with pytest.raises(RestoreError, match="checkpoint"):
        manager.restore_arrays(3, target)
    manager.close()


def steps_kept(folder, scores, first=1, **kept):
    """Saves a step per score with a manager of its own, as a resumed run does."""
    manager = CheckpointManager(folder, **kept)
    for step, score in enumerate(scores, first):
        manager.save(step, {"count": jnp.int32(step)}, {"step": step}, score)
        assert manager.latest_step() == step
    found = manager.all_steps(), manager.best_step()
    manager.close()
    return found


def test_the_best_stay_beside_the_last(tmp_path):
    """A run that ends worse than it was half way must not have deleted its best weights."""
    scores = [0.5, 0.9, 0.2, 0.8, 0.8, 0.1]
    assert steps_kept(tmp_path, scores, keep_last=1, keep_best=2) == ([2, 5, 6], 2)
    # Scores are read back from disk; the newest stays, though it is the worst, and then goes.
    assert steps_kept(tmp_path, [0.0], 7, keep_last=1, keep_best=2) == ([2, 5, 7], 2)
    assert steps_kept(tmp_path, [1.0], 8, keep_last=1, keep_best=2) == ([2, 8], 8)
    manager = CheckpointManager(tmp_path)
    assert manager.restore_arrays(2, {"count": jnp.int32(0)})["count"] == 2
    manager.close()


def test_what_was_not_evaluated_is_never_the_best(tmp_path):
    assert steps_kept(tmp_path, [None, 0.0, None, None], keep_last=1, keep_best=3) == ([2, 4], 2)
    assert steps_kept(tmp_path / "none", [None, None, None], keep_last=2) == ([2, 3], None)
