"""One process of a run: takes two steps of a tiny model and prints what it got as JSON.

python process_learner.py DATA FSDP TENSOR FOLDER    (JAX_PROCESS_ID and its like are variables)
"""

import json
import os
import pathlib
import sys

import jax
import numpy as np
from tiny_models import SMALL

from codea1_jax import distributed
from codea1_jax.ckpt.manager import CheckpointManager
from codea1_jax.mesh import make_mesh
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rl.batching import TrainSample, build_batch
from codea1_jax.rl.learner import Learner, LearnerConfig
from codea1_jax.rl.losses import LossConfig
from codea1_jax.rl.optim import OptimizerConfig

if "JAX_PROCESS_ID" in os.environ:
    distributed.initialize()

mesh = make_mesh(*map(int, sys.argv[1:4]))
with jax.set_mesh(mesh):
    model = LanguageModel(SMALL)
    learner = Learner(
        model,
        mesh,
        OptimizerConfig(peak_lr=1e-2, warmup_steps=0, schedule="constant"),
        LossConfig(kl_coefficient=0.0),
        LearnerConfig(length_buckets=(16, 32), micro_batch_tokens=128, tokens_per_chunk=32),
    )
    rng = np.random.default_rng(0)
    samples = [
        TrainSample(prompt, rng.integers(0, 48, int(rng.integers(1, 9))), float(rng.normal()))
        for prompt in (rng.integers(0, 48, 5).tolist() for _ in range(4))
        for _ in range(3)
    ]
    batch = build_batch(samples, length_buckets=(16,))
    host = jax.tree.map(np.asarray, model.init(jax.random.key(0)))
    where = jax.tree.map(lambda leaf: leaf.sharding, learner.abstract_state().params)
    params = jax.tree.map(distributed.put, host, where)
    state = learner.init_state(params)
    logp, _ = learner.score(state.params, batch)
    batch = batch.replace(old_logp=logp)
    rows = [learner.update(state, batch, 1)]
    rows.append(learner.update(rows[0][0], batch, 2))

    learner.offload_optimizer = True
    state = learner.init_state(params)
    for step in (1, 2):
        state, _ = learner.update(state, batch, step)
    manager = CheckpointManager(pathlib.Path(sys.argv[4]))
    manager.save(2, {"coder": state}, {})
    restored = manager.restore_arrays(2, {"coder": learner.abstract_state()})["coder"]
    manager.close()
    moments = jax.tree.leaves((state.opt_state.mu, restored.opt_state.mu))

    def equal(first: jax.Array, second: jax.Array) -> bool:
        """The parts of both that this process holds."""
        pairs = zip(first.addressable_shards, second.addressable_shards, strict=True)
        return all(np.array_equal(a.data, b.data) for a, b in pairs)

    offloaded = {
        "memory": sorted({leaf.sharding.memory_kind for leaf in moments}),
        "equal": all(map(equal, jax.tree.leaves(state), jax.tree.leaves(rows[-1][0]))),
        "restored": all(map(equal, jax.tree.leaves(restored), jax.tree.leaves(state))),
    }
    norm = jax.jit(lambda tree: sum(jax.numpy.sum(leaf**2) for leaf in jax.tree.leaves(tree)))
    result = {
        "process": jax.process_index(),
        "devices": jax.device_count(),
        "logp": logp.sum(dtype=np.float64),
        "losses": [metrics["loss"] for _, metrics in rows],
        "grad_norms": [metrics["grad_norm"] for _, metrics in rows],
        "params": float(norm(rows[-1][0].params)),
        "offloaded": offloaded,
        "shares": distributed.collect(
            [10 * jax.process_index() + i for i in distributed.share(list(range(5)))]
        ),
        "stops": [
            distributed.any_process(jax.process_index() == 1),
            distributed.any_process(False),
        ],
    }
print(json.dumps(result), flush=True)
