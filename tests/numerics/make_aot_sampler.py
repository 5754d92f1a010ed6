"""Writes aot_sampler.json: the sampler's programs compiled for TPU slices, without a TPU.

    pip install 'codea1-jax[aot]'
    python tests/numerics/make_aot_sampler.py            # all, about a quarter of an hour
    python tests/numerics/make_aot_sampler.py 0.5B v6e-8

Prints docs/plan.md's table. tests/numerics/test_aot.py makes a part of it anew.
"""

import json
import pathlib
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp

from codea1_jax.mesh import make_mesh
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.plan.chips import Slice, slice_named
from codea1_jax.plan.collectives import Collective
from codea1_jax.plan.compilation import compile_cached, program_hash
from codea1_jax.plan.phases import device_bytes
from codea1_jax.plan.published import SIZES
from codea1_jax.plan.topology import compiler_version, devices_of
from codea1_jax.rollout.programs import CacheShape, DecodeShape, Programs
from codea1_jax.rollout.sampling import Method
from codea1_jax.rollout.types import SamplingParams

RECORD = pathlib.Path(__file__).with_name("aot_sampler.json")
SLICES = ("v4-8", "v5e-16", "v5p-8", "v5p-64", "v6e-8")
# bfloat16; a prompt per data-parallel replica is prefilled at once, 16 samples of it decode.
ROWS, PROMPT, LENGTH, CHUNK = 16, 1024, 2048, 16
_KERNEL = re.compile(r'kernel_name = "(\w+)"')


def tensor_axis(size: str, slice_: Slice) -> int:
    """Weights of the 7B (15 GB in bfloat16) do not fit a v5e chip beside a cache: 4 share them."""
    return 4 if size == "7B" and slice_.chip.name == "v5e" else 1


def compiled_programs(size: str, name: str) -> list[dict[str, Any]]:
    """A row a program, of one model on one slice."""
    slice_ = slice_named(name)
    tensor = tensor_axis(size, slice_)
    replicas = slice_.num_chips // tensor
    mesh = make_mesh(1, replicas, tensor, devices=list(devices_of(slice_)))
    model = LanguageModel(SIZES[size], jnp.bfloat16)
    programs = Programs(model, mesh, 0, CHUNK, finish=lambda lowered: lowered)
    cache, rows = CacheShape(ROWS * replicas, LENGTH), []
    method = Method.from_params(
        SamplingParams(max_new_tokens=LENGTH - PROMPT), model.config.vocab_size
    )
    half = CacheShape(cache.rows // 2, LENGTH)
    beside = {"prefill": device_bytes(programs.abstract_cache(*cache))}
    lowered: Any  # `finish` leaves programs so
    for program, shape, lowered in (
        ("prefill", f"{replicas} x {PROMPT}", programs.prefill(replicas, PROMPT)),
        ("insert", f"{PROMPT} into {cache.rows} x {LENGTH}", programs.insert(*cache, PROMPT)),
        ("decode", f"{cache.rows} x {LENGTH}", programs.decode(DecodeShape(cache, method, 1))),
        ("shrink", f"{cache.rows} to {half.rows} rows", programs.shrink(cache, half)),
    ):
        key = program_hash(lowered, compiler_version(), name, sorted(mesh.shape.items()), CHUNK)
        compiled = compile_cached(lowered, key, mesh.size, CHUNK)
        needed = compiled.peak_bytes + beside.get(program, 0)
        rows.append(
            {
                "model": size,
                "slice": name,
                "mesh": list(mesh.shape.values()),
                "program": program,
                "shape": shape,
                "kernels": sorted(set(_KERNEL.findall(lowered.as_text()))),
                "argument_gib": gib(compiled.num_argument_bytes),
                "temporary_gib": gib(compiled.num_temporary_bytes),
                "total_gib": gib(needed),
                "limit_gib": gib(slice_.chip.hbm_bytes),
                "fits": not compiled.is_refused and needed <= slice_.chip.hbm_bytes,
                "collectives": [words(one) for one in compiled.collectives],
            }
        )
    return rows


def gib(num_bytes: int) -> float:
    return round(num_bytes / 2**30, 2)


def words(one: Collective) -> str:
    return f"{one.kind} {one.shape} x{one.count}"


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a row a model and slice."""
    columns = (
        "model", "slice (data, fsdp, tensor)", "prefill", "decode", "shrink", "limit",
        "kernel of decode", "collectives of decode",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        if row["program"] != "decode":
            continue
        total = {
            other["program"]: f"{other['total_gib']:.1f}"
            for other in rows
            if (other["model"], other["slice"]) == (row["model"], row["slice"])
        }
        cells = [
            row["model"],
            f"{row['slice']} ({', '.join(map(str, row['mesh']))})",
            *(total[program] for program in ("prefill", "decode", "shrink")),
            f"{row['limit_gib']:.1f}",
            ", ".join(row["kernels"]) or "none",
            "; ".join(row["collectives"]) or "none",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(sizes: list[str], slices: list[str]) -> None:
    jax.config.update("jax_platforms", "cpu")
    rows = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else []
    for size in sizes:
        for name in slices:
            new = compiled_programs(size, name)
            rows = [row for row in rows if (row["model"], row["slice"]) != (size, name)] + new
            rows.sort(key=lambda row: (list(SIZES).index(row["model"]), SLICES.index(row["slice"])))
            record = {"compiler": compiler_version(), "rows": rows}
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
            print(size, name, *(f"{row['program']} {row['total_gib']}" for row in new), flush=True)
    print(table(rows))


if __name__ == "__main__":
    named = sys.argv[1:]
    main(
        [size for size in SIZES if size in named] or list(SIZES),
        [name for name in SLICES if name in named] or list(SLICES),
    )
