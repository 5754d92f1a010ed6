"""Compiling for real TPU topologies, without a TPU: `codea1 plan` promises what these find.

    pip install 'codea1-jax[aot]'
    pytest -m aot tests/numerics/test_aot.py                 # minutes
    pytest -m aot_runs tests/numerics/test_aot.py            # an hour: the shipped run files

A program that only ever compiled for CPU can fail, or not fit, on the first hour of a rented slice.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from make_aot_sampler import RECORD, compiled_programs, table
from make_aot_sampler import SLICES as RECORDED_SLICES

from codea1_jax.config import TrainConfig
from codea1_jax.gin_io import build
from codea1_jax.mesh import make_mesh
from codea1_jax.models import tpu_attention
from codea1_jax.models.attention import KVCache
from codea1_jax.models.layers import matmul
from codea1_jax.plan import command
from codea1_jax.plan.chips import SLICES, slice_named
from codea1_jax.plan.command import make_report
from codea1_jax.plan.compilation import compile_cached
from codea1_jax.plan.phases import Plan
from codea1_jax.plan.published import SIZES
from codea1_jax.plan.topology import compiler_version, devices_of

GIN = pathlib.Path(__file__).resolve().parents[2] / "gin"
# Each run file on the slices that docs/plan.md lists for it.
RUNS = [
    ("a1_1_5b", "v6e-8", ""),
    ("a1_3b", "v5p-8", ""),
    ("a1_7b", "v5p-64", ""),
    ("a1_7b", "v6e-64", "v6e_64"),
]


def abstract(shape: tuple[int, ...], dtype: type, device: jax.Device) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.aot
@pytest.mark.parametrize("name", SLICES)
def test_every_slice_has_its_devices(name):
    slice_ = slice_named(name)
    devices = devices_of(slice_)
    hosts = {device.process_index for device in devices}
    assert (len(devices), len(hosts)) == (slice_.num_chips, slice_.num_hosts)
    assert devices[0].platform == "tpu"


@pytest.mark.aot
@pytest.mark.parametrize("path", sorted((GIN / "mesh").glob("*_*.gin")), ids=lambda p: p.stem)
def test_mesh_files_can_be_laid_out_on_their_slice(path):
    """Also where an axis of the mesh is a part of an axis of the chips' torus."""
    sizes = build(TrainConfig, [str(GIN / "runs/a1_7b.gin"), str(path)]).mesh
    devices = devices_of(slice_named(path.stem.replace("_", "-")))
    mesh = make_mesh(**dataclasses.asdict(sizes), devices=devices)
    assert {device.id for device in mesh.devices.flat} == {device.id for device in devices}


@pytest.mark.aot
@pytest.mark.parametrize("name", ["v4-8", "v5e-4", "v5p-8", "v6e-4"])
def test_compiler_refuses_beyond_the_limit_in_the_table(name, tmp_path):
    slice_ = slice_named(name)
    square = abstract((163840, 163840), np.float32, devices_of(slice_)[0])
    lowered = jax.jit(lambda x: (x * 2.0) @ (x + 1.0)).lower(square)
    compiled = compile_cached(lowered, "square", 1, 1)
    assert compiled.is_refused
    assert compiled.num_temporary_bytes >= 2 * 163840**2 * 4
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        lowered.compile()
    limit = re.search(r"available HBM \(([\d.]+)G\)", str(caught.value))
    assert slice_.chip.hbm_bytes == int(float(limit[1]) * 2**30)


@pytest.mark.aot
def test_choices_by_platform_follow_the_target():
    """Lowered on a CPU machine for a TPU: no barriers around products, layers stacked."""
    device = devices_of(slice_named("v5p-8"))[0]

    def text(device: jax.Device) -> str:
        x, kernel = (abstract(shape, jnp.bfloat16, device) for shape in ((8, 16), (16, 32)))
        return jax.jit(lambda x, k: matmul(x, k, 1, jnp.bfloat16)).lower(x, kernel).as_text()

    assert "optimization_barrier" in text(jax.devices("cpu")[0])
    assert "optimization_barrier" not in text(device)

    config = build(TrainConfig, [str(GIN / "runs/smoke.gin")])
    on_tpu, on_cpu = (
        Plan(config, devices).role("coder").programs.abstract_cache(128, 112)
        for devices in (devices_of(slice_named("v5p-8")), jax.devices("cpu"))
    )
    assert isinstance(on_tpu, KVCache)
    assert isinstance(on_cpu, list)


