"""Every program of a training step at its largest shapes, and what else is in memory then.

Largest means: prefill of the most prompts of the longest bucket, decode of all rows with the
longest cache, and the micro-batch with the most tokens (of equals the longest rows). Smaller shapes
of the same programs need less of everything.

Left out: evaluation on the hold-out (the coder's programs with other sampling), checkpoints, and
fragmentation of the device's memory.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from codea1_jax.bench.flops import ForwardFlops, forward_flops
from codea1_jax.config import RoleConfig, TrainConfig
from codea1_jax.mesh import make_mesh
from codea1_jax.models import tpu_attention
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.plan.published import model_sizes
from codea1_jax.rl.batching import pick_bucket
from codea1_jax.rl.learner import Learner
from codea1_jax.rollout.engine import RolloutEngine
from codea1_jax.rollout.programs import CacheShape, DecodeShape, Programs
from codea1_jax.rollout.run import padded_stops
from codea1_jax.rollout.sampling import Method

# float32 products are asked for at the highest precision: six bfloat16 passes on a TPU.
_FLOAT32_PASSES = 6


@dataclasses.dataclass(frozen=True)
class Phase:
    """One program of the step.

    Attributes:
      name: role and kind, e.g. "coder decode".
      shape: its sizes in words.
      lower: gives the lowered program (`jax.stages.Lowered`), from shapes alone.
      argument_bytes: of its arguments per device, before the compiler's padding.
      resident: bytes per device of what is in memory beside its arguments, by what it is.
      flops: that the mathematics of one call needs, over all devices.
      work: that one call computes, in bfloat16 products: with recomputation and float32's passes.
      reads: how often one call reads its arguments from memory.
      unknown_trips: bound on its loops whose length XLA does not know.
      calls: per training step, if every prompt and answer is as long as it may be.
    """

    role: str
    kind: str
    shape: str
    lower: Callable[[], Any]
    argument_bytes: int
    resident: Mapping[str, int]
    flops: float = 0.0
    work: float = 0.0
    reads: int = 1
    unknown_trips: int = 1
    calls: int = 1

    @property
    def name(self) -> str:
        return f"{self.role} {self.kind}"


def device_bytes(tree: Any) -> int:
    """Bytes of one device's part of a tree of arrays or of shapes with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


