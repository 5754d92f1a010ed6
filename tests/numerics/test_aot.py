"""Compiling for real TPU topologies, without a TPU: `codea1 plan` promises what these find.

    pip install 'codea1-jax[aot]'
    pytest -m aot tests/numerics/test_aot.py                 # minutes
    pytest -m aot_runs tests/numerics/test_aot.py            # an hour: the shipped run files

A program that only ever compiled for CPU can fail, or not fit, on the first hour of a rented slice.
"""

import argparse
import dataclasses
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from codea1_jax.config import TrainConfig
from codea1_jax.gin_io import build
from codea1_jax.mesh import make_mesh
from codea1_jax.models.attention import KVCache
from codea1_jax.models.layers import matmul
from codea1_jax.plan import command
from codea1_jax.plan.chips import SLICES, slice_named
from codea1_jax.plan.command import make_report
from codea1_jax.plan.compilation import compile_cached
from codea1_jax.plan.phases import Plan
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


@pytest.mark.aot_runs
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("run", "topology", "mesh"), RUNS)
def test_run_file_fits_its_slice(run, topology, mesh, tmp_path):
    files = [str(GIN / f"runs/{run}.gin"), *([str(GIN / f"mesh/{mesh}.gin")] if mesh else [])]
    output = tmp_path / "plan.json"
    options = argparse.Namespace(gin_file=files, topology=topology, json=output)
    assert command.run(options, []) == 0
    assert json.loads(output.read_text())["fits"]
