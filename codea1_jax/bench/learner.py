"""`codea1 bench learner`: optimizer steps of one model on random tokens.

A measured step is `Learner.update`: forward, clipped policy loss, backward, AdamW on float32 master
weights. Per cent of peak is (3 x forward FLOPs of bench/flops.py) / seconds, over the best rate of
a large matrix product measured in the same process, in the same dtype.
"""

import argparse
import json
import pathlib
import resource
import statistics
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codea1_jax.bench.flops import ForwardFlops, packed_forward_flops
from codea1_jax.errors import UserError
from codea1_jax.mesh import make_mesh
from codea1_jax.models import hf_io
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rl.batching import TrainBatch, TrainSample, build_batch
from codea1_jax.rl.learner import Learner, LearnerConfig
from codea1_jax.rl.losses import LossConfig
from codea1_jax.rl.optim import OptimizerConfig

_PEAK_SHAPE = (2048, 4096, 4096)  # rows, inner, columns


def run(options: argparse.Namespace) -> int:
    """Prints one JSON line. Raises UserError for sizes that do not fit together."""
    if not 0 < options.prompt_length < options.length:
        raise UserError(
            f"--prompt_length={options.prompt_length} must be between 1 and --length - 1 = "
            f"{options.length - 1}"
        )
    if options.group < 1 or options.sequences < 1 or options.sequences % options.group:
        raise UserError(
            f"--group={options.group} must divide --sequences={options.sequences}, both positive"
        )
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        result = _measure(options, mesh)
    print(json.dumps(result), flush=True)
    return 0


def _measure(options: argparse.Namespace, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    directory = hf_io.resolve_directory(options.checkpoint)
    dtype = jnp.dtype(options.dtype)
    config = Qwen2Config.from_directory(directory)
    model = LanguageModel(config, dtype, options.remat, options.attention)
    learner = _learner(options, model, mesh)
    batch = _random_batch(options, model.config.vocab_size)
    state = learner.init_state(hf_io.load_params(directory, model, mesh, jnp.float32))
    seconds: list[float] = []
    for step in range(1, options.steps + 2):
        start = time.perf_counter()
        state, metrics = learner.update(state, batch, step)
        seconds.append(time.perf_counter() - start)
        print(f"step {step - 1}: {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    best = min(seconds[1:])
    parts = learner.micro_batches(batch)
    forward = sum(
        (packed_forward_flops(model.config, part) for part in parts), ForwardFlops(0.0, 0.0, 0.0)
    )
    del state
    peak = matmul_peak(dtype)
    num_tokens = options.sequences * options.length
    return {
        "bench": "learner",
        "checkpoint": pathlib.Path(options.checkpoint).name,
        "device": jax.devices()[0].device_kind,
        "dtype": options.dtype,
        "remat": options.remat,
        "sequences": options.sequences,
        "length": options.length,
        "prompt_length": options.prompt_length,
        "group": options.group,
        "is_prefix_shared": learner.config.share_prefix,
        "model_tokens": int(sum((part.segment_ids > 0).sum() for part in parts)),
        "padded_tokens": int(sum(part.tokens.size for part in parts)),
        "micro_batches": len(parts),
        "seconds": round(best, 3),
        "seconds_median": round(statistics.median(seconds[1:]), 3),
        "first_step_seconds": round(seconds[0], 3),
        "tokens_per_s": round(num_tokens / best, 2),
        "sequences_per_s": round(options.sequences / best, 4),
        "flops": 3.0 * forward.total,
        "gflops_per_s": round(3.0 * forward.total / best / 1e9, 1),
        "peak_gflops_per_s": round(peak / 1e9, 1),
        "percent_of_peak": round(100.0 * 3.0 * forward.total / best / peak, 1),
        "peak_memory_gb": round(peak_rss / 1e9, 2),
        "grad_norm": metrics["grad_norm"],
    }


def _learner(options: argparse.Namespace, model: LanguageModel, mesh: jax.sharding.Mesh) -> Learner:
    share = options.group > 1 and not options.naive
    response = options.length - options.prompt_length
    row = options.prompt_length + options.group * response if share else options.length
    rows = options.sequences // options.group if share else options.sequences
    config = LearnerConfig(
        length_buckets=(row,),
        micro_batch_tokens=options.micro_batch_tokens or row * rows,
        tokens_per_chunk=options.tokens_per_chunk,
        share_prefix=share,
    )
    return Learner(model, mesh, OptimizerConfig(), LossConfig(kl_coefficient=0.0), config)


def _random_batch(options: argparse.Namespace, vocab_size: int) -> TrainBatch:
    rng = np.random.default_rng(0)

    def draw(size: int) -> np.ndarray:
        return rng.integers(0, vocab_size, size)

    samples = []
    for _ in range(options.sequences // options.group):
        prompt = draw(options.prompt_length)
        for _ in range(options.group):
            tokens = draw(options.length - options.prompt_length)
            samples.append(TrainSample(prompt.tolist(), tokens, float(rng.normal())))
    batch = build_batch(samples, length_buckets=(options.length,))
    # Old log-probs near those of a random token, so that neither clip is always active.
    noise = rng.normal(-np.log(vocab_size), 1.0, batch.tokens.shape).astype(np.float32)
    return batch.replace(old_logp=noise)


def matmul_peak(dtype: Any, repeats: int = 5) -> float:
    """FLOP/s of a large matrix product in `dtype` on the first device, the best of `repeats`."""
    rows, inner, columns = _PEAK_SHAPE
    keys = jax.random.split(jax.random.key(0))
    a = jax.random.normal(keys[0], (rows, inner), dtype)
    b = jax.random.normal(keys[1], (inner, columns), dtype)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(a, b))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(product(a, b))
        seconds.append(time.perf_counter() - start)
    return 2.0 * rows * inner * columns / min(seconds)
