"""A run that goes on with other data or settings mixes two experiments under one name."""

from typing import Any

import pytest

from codea1_jax.ckpt.manager import RestoreError
from codea1_jax.ckpt.run_state import check_same_run

CONFIG = """
# Parameters for MeshConfig:
# ==============================================================================
MeshConfig.data = 1
MeshConfig.fsdp = 8

# Parameters for TrainConfig:
# ==============================================================================
TrainConfig.mesh = @MeshConfig()
TrainConfig.num_steps = 30
"""
META = {"step": 7, "dataset": "a" * 40, "config": CONFIG}


def check(config: str, **changes: Any) -> None:
    check_same_run(
        META, **{"dataset": "a" * 40, "config": config, "is_change_allowed": False} | changes
    )


def test_the_same_run_goes_on() -> None:
    check(CONFIG)


def test_another_place_is_the_same_run() -> None:
    """A preempted run must go on on whatever slice and sandbox it gets next."""
    config = CONFIG.replace("data = 1", "data = 2").replace("fsdp = 8", "fsdp = 4")
    config += "\n# Parameters for SandboxConfig:\nSandboxConfig.address = 'host:1'\n"
    config += "coder/RoleConfig.offload_optimizer = True\nRoleConfig.offload_reference = True\n"
    check(config)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG.replace("= 30", "= 40"),
        CONFIG + "\nTrainConfig.seed = 1\n",
        CONFIG + "\nTrainConfig.name = 'a/RoleConfig.offload_optimizer = 1'\n",
    ],
)
def test_another_configuration_is_refused_or_allowed(config: str) -> None:
    with pytest.raises(
        RestoreError,
        match=r"since the checkpoint of step 7: .*\+TrainConfig\.\w+ = .*allow_changed_config",
    ):
        check(config)
    check(config, is_change_allowed=True)


def test_other_problems_are_refused_whatever_is_allowed() -> None:
    with pytest.raises(RestoreError, match="other problems"):
        check(CONFIG, dataset="b" * 40, is_change_allowed=True)
