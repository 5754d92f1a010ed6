"""One process of a sampler: draws from a tiny model on each mesh given and prints JSON.

python process_sampler.py 4,1,1 2,1,2     (JAX_PROCESS_ID and its like in the environment)
"""

import json
import os
import sys

import jax
import numpy as np
from tiny_models import SMALL

from codea1_jax import distributed
from codea1_jax.mesh import make_mesh
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.sharding import param_shardings
from codea1_jax.rollout.engine import RolloutConfig, RolloutEngine
from codea1_jax.rollout.types import GroupRequest, SamplingParams

if "JAX_PROCESS_ID" in os.environ:
    distributed.initialize()

# More samples than rows, so that slots are refilled; prompts of both buckets.
CONFIG = RolloutConfig(prompt_buckets=(8, 16), rows=8, min_rows=4, prefill_rows=4, decode_chunk=4)
SAMPLING = SamplingParams(max_new_tokens=10, stop_token_ids=(3, 7))
rng = np.random.default_rng(0)
groups = [
    GroupRequest(f"r{i}", tuple(rng.integers(0, SMALL.vocab_size, length).tolist()), 3)
    for i, length in enumerate((5, 16, 9, 2, 12))
]
model = LanguageModel(SMALL)
# Larger than the usual initialisation, so that distributions differ between positions.
host = jax.tree.map(lambda leaf: 5 * np.asarray(leaf), model.init(jax.random.key(0)))


def draw(mesh: jax.sharding.Mesh) -> dict[str, list]:
    """Tokens and log-probs of every sample, by `request/index`."""
    params = jax.tree.map(distributed.put, host, param_shardings(model, mesh))
    engine = RolloutEngine(model, mesh, CONFIG, pad_id=0)
    return {
        f"{sample.request_id}/{sample.sample_index}": [
            sample.tokens.tolist(),
            sample.sampler_logp.tolist(),
        ]
        for sample in engine.generate(params, groups, SAMPLING, policy_version=1)
    }


meshes = [make_mesh(*map(int, sizes.split(","))) for sizes in sys.argv[1:]]
result = {"process": jax.process_index(), "samples": [draw(mesh) for mesh in meshes]}
print(json.dumps(result), flush=True)
