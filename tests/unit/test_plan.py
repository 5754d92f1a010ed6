"""A plan that adds up wrong sends a run into an hour's queue to die of memory.

The pipeline runs on eight fake CPU devices with a chip made up for the purpose; the same on
libtpu's topologies is tests/numerics/test_aot.py.
"""

import dataclasses
import json
import pathlib
import re

import jax
import pytest

from codea1_jax.config import TrainConfig
from codea1_jax.errors import UserError
from codea1_jax.gin_io import build
from codea1_jax.plan import command
from codea1_jax.plan.advice import advise
from codea1_jax.plan.chips import SLICES, Chip, Slice, slice_named
from codea1_jax.plan.collectives import Collective, collectives_of
from codea1_jax.plan.command import make_report
from codea1_jax.plan.compilation import needed_bytes
from codea1_jax.plan.estimate import host_bytes
from codea1_jax.plan.phases import Plan, device_bytes
from codea1_jax.plan.published import MODELS
from codea1_jax.plan.report import Report, as_json, table

ROOT = pathlib.Path(__file__).resolve().parents[2]
GIB = 2**30
CHIP = Chip("test", 1 * GIB, 1e12, 1e11, 1e10, 2e9)
# Small enough that a dozen programs compile in seconds.
SMALL = (
    "coder/RolloutConfig.rows = 32",
    "coder/RolloutConfig.min_rows = 16",
    "tester/RolloutConfig.rows = 32",
    "tester/RolloutConfig.prefill_rows = 8",
    "LearnerConfig.length_buckets = (224,)",
    "LearnerConfig.micro_batch_tokens = 7168",
    "RoleConfig.remat = 'full'",
)


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def small_config(*bindings: str) -> TrainConfig:
    return build(TrainConfig, [str(ROOT / "gin/runs/smoke.gin")], [*SMALL, *bindings])


def plan_on(hbm_bytes: int, *bindings: str, host_bytes: int = 10**12) -> tuple[Report, list[str]]:
    chip = dataclasses.replace(CHIP, hbm_bytes=hbm_bytes)
    lines: list[str] = []
    slice_ = Slice("test-8", chip, "", 8, 1, host_bytes)
    report = make_report(small_config(*bindings), slice_, jax.devices(), "cpu", lines.append)
    return report, lines


@pytest.fixture(scope="module")
def roomy() -> tuple[Report, list[str]]:
    return plan_on(GIB)


def total(report: Report, name: str) -> int:
    return next(one.total_bytes for one in report.estimates if one.phase.name == name)


def test_every_program_of_the_step_is_there(roomy):
    kinds = [
        "weight sync", "prefill", "insert", "decode", "shrink",
        "log-probs", "reference", "gradients", "add", "optimizer",
    ]  # fmt: skip
    names = [one.phase.name for one in roomy[0].estimates]
    wanted = [f"{role} {kind}" for role in ("coder", "tester") for kind in kinds]
    assert [name for name in wanted if name != "tester shrink"] == [
        name for name in names if name not in ("tester load", "tester shrink")
    ]
    assert roomy[0].fits
    assert not roomy[0].advice


def test_arguments_are_what_was_counted(roomy):
    """What is held beside a program is counted from shapes; the compiler counts its arguments."""
    for one in roomy[0].estimates:
        if one.phase.kind != "prefill":  # of the last layer it uses the keys and values only
            measured = one.compiled.num_argument_bytes
            assert measured == pytest.approx(one.phase.argument_bytes, rel=0.15), one.phase.name


def test_both_states_and_the_shared_reference_are_held(roomy):
    plan = roomy[0].plan
    params = plan.roles[0].model.config.num_params()
    # Master weights and two moments in float32, over 8 devices; norms and biases are not split.
    for role in ("coder", "tester"):
        assert plan.held[f"{role} state"] == pytest.approx(12 * params / 8, rel=0.1)
    assert plan.held["reference"] == device_bytes(plan.roles[0].state.params)
    gradients = next(p for p in plan.phases if p.name == "coder gradients")
    assert sum(gradients.resident.values()) + gradients.argument_bytes == sum(
        plan.held.values()
    ) + device_bytes(plan.roles[0].state.params)


def test_frozen_tester_needs_no_learner_programs():
    config = small_config("tester/RoleConfig.is_trained = False")
    plan = Plan(config, jax.devices())
    assert not any(p.role == "tester" and p.kind in ("gradients", "reference") for p in plan.phases)
    assert "tester state" in plan.held


def test_too_large_is_refused_with_advice_that_leads_to_a_fit(roomy):
    """Each round changes what the plan says, until it fits."""
    limit = int(0.8 * max(one.total_bytes for one in roomy[0].estimates))
    bindings: dict[str, str] = {}
    for _ in range(4):
        report, _lines = plan_on(limit, *(f"{k} = {v}" for k, v in bindings.items()))
        if report.fits:
            break
        assert "It does not fit" in table(report)
        assert not as_json(report)["fits"]
        for advice in report.advice:
            assert advice.key.split(".")[0].split("/")[-1] in ("LearnerConfig", "RolloutConfig")
            assert str(advice) in table(report)
            bindings[advice.key] = advice.proposed
    assert bindings
    assert report.fits


