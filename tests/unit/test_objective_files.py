"""An overlay that binds nothing, or for one role only, trains GRPO under another's name."""

import dataclasses
from typing import Any

import pytest

from codea1_jax.config import TrainConfig
from codea1_jax.gin_io import build
from codea1_jax.rl.losses import LossConfig

NO_DUAL = {"dual_clip": 0.0, "kl_coefficient": 0.0}
OVERLAYS: dict[str, dict[str, Any]] = {
    "dr_grpo": {"objective": "dr_grpo", "clip_high": 0.2, **NO_DUAL},
    "dapo": {"objective": "dapo", "overlong_buffer": 0.2, **NO_DUAL},
    "gspo": {"objective": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, **NO_DUAL},
    "cispo": {"objective": "cispo", "clip_low": 1.0, "clip_high": 4.0, "kl_coefficient": 0.0},
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay_changes_both_roles_and_nothing_else(name: str):
    plain: TrainConfig = build(TrainConfig, ["gin/runs/smoke.gin"])
    config: TrainConfig = build(TrainConfig, ["gin/runs/smoke.gin", f"gin/algo/{name}.gin"])
    for role, limit in (("coder", 48), ("tester", 112)):
        expected = LossConfig(max_response_tokens=limit, **OVERLAYS[name])
        assert config.role(role).loss == expected
        assert plain.role(role).loss == LossConfig(max_response_tokens=limit)
        same = dataclasses.replace(config.role(role), loss=plain.role(role).loss)
        assert same == plain.role(role)
    dynamic = {"filter_zero_variance": True, "max_extra_batches": 3} if name == "dapo" else {}
    evolution = dataclasses.replace(plain.coevolution, **dynamic)
    assert config.coevolution == evolution
    assert dataclasses.replace(config, roles=plain.roles, coevolution=plain.coevolution) == plain