class Plan:
    """The phases of a run on these devices.

    Attributes (bytes per device):
      held: what stays in device memory through the whole step, by what it is.
      offloaded: what waits on the host and is on the device in one phase only.

    Args:
      devices: of one mesh; they are only compiled for.

    Raises:
      UserError: the configuration does not fit the mesh or its models are not known.
    """

    def __init__(self, config: TrainConfig, devices: list[Any]):
        self.config = config
        self.mesh = make_mesh(**dataclasses.asdict(config.mesh), devices=devices)
        roles = [PlannedRole(role, config, self.mesh) for role in config.roles]
        if config.coevolution.test_source == "golden":
            roles = roles[:1]
        self.roles = roles
        self.held = self._held()
        self.offloaded = self._offloaded()
        self.phases = [phase for role in roles for phase in self._of_role(role)]

    def role(self, name: str) -> "PlannedRole":
        return next(role for role in self.roles if role.name == name)

    def _held(self) -> dict[str, int]:
        held = {role.state_name: role.held_bytes for role in self.roles if role.owns_state}
        return held | {"reference": self._references(is_offloaded=False)}

    def _offloaded(self) -> dict[str, int]:
        moments = {
            f"{role.name} moments": role.moment_bytes
            for role in self.roles
            if role.offloads_moments
        }
        waiting = moments | {"reference": self._references(is_offloaded=True)}
        return {name: size for name, size in waiting.items() if size}

    def _references(self, is_offloaded: bool) -> int:
        """Roles with the same reference share a copy."""
        sizes = {
            (role.config.checkpoint, role.config.compute_dtype): role.reference_bytes
            for role in self.roles
            if role.has_reference and role.config.offload_reference == is_offloaded
        }
        return sum(sizes.values())

    @property
    def transfer_bytes(self) -> int:
        """What goes between a device and its host in a step, both directions together."""
        total = 0
        for role in self.roles:
            if role.offloads_moments:  # there and back for every optimizer step
                total += 2 * self.config.num_minibatches * role.moment_bytes
            if role.has_reference and role.config.offload_reference:
                total += role.reference_bytes
        return total

    def _of_role(self, role: "PlannedRole") -> list[Phase]:
        phases = [*self._rollout(role)]
        if role.config.is_trained:
            phases += self._learning(role)
        if role.owns_state and role is self.roles[-1]:
            init = role.learner_programs["init"]
            held = _without(self.held, role.state_name, role.held_bytes)
            params = device_bytes(role.state.params)
            phases.append(Phase(role.name, "load", "float32 weights", init, params, held))
        return phases

    def _rollout(self, role: "PlannedRole") -> list[Phase]:
        rollout, model = role.config.rollout, role.model.config
        buckets = role.engine.buckets
        prompts, prompt = buckets.prefill[-1], buckets.prompts[-1]
        cache = CacheShape(buckets.slots[-1], role.engine.cache_lengths(role.config.sampling)[-1])
        method = Method.from_params(role.config.sampling, model.vocab_size)
        decode = DecodeShape(cache, method, len(padded_stops(role.config.sampling)))
        programs, params = role.programs, role.state.params
        weights, cached = role.view_bytes, role.cache_bytes(*cache)
        view, kv_cache = {"sampling weights": weights}, {"KV cache": cached}
        one_prompt = role.cache_bytes(1, prompt)
        waiting = {"prefilled prompts": prompts * one_prompt}
        rest = dict(self.held)
        prefill = forward_flops(model, prompts * prompt, prompts * prompt * (prompt + 1) // 2, 0)
        tokens = cache.rows * rollout.decode_chunk
        drawn = forward_flops(model, tokens, tokens * cache.length, tokens)
        groups, samples = role.groups, role.groups * role.group_size
        loops = -(-samples // cache.rows) * -(
            -role.config.sampling.max_new_tokens // rollout.decode_chunk
        )
        batches = self.config.coevolution.max_extra_batches + 1

        phases = [
            Phase(
                role.name,
                "weight sync",
                role.config.compute_dtype,
                lambda: programs.sync(params),
                device_bytes(params),
                _without(rest, role.state_name, device_bytes(params)),
            ),
            Phase(
                role.name,
                "prefill",
                f"{prompts} x {prompt}",
                lambda: programs.prefill(prompts, prompt),
                weights,
                rest | kv_cache,
                flops=prefill.total,
                work=prefill.total * role.passes,
                calls=-(-groups // prompts),
            ),
            Phase(
                role.name,
                "insert",
                f"{prompt} into {cache.rows} x {cache.length}",
                lambda: programs.insert(*cache, prompt),
                cached + one_prompt,
                rest | view | waiting,
                # The cache stays in place; a call writes one prompt to the slots of its samples.
                reads=0,
                unknown_trips=role.group_size,
                calls=groups,
            ),
            Phase(
                role.name,
                "decode",
                f"{cache.rows} x {cache.length}, {rollout.decode_chunk} tokens",
                lambda: programs.decode(decode),
                weights + cached,
                rest | waiting,
                flops=drawn.total,
                work=drawn.total * role.passes,
                reads=rollout.decode_chunk,
                unknown_trips=rollout.decode_chunk,
                calls=loops,
            ),
            *self._shrinks(role, cache, rest | view),
        ]
        return [dataclasses.replace(phase, calls=batches * phase.calls) for phase in phases]

    def _shrinks(
        self, role: "PlannedRole", cache: CacheShape, resident: dict[str, int]
    ) -> list[Phase]:
        """To fewer rows, and to a shorter cache: both exist at once while one is copied."""
        slots = role.engine.buckets.slots
        lengths = role.engine.cache_lengths(role.config.sampling)
        smaller = [CacheShape(rows, cache.length) for rows in slots[-2:-1]]
        smaller += [CacheShape(cache.rows, length) for length in lengths[-2:-1]]
        return [
            Phase(
                role.name,
                "shrink",
                f"{cache.rows} x {cache.length} to {after.rows} x {after.length}",
                functools.partial(role.programs.shrink, cache, after),
                role.cache_bytes(*cache),
                resident,
            )
            for after in smaller
        ]

    def _learning(self, role: "PlannedRole") -> list[Phase]:
        rows, length = role.micro_batch
        programs, rest = role.learner_programs, dict(self.held)
        forward = _micro_batch_flops(role.model.config, rows, length)
        params, state = device_bytes(role.state.params), device_bytes(role.state)
        sums = {"gradient sum": params}
        without_params = _without(rest, role.state_name, params)
        without_state = _without(rest, role.state_name, role.held_bytes)
        chunk = max(role.config.learner.tokens_per_chunk // max(rows // role.row_shards, 1), 1)
        shape = f"{rows} x {length}"
        micro_batches = -(-role.tokens_per_step // (rows * length))
        scoring: dict[str, Any] = dict(
            flops=forward.total,
            work=forward.total * role.passes,
            unknown_trips=-(-length // chunk),
            calls=micro_batches,
        )
        # Backward costs twice the forward pass; "full" runs the layers forward once more.
        again = forward.layers + forward.attention if role.config.remat == "full" else 0.0
        again += forward.head  # logits are always computed again

        phases = [
            Phase(
                role.name,
                "log-probs",
                shape,
                programs["logprobs"],
                params,
                without_params,
                **scoring,
            )
        ]
        if role.has_reference:
            size = role.reference_bytes
            left = rest
            if not role.config.offload_reference:
                left = _without(rest, "reference", size)
            phases.append(
                Phase(role.name, "reference", shape, programs["reference"], size, left, **scoring)
            )
        return [
            *phases,
            Phase(
                role.name,
                "gradients",
                shape,
                programs["gradients"],
                params,
                without_params | sums,
                flops=3.0 * forward.total,
                work=(3.0 * forward.total + again) * role.passes,
                reads=3,
                unknown_trips=-(-length // chunk),
                calls=micro_batches,
            ),
            Phase(
                role.name,
                "add",
                "gradients",
                programs["add"],
                2 * params,
                rest,
                calls=micro_batches,
            ),
            Phase(
                role.name,
                "optimizer",
                "AdamW",
                programs["apply"],
                state + params,
                without_state,
                calls=self.config.num_minibatches,
            ),
        ]


class PlannedRole:
    """Shapes and programs of a role; no arrays."""

    def __init__(self, config: RoleConfig, run: TrainConfig, mesh: jax.sharding.Mesh):
        owner = run.roles[0] if run.share_weights else config
        self.name = config.name
        self.config = config
        self.owns_state = owner is config
        self.state_name = f"{owner.name} state"
        self.model = LanguageModel(
            model_sizes(owner),
            compute_dtype=jnp.dtype(owner.compute_dtype),
            remat=owner.remat,
            attention=owner.attention,
        )
        self.mesh = mesh
        self.learner = Learner(self.model, mesh, config.optimizer, config.loss, config.learner)
        self.engine = RolloutEngine(self.model, mesh, config.rollout, pad_id=0)
        self.programs = Programs(
            self.model, mesh, 0, config.rollout.decode_chunk, finish=lambda lowered: lowered
        )
        self.state = self.learner.abstract_state()  # as programs take it, moments on the device
        moments = self.state.opt_state.mu, self.state.opt_state.nu
        self.moment_bytes = device_bytes(moments)
        self.offloads_moments = config.offload_optimizer and config.is_trained
        self.held_bytes = device_bytes(self.state) - self.offloads_moments * self.moment_bytes
        self.row_shards = mesh.shape["data"] * mesh.shape["fsdp"]
        self.micro_batch = self._largest_micro_batch()
        self.learner_programs = self.learner.lowered(*self.micro_batch)
        self.has_reference = config.is_trained and config.loss.kl_coefficient > 0
        self.passes = 1 if owner.compute_dtype == "bfloat16" else _FLOAT32_PASSES
        evolution = run.coevolution
        problems, is_coder = run.problems_per_step, config.name == "coder"
        codes = 1 if evolution.suites_for == "question" else evolution.num_solutions
        self.groups = problems if is_coder else problems * codes
        self.group_size = evolution.num_solutions if is_coder else evolution.num_suites
        trained = problems if is_coder else problems * evolution.groups_kept
        if run.share_weights:
            trained = 2 * problems
        self.trained_samples = trained * self.group_size
        self.tokens_per_step = trained * self._group_tokens()

    @property
    def attention(self) -> dict[str, str]:
        """Who computes attention: "Pallas", or "XLA" and why, by kind of program."""
        slots = self.engine.cache_lengths(self.config.sampling)[-1]
        with jax.set_mesh(self.mesh):
            reasons = {
                "whole rows": tpu_attention.refuse_full(self.model.compute_dtype),
                "decode": tpu_attention.refuse_stack(self.model.config, slots),
            }
            why = {
                kind: tpu_attention.why_xla(self.model.attention, reason)
                for kind, reason in reasons.items()
            }
        return {kind: f"XLA ({reason})" if reason else "Pallas" for kind, reason in why.items()}

    @property
    def view_bytes(self) -> int:
        return device_bytes(self.programs.abstract_view)

    @property
    def reference_bytes(self) -> int:
        itemsize = jnp.dtype(self.config.compute_dtype).itemsize
        return device_bytes(self.state.params) * itemsize // 4

    def cache_bytes(self, rows: int, length: int) -> int:
        return device_bytes(self.programs.abstract_cache(rows, length))

    def _largest_micro_batch(self) -> tuple[int, int]:
        """Rows and length; see rl/packing.py for the rules."""
        learner, multiple = self.config.learner, self.row_shards
        buckets, most = learner.length_buckets, learner.micro_batch_tokens
        fitting = [bucket for bucket in buckets if bucket * multiple <= most]
        longest = self.config.max_prompt_tokens + self.config.sampling.max_new_tokens
        reachable = max(pick_bucket(longest, buckets), *fitting, min(buckets))
        shapes = [
            (max(most // length // multiple, 1) * multiple, length)
            for length in buckets
            if length <= reachable
        ]
        return max(shapes, key=lambda shape: (shape[0] * shape[1], shape[1]))

    def _group_tokens(self) -> int:
        prompt, answer = self.config.max_prompt_tokens, self.config.sampling.max_new_tokens
        size = self.group_size
        return (
            prompt + size * answer if self.config.learner.share_prefix else size * (prompt + answer)
        )


def _micro_batch_flops(config: Qwen2Config, rows: int, length: int) -> ForwardFlops:
    """Full rows, each one sequence whose tokens all count."""
    return forward_flops(config, rows * length, rows * length * (length + 1) // 2, rows * length)


def _without(held: Mapping[str, int], name: str, num_bytes: int) -> dict[str, int]:
    """What is held beside `num_bytes` of `name`, which are a program's arguments."""
    return {key: size - num_bytes if key == name else size for key, size in held.items()}
