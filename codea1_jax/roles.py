"""A role: a policy that samples, is scored and learns.

Roles are entries of a list. Nothing here knows what a coder or a tester is; the loop (`train.py`)
gives prompts and takes samples, gives advantages and takes metrics.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from codea1_jax import offload
from codea1_jax.config import RoleConfig
from codea1_jax.gin_io import resolve_path
from codea1_jax.models import hf_io
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.tokenizer import ChatTokenizer
from codea1_jax.rl.learner import Learner, TrainState
from codea1_jax.rollout.engine import RolloutEngine
from codea1_jax.rollout.types import GroupRequest, Sample, SamplingParams
from codea1_jax.typing import Params


@dataclasses.dataclass
class Role:
    """A policy with its sampler, learner, frozen reference and state.

    Attributes:
      state: parameters (float32) and optimizer state; replaced by every update. Moments are in host
        memory with `RoleConfig.offload_optimizer`.
      reference: frozen parameters of the KL term, or None where no KL term is used. In host memory
        with `RoleConfig.offload_reference`.
      policy_version: number of training steps whose update is in `state`.
    """

    config: RoleConfig
    tokenizer: ChatTokenizer
    model: LanguageModel
    engine: RolloutEngine
    learner: Learner
    reference: Params | None
    state: TrainState
    policy_version: int = 0

    @property
    def name(self) -> str:
        return self.config.name

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        request_ids: Sequence[str],
        num_samples: int,
        seed: int,
        sampling: SamplingParams | None = None,
        on_sample: Callable[[], None] = lambda: None,
        on_group: Callable[[int, list[Sample]], None] = lambda index, samples: None,
    ) -> list[list[Sample]]:
        """Draws `num_samples` answers to each prompt, in prompt and sample order.

        Args:
          on_sample: called as each sample is finished.
          on_group: gets a prompt's index and all its samples as soon as the last one is finished.
        """
        requests = [
            GroupRequest(request_id, tuple(prompt), num_samples, seed)
            for request_id, prompt in zip(request_ids, prompts, strict=True)
        ]
        sampling = dataclasses.replace(
            sampling or self.config.sampling, stop_token_ids=self.tokenizer.stop_token_ids
        )
        index_of = {request_id: index for index, request_id in enumerate(request_ids)}
        found: list[dict[int, Sample]] = [{} for _ in requests]
        groups: list[list[Sample]] = [[] for _ in requests]
        for sample in self.engine.generate(
            self.state.params, requests, sampling, policy_version=self.policy_version
        ):
            index = index_of[sample.request_id]
            found[index][sample.sample_index] = sample
            on_sample()
            if len(found[index]) == num_samples:
                groups[index] = [found[index][i] for i in range(num_samples)]
                on_group(index, groups[index])
        self.engine.release()  # memory is short when the other role samples or this one learns
        assert all(groups)
        return groups

    def follow(self, owner: "Role") -> None:
        """Takes over the owner's weights, after these were updated or restored."""
        self.state, self.policy_version = owner.state, owner.policy_version

    def texts(self, samples: Sequence[Sample]) -> list[str]:
        return [self.tokenizer.decode(sample.tokens.tolist()) for sample in samples]


def make_learner(
    config: RoleConfig, mesh: jax.sharding.Mesh
) -> tuple[pathlib.Path, LanguageModel, Learner]:
    """(checkpoint directory, model, learner) of a role; loads no weights."""
    directory = hf_io.resolve_directory(resolve_path(config.checkpoint))
    model = LanguageModel(
        Qwen2Config.from_directory(directory),
        compute_dtype=jnp.dtype(config.compute_dtype),
        remat=config.remat,
        attention=config.attention,
    )
    learner = Learner(
        model, mesh, config.optimizer, config.loss, config.learner, config.offload_optimizer
    )
    return directory, model, learner


def load_role(
    config: RoleConfig,
    mesh: jax.sharding.Mesh,
    references: dict[tuple[str, Any, bool], Params],
) -> Role:
    """Loads a role from its checkpoint onto the mesh.

    Args:
      references: frozen parameters already loaded, by (checkpoint, dtype, is on the host); two
        roles that start from the same checkpoint share one copy. Updated in place.
    """
    directory, model, learner = make_learner(config, mesh)
    tokenizer = ChatTokenizer(directory)
    reference = None
    if config.is_trained and config.loss.kl_coefficient > 0:
        key = (config.checkpoint, model.compute_dtype, config.offload_reference)
        if key not in references:
            params = hf_io.load_params(directory, model, mesh, model.compute_dtype)
            references[key] = offload.to_host(params) if config.offload_reference else params
        reference = references[key]
    return Role(
        config=config,
        tokenizer=tokenizer,
        model=model,
        engine=RolloutEngine(model, mesh, config.rollout, tokenizer.pad_id),
        learner=learner,
        reference=reference,
        state=_start_state(config, directory, learner),
    )


def _start_state(config: RoleConfig, directory: pathlib.Path, learner: Learner) -> TrainState:
    """The checkpoint's weights: float32 with moments, or as they are used where nothing learns."""
    model, mesh = learner.model, learner.mesh
    if config.is_trained:
        return learner.init_state(hf_io.load_params(directory, model, mesh, jnp.float32))
    params = hf_io.load_params(directory, model, mesh, model.compute_dtype)
    return TrainState(params, None, jnp.int32(0), jnp.int32(0))


def shared_role(config: RoleConfig, owner: Role, mesh: jax.sharding.Mesh) -> Role:
    """A role that samples with the weights of `owner`, under its own limits (self-play).

    Its state is the owner's at the time of the call; see `Role.follow`.
    """
    engine = RolloutEngine(owner.model, mesh, config.rollout, owner.tokenizer.pad_id)
    return dataclasses.replace(owner, config=config, engine=engine)
