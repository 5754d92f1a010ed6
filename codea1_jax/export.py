"""A trained role as a Hugging Face directory that transformers and vLLM load."""

import pathlib
from typing import Literal

import jax
import jax.numpy as jnp

from codea1_jax import gin_io
from codea1_jax.ckpt.manager import CheckpointManager
from codea1_jax.config import TrainConfig
from codea1_jax.errors import UserError
from codea1_jax.mesh import make_mesh
from codea1_jax.models import hf_io
from codea1_jax.roles import make_learner


def export_role(
    run_dir: pathlib.Path,
    role_name: str,
    step: int | Literal["best"] | None,
    output: pathlib.Path,
    dtype: str,
) -> None:
    """Writes weights, configuration, generation configuration and tokenizer of a role.

    Args:
      step: which checkpoint; "best": of those that are there, the one with the highest hold-out
        pass rate; None: the latest.

    Raises:
      UserError: no such run, checkpoint or trained role.
    """
    config_file = run_dir / "config.gin"
    if not config_file.exists():
        raise UserError(f"--run_dir={run_dir}: {config_file.name} is missing; not a run folder")
    config = gin_io.build(TrainConfig, [str(config_file)])
    role = config.role(role_name)
    if not role.is_trained:
        raise UserError(f"--role={role_name} was frozen in this run; use {role.checkpoint} itself")
    manager = CheckpointManager(run_dir / "checkpoints")
    saved = manager.all_steps()
    if step == "best":
        step = manager.best_step()
        if step is None:
            raise UserError(f"--step=best: no checkpoint in {run_dir} was evaluated")
    step = saved[-1] if step is None and saved else step
    if step not in saved:
        raise UserError(f"--step={step}: {run_dir} has checkpoints of steps {saved or 'none'}")
    mesh = make_mesh(devices=jax.devices())
    with jax.set_mesh(mesh):
        source, model, _ = make_learner(role, mesh)
        meta = manager.restore_meta(step)
        trained = {
            name: make_learner(config.role(name), mesh)[2].abstract_state()
            for name in meta["trained_roles"]
        }
        state = manager.restore_arrays(step, trained)[role_name]
        hf_io.save_params(state.params, model, output, dtype=jnp.dtype(dtype), source=source)
    manager.close()
    print(f"wrote {output}: {role_name} after step {step}, {dtype}")