def test_state_alone_too_large_asks_for_a_larger_slice(roomy):
    report, _ = plan_on(sum(roomy[0].plan.held.values()) // 2)
    assert {"--topology"} <= {advice.key for advice in report.advice}


OFFLOAD = ("RoleConfig.offload_optimizer = True", "RoleConfig.offload_reference = True")


def test_what_waits_on_the_host_leaves_all_phases_but_its_own(roomy):
    there, lines = plan_on(GIB, *OFFLOAD)
    assert all("cached" in line for line in lines)  # the same programs
    plan = roomy[0].plan
    moments, reference = plan.role("coder").moment_bytes, plan.held["reference"]
    assert there.plan.held == plan.held | {
        "coder state": plan.held["coder state"] - moments,
        "tester state": plan.held["tester state"] - moments,
        "reference": 0,
    }
    for before, after in zip(roomy[0].estimates, there.estimates, strict=True):
        own = {"optimizer": moments, "load": moments, "reference": reference}
        gone = 2 * moments + reference - own.get(after.phase.kind, 0)
        assert before.total_bytes - after.total_bytes == gone, after.phase.name
    waiting = {"coder moments": moments, "tester moments": moments, "reference": reference}
    assert as_json(there)["offloaded_bytes"] == waiting
    host = as_json(roomy[0])["host_bytes"]
    assert as_json(there)["host_bytes"] == host | {"offloaded": 8 * sum(waiting.values())}
    # Two optimizer steps a role, there and back; the reference comes once for each role.
    moved = 2 * (2 * 2 * moments + reference)
    assert as_json(there)["transfer_bytes"] == moved
    assert as_json(there)["transfer_s"] == moved / CHIP.host_bandwidth
    assert re.search(r"Waiting on the host .*coder moments .* moved in a step", table(there))
    assert "Waiting on the host" not in table(roomy[0])


def test_only_what_learns_has_something_to_offload():
    frozen = Plan(small_config(*OFFLOAD, "tester/RoleConfig.is_trained = False"), jax.devices())
    assert set(frozen.offloaded) == {"coder moments", "reference"}
    no_kl = Plan(small_config(*OFFLOAD, "LossConfig.kl_coefficient = 0.0"), jax.devices())
    assert set(no_kl.offloaded) == {"coder moments", "tester moments"}


def test_idle_state_goes_to_the_host_before_a_larger_slice_is_asked_for(roomy):
    """An optimizer's step that does not fit beside the other role's moments."""
    plan = roomy[0].plan
    moments, reference = plan.role("coder").moment_bytes, plan.held["reference"]
    by_name = {one.phase.name: one for one in roomy[0].estimates}

    def advice(excess: int, *bindings: str, phase: str = "optimizer") -> tuple[str, str, str]:
        changed = Plan(small_config(*bindings), jax.devices())
        one = by_name[f"coder {phase}"]
        limit = dataclasses.replace(one, limit_bytes=one.total_bytes - excess)
        (found,) = advise(changed, [limit], CHIP)
        return found.key, found.current, found.proposed

    to_host = ("RoleConfig.offload_optimizer", "False", "True")
    assert advice(moments) == to_host
    assert advice(moments + reference) == to_host  # and in the next round the reference
    assert advice(reference, OFFLOAD[0]) == ("RoleConfig.offload_reference", "False", "True")
    assert advice(moments + reference + 1)[0] == "--topology"
    # Its own moments are the arguments of the update: a smaller type is what is left for them.
    assert advice(moments // 4, *OFFLOAD)[0] == "OptimizerConfig.mu_dtype"
    assert advice(moments // 4 + 1, *OFFLOAD)[0] == "--topology"

    # A phase with a setting of its own changes that, unless most of its memory is what idles.
    few = by_name["coder gradients"]
    assert sum(few.phase.resident.values()) < few.program_bytes
    assert advice(moments, phase="gradients")[0] == "LearnerConfig.micro_batch_tokens"
    crowded = dataclasses.replace(few.phase, resident={"others": 2 * few.program_bytes})
    by_name["coder gradients"] = dataclasses.replace(few, phase=crowded)
    assert advice(moments, phase="gradients") == to_host


def test_extra_batches_count_for_the_rollouts_only(roomy):
    """Dynamic sampling may play as many batches more in a step; it learns from one."""
    config = small_config("paper.max_extra_batches = 2", "paper.filter_zero_variance = True")
    more = Plan(config, jax.devices())
    rollout = ("weight sync", "prefill", "insert", "decode", "shrink")
    for before, after in zip(roomy[0].plan.phases, more.phases, strict=True):
        factor = 3 if after.kind in rollout else 1
        assert after.calls == factor * before.calls > 0, after.name
    assert host_bytes(more, 1)["samples"] == 3 * host_bytes(roomy[0].plan, 1)["samples"]


def test_small_host_is_refused():
    report, _ = plan_on(GIB, host_bytes=10**9)
    assert not report.fits
    assert "more hosts" in table(report)


def test_second_plan_comes_from_the_cache(roomy):
    again, lines = plan_on(GIB)
    assert all("cached" in line for line in lines)
    assert again.estimates[0].compiled == roomy[0].estimates[0].compiled
    assert re.search(r"compiled in .* left", "\n".join(roomy[1]))


def test_report_as_json_survives_a_round_trip(roomy):
    raw = json.loads(json.dumps(as_json(roomy[0])))
    phase = next(p for p in raw["phases"] if p["phase"] == "coder gradients")
    assert phase["total_bytes"] == total(roomy[0], "coder gradients")
    assert phase["flops"] > 0
    no_kernel = "XLA (the mesh has no TPUs)"
    assert raw["attention"]["coder"] == {"whole rows": no_kernel, "decode": no_kernel}
    assert phase["roofline_s"] > 0
    assert any(one["kind"] == "all-gather" for one in phase["collectives"])


def test_flops_of_gradients_are_six_per_weight_and_token(roomy):
    plan = roomy[0].plan
    role = plan.role("coder")
    tokens = role.micro_batch[0] * role.micro_batch[1]
    phase = next(p for p in plan.phases if p.name == "coder gradients")
    config = role.model.config
    attention = 12 * config.num_hidden_layers * config.hidden_size * role.micro_batch[1] / 2
    assert phase.flops / tokens == pytest.approx(6 * config.num_params() + attention, rel=0.03)


@pytest.mark.parametrize("size", ["0_5b", "1_5b", "3b", "7b"])
def test_published_sizes_have_the_parameters_of_the_gin_files(size):
    text = (ROOT / f"gin/models/qwen2_5_coder_{size}.gin").read_text()
    count = int(re.search(r"([\d,]+) parameters", text)[1].replace(",", ""))
    checkpoint = re.search(r"^CHECKPOINT = '(.*)'", text, flags=re.MULTILINE)[1]
    assert MODELS[checkpoint].num_params() == count


@pytest.mark.parametrize("path", sorted((ROOT / "gin/mesh").glob("*_*.gin")), ids=lambda p: p.stem)
def test_mesh_files_have_as_many_devices_as_their_slice(path):
    run = [str(ROOT / "gin/runs/a1_7b.gin"), str(path)]
    mesh = build(TrainConfig, run).mesh
    slice_ = slice_named(path.stem.replace("_", "-"))
    assert mesh.data * mesh.fsdp * mesh.tensor == slice_.num_chips


def test_slices_divide_over_their_hosts():
    for slice_ in SLICES.values():
        assert slice_.num_chips % slice_.num_hosts == 0
    with pytest.raises(UserError, match=r"known slices are .*v5p-64"):
        slice_named("v5p-65")


def test_missing_libtpu_is_one_sentence(monkeypatch):
    import importlib.metadata

    from codea1_jax.plan.topology import devices_of

    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(UserError, match=r"codea1-jax\[aot\]"):
        devices_of(slice_named("v5p-8"))


HLO = """HloModule m

%cond (p: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(28)
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %ag = bf16[16,128]{1,0:T(8,128)(2,1)} all-gather(%x), replica_groups=[2,4]<=[8], dimensions={0}
  %inner = (s32[], f32[8]) while(%t), condition=%unknown, body=%inner_body
}

%unknown (p: (s32[], f32[8])) -> pred[] {
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%inner_body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %ar = (f32[4]{0}, /*index=1*/f32[4]{0}) all-reduce(%a, %b), replica_groups={{0,1},{2,3}}
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %w = (s32[], f32[8]) while(%t), condition=%cond, body=%body
  %s = (f32[8]{0}, f32[64]{0}) all-gather-start(%y), replica_groups=mesh['data'=2,'fsdp'=8] {'fsdp'}
  %d = f32[64]{0} all-gather-done(%s)
}
"""


def test_collectives_in_loops_count_as_often_as_the_loop():
    found = collectives_of(HLO, num_devices=16, unknown_trips=3)
    assert set(found) == {
        Collective("all-gather", "bf16[16,128]", 4096, 4, 28),
        Collective("all-reduce", "f32[4]", 32, 2, 84),
        Collective("all-gather", "f32[64]", 256, 8, 1),
    }
    assert found[0].sent_bytes == 4096 * 3 / 4 * 28


@pytest.mark.parametrize(
    ("message", "gib"),
    [
        ("the total memory required for HLO temporaries (200.00G) exceeds available HBM", 200),
        ("Ran out of memory in memory space hbm. Used 26.5G of 15.75G hbm.", 26.5),
    ],
)
def test_out_of_memory_message_says_how_much(message, gib):
    assert needed_bytes(message) == int(gib * GIB)


def test_unknown_checkpoint_is_named(monkeypatch):
    config = build(
        TrainConfig,
        [str(ROOT / "gin/runs/a1_1_5b.gin")],
        ["CHECKPOINT = 'somebody/else'"],
    )
    slice_ = Slice("test-8", CHIP, "", 8, 1, 10**12)
    with pytest.raises(UserError, match="sizes are not known offline"):
        command.make_report(config, slice_, jax.devices(), "cpu", print)
