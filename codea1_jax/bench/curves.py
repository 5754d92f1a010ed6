"""`codea1 bench curves`: the sampler's speed against slots, context and group size.

codea1 bench curves --checkpoint=DIR --plot=CURVES.png

Random prompts, and every sample has all its tokens. The first two sweeps time decoding alone, for
the samples of one prompt; the third also prefill, for a fixed number of samples that share fewer
and fewer prompts. A point's roof is the rate that the matrix products alone allow
(bench/roofline.py): what is missing to it is attention, sampling, norms, cache writes and the host.
The last line is JSON.
"""

import argparse
import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from codea1_jax.bench import roofline
from codea1_jax.errors import UserError
from codea1_jax.mesh import make_mesh
from codea1_jax.models import hf_io
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rollout.engine import RolloutConfig, RolloutEngine
from codea1_jax.rollout.types import GroupRequest, SamplingParams
from codea1_jax.typing import Params


@dataclasses.dataclass(frozen=True)
class Point:
    """One measured rollout.

    Attributes:
      sweep: "slots", "context" or "group": what varies; `value` is that number.
      context: tokens of prompt and answer.
    """

    sweep: str
    value: int
    rows: int
    context: int
    group: int
    tokens_per_s: float
    roof_tokens_per_s: float


def run(options: argparse.Namespace) -> int:
    """Prints one JSON line. Raises UserError for sizes that do not fit together."""
    shortest = min(options.context, *options.contexts)
    if shortest <= options.new_tokens:
        raise UserError(
            f"--contexts: {shortest} tokens leave no prompt beside --new_tokens="
            f"{options.new_tokens}; raise the one or lower the other"
        )
    if odd := [size for size in options.groups if options.rows % size]:
        raise UserError(f"--groups={odd[0]} does not divide --rows={options.rows}; choose divisors")
    directory = hf_io.resolve_directory(options.checkpoint)
    dtype = jnp.dtype(options.dtype)
    config = Qwen2Config.from_directory(directory)
    model = LanguageModel(config, compute_dtype=dtype, attention=options.attention)
    mesh = make_mesh()
    params = hf_io.load_params(directory, model, mesh, dtype)
    bench = _Bench(model, mesh, params, options)
    points = [
        *(bench.point("slots", n, n, options.context, n) for n in options.slots),
        *(bench.point("context", n, options.rows, n, options.rows) for n in options.contexts),
        *(bench.point("group", n, options.rows, options.context, n) for n in options.groups),
    ]
    if options.plot:
        plot(points, options.plot)
    result = {
        "bench": "curves",
        "checkpoint": pathlib.Path(options.checkpoint).name,
        "device": jax.devices()[0].device_kind,
        "dtype": options.dtype,
        "new_tokens": options.new_tokens,
        "points": [dataclasses.asdict(point) for point in points],
    }
    print(json.dumps(result), flush=True)
    return 0


@dataclasses.dataclass
class _Bench:
    """What all points share, and the roofs measured so far, by rows."""

    model: LanguageModel
    mesh: jax.sharding.Mesh
    params: Params
    options: argparse.Namespace
    roofs: dict[int, roofline.Roofline] = dataclasses.field(default_factory=dict)

    def point(self, sweep: str, value: int, rows: int, context: int, group: int) -> Point:
        """`rows` samples in groups of `group`, all at once."""
        vocab_size, new_tokens = self.model.config.vocab_size, self.options.new_tokens
        length = context - new_tokens
        chunk = self.options.decode_chunk
        config = RolloutConfig((length,), rows, 1, min_rows=rows, decode_chunk=chunk)
        engine = RolloutEngine(self.model, self.mesh, config, pad_id=0)
        sampling = SamplingParams(max_new_tokens=new_tokens)
        rng = np.random.default_rng(0)
        prompts = rng.integers(0, vocab_size, (rows // group, length)).tolist()
        groups = [GroupRequest(str(i), tuple(p), group) for i, p in enumerate(prompts)]
        for _ in range(2):  # the first compiles
            for _ in engine.generate(self.params, groups, sampling, policy_version=0):
                pass
        stats = engine.stats
        if rows not in self.roofs:
            view = engine.view(self.params, policy_version=0)
            prefill_tokens = self.options.context - new_tokens
            roof = roofline.measure(self.model, view, stats.loops[0].rows, prefill_tokens)
            self.roofs[rows] = dataclasses.replace(roof, rows=rows)
        is_whole = sweep == "group"
        seconds = stats.decode_s + is_whole * stats.prefill_s
        roof_s = self.roofs[rows].seconds(stats.num_tokens, is_whole * stats.num_prefill_tokens)
        rates = (round(stats.num_tokens / time_s, 1) for time_s in (seconds, roof_s))
        return Point(sweep, value, rows, context, group, *rates)


def plot(points: list[Point], path: pathlib.Path) -> None:
    """Writes a PNG: one panel a sweep, measured against the roof."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sweeps = list(dict.fromkeys(point.sweep for point in points))
    figure, panels = pyplot.subplots(
        1, len(sweeps), figsize=(4 * len(sweeps), 3.5), layout="constrained", squeeze=False
    )
    for axes, sweep in zip(panels[0], sweeps):
        chosen = [point for point in points if point.sweep == sweep]
        values = [point.value for point in chosen]
        axes.plot(values, [point.roof_tokens_per_s for point in chosen], "--", label="products")
        axes.plot(values, [point.tokens_per_s for point in chosen], "o-", label="sampler")
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, [str(value) for value in values])
        axes.set_ylim(bottom=0)
        axes.set(xlabel=sweep, ylabel="tokens/s")
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
