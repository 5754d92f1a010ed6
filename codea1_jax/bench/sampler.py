"""`codea1 bench sampler`: tokens per second of the rollout engine on given prompts.

codea1 bench sampler --checkpoint=DIR --prompts=FILE.jsonl --group=4 --max_new_tokens=64

A first call of the engine compiles everything; the second, with the same requests, is measured on
the wall clock: prefill, decoding and the host's work. Per cent of roofline is the least time that
the matrix products allow with all rows in use (bench/roofline.py, measured in the same process)
over the time taken. The last line is JSON.
"""

import argparse
import json
import pathlib
import resource
import time

import jax

from codea1_jax.bench import roofline
from codea1_jax.rollout import command
from codea1_jax.rollout.run import RolloutStats


def run(options: argparse.Namespace) -> int:
    """Prints one JSON line. Raises UserError for options that do not fit the checkpoint."""
    sampler = command.load(options, natural_eos=options.natural_eos)
    engine = sampler.engine
    for _ in sampler.generate(sampler.groups):
        pass
    before = engine.num_compilations()
    start = time.perf_counter()
    num_tokens = sum(len(sample.tokens) for sample in sampler.generate(sampler.groups))
    seconds = time.perf_counter() - start
    stats = engine.stats
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if options.plot:
        plot_occupancy(stats, options.plot)
    shape = max(engine.buckets.prompts) * max(engine.buckets.prefill)
    view = engine.view(sampler.params, policy_version=0)
    roof = roofline.measure(sampler.model, view, stats.loops[0].rows, shape)
    roof_s = roof.seconds(num_tokens, stats.num_prefill_tokens)
    result = {
        "bench": "sampler",
        "checkpoint": pathlib.Path(options.checkpoint).name,
        "device": jax.devices()[0].device_kind,
        "dtype": options.dtype,
        "prompts": len(sampler.groups),
        "group": options.group,
        "max_new_tokens": options.max_new_tokens,
        "natural_eos": options.natural_eos,
        "tokens": num_tokens,
        "seconds": round(seconds, 3),
        "tokens_per_s": round(num_tokens / seconds, 2),
        "percent_of_roofline": round(100 * roof_s / seconds, 1),
        "roofline_tokens_per_s": round(num_tokens / roof_s, 2),
        "num_compiles": before,
        "num_compiles_measured": engine.num_compilations() - before,
        "phases": {
            "prefill_s": round(stats.prefill_s, 3),
            "decode_s": round(stats.decode_s, 3),
            "host_s": round(seconds - stats.prefill_s - stats.decode_s - stats.weights_s, 3),
        },
        "rows": stats.loops[0].rows,
        "occupancy": round(stats.occupancy, 4),
        "prompt_tokens": stats.num_prefill_tokens,
        "peak_memory_gb": round(peak_rss / 1e9, 2),
    }
    print(json.dumps(result), flush=True)
    return 0


def plot_occupancy(stats: RolloutStats, path: pathlib.Path) -> None:
    """Writes a PNG: rows of the decode program and rows with a sample, over the engine's time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    edges = [0.0, *(loop.end_s for loop in stats.loops)]
    axes.stairs([loop.rows for loop in stats.loops], edges, label="rows of the program")
    axes.stairs([loop.live for loop in stats.loops], edges, label="with a sample", fill=True)
    axes.set(xlabel="seconds", ylabel="rows", title=f"occupancy {stats.occupancy:.0%}")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