@pytest.mark.aot
@pytest.mark.parametrize("name", ["v5p-8", "v6e-8"])
def test_smoke_run_fits_and_is_refused_on_a_chip_too_small(name):
    slice_, config = slice_named(name), build(TrainConfig, [str(GIN / "runs/smoke.gin")])
    devices, compiler = devices_of(slice_), compiler_version()
    report = make_report(config, slice_, devices, compiler, print)
    assert report.fits
    decode = next(one for one in report.estimates if one.phase.name == "tester decode")
    cache = decode.phase.argument_bytes
    assert decode.compiled.num_aliased_bytes >= 0.5 * cache  # donated: updated in place

    # The largest phase is the tester's decode; a chip with less asks for fewer rows of it.
    largest = max(report.estimates, key=lambda one: one.total_bytes)
    assert largest.phase.name == "tester decode"
    chip = dataclasses.replace(slice_.chip, hbm_bytes=int(0.9 * largest.total_bytes))
    small = dataclasses.replace(slice_, chip=chip)
    refused = make_report(config, small, devices, compiler, print)
    assert not refused.fits
    advice = refused.advice[0]
    assert advice.key == "tester/RolloutConfig.rows"
    bindings = [f"{advice.key} = {advice.proposed}", "tester/RolloutConfig.min_rows = 8"]
    fewer = build(TrainConfig, [str(GIN / "runs/smoke.gin")], bindings)
    assert make_report(fewer, small, devices, compiler, print).fits


@pytest.mark.aot
@pytest.mark.parametrize("name", ["v4-8", "v5e-4", "v5p-8", "v6e-4"])
@pytest.mark.parametrize(
    "heads", [(14, 2, 64), (12, 2, 128), (7, 1, 128)]
)  # 0.5B; 1.5B; a 7B's part
def test_kernels_compile(name, heads):
    """Pallas's interpreter, which checks their results, takes blocks that a TPU does not."""
    n, num_kv, h = heads
    mesh = make_mesh(1, 1, 1, devices=devices_of(slice_named(name))[:1])
    shape = functools.partial(jax.ShapeDtypeStruct, sharding=NamedSharding(mesh, P()))
    rows = [shape((2, 1100, count, h), jnp.bfloat16) for count in (n, num_kv, num_kv)]
    ids = shape((2, 1100), jnp.int32)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, *ids: jax.Array) -> jax.Array:
        return jnp.sum(tpu_attention.attend_full(q, k, v, *ids).astype(jnp.float32))

    cache = shape((4, 3, 1024, num_kv, h), jnp.bfloat16)
    scalar, positions = shape((), jnp.int32), shape((4,), jnp.int32)
    with jax.set_mesh(mesh):
        for segments_and_branches in ([ids], [ids, ids]):
            gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
            text = gradients.lower(*rows, *segments_and_branches).compile().as_text()
            assert text.count("tpu_custom_call") >= 3  # forward, dq, dkv
        query = shape((4, 1, n, h), jnp.bfloat16)
        decode = jax.jit(tpu_attention.attend_stack)
        decode.lower(query, cache, cache, scalar, positions).compile()


@pytest.mark.aot
@pytest.mark.parametrize(("size", "name"), [("0.5B", "v6e-8"), ("1.5B", "v5e-16"), ("7B", "v4-8")])
def test_sampler_compiles_as_recorded(size, name):
    """What docs/plan.md says of the sampler is what the code gives."""
    recorded = [
        row
        for row in json.loads(RECORD.read_text())["rows"]
        if (row["model"], row["slice"]) == (size, name)
    ]
    for row, wanted in zip(compiled_programs(size, name), recorded, strict=True):
        got = {key: row.pop(key) for key in list(row) if key.endswith("_gib")}
        assert got == pytest.approx({key: wanted.pop(key) for key in got}, rel=0.05, abs=0.05)
        assert row == wanted


def test_record_of_the_sampler_is_whole_and_shown():
    rows = json.loads(RECORD.read_text())["rows"]
    assert len(rows) == len(SIZES) * len(RECORDED_SLICES) * 4
    assert all(row["fits"] for row in rows)
    assert table(rows) in (GIN.parent / "docs/plan.md").read_text()


@pytest.mark.aot_runs
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("run", "topology", "mesh"), RUNS)
def test_run_file_fits_its_slice(run, topology, mesh, tmp_path):
    files = [str(GIN / f"runs/{run}.gin"), *([str(GIN / f"mesh/{mesh}.gin")] if mesh else [])]
    output = tmp_path / "plan.json"
    options = argparse.Namespace(gin_file=files, topology=topology, json=output)
    assert command.run(options, []) == 0
    assert json.loads(output.read_text())["fits"]
