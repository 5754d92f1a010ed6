"""The learner: log-probs of given tokens, and one optimizer step per mini-batch.

Gradients of micro-batches are added up as sums over tokens and divided once by the mini-batch's
count (of tokens or sequences), so a step does not depend on how samples were packed, padded,
ordered or sharded. The host walks over the micro-batches; each runs one jitted program whose shapes
come from a short list.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from codea1_jax import distributed, offload
from codea1_jax.models import sharding
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rl import optim
from codea1_jax.rl.batching import TrainBatch, default_length_buckets
from codea1_jax.rl.losses import LossConfig, LossFn, LossOutput, policy_loss, sft_loss
from codea1_jax.rl.optim import OptimizerConfig
from codea1_jax.rl.packing import PackedRows, micro_batches
from codea1_jax.rl.token_logp import response_logp
from codea1_jax.typing import Array, Float32, Int32, Params


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """Sizes of the learner's programs.

    Attributes:
      length_buckets: row lengths that programs are compiled for.
      micro_batch_tokens: padded tokens per micro-batch, over all devices.
      tokens_per_chunk: tokens whose logits exist at a time, per device that rows are spread over.
      share_prefix: compute a prompt once for all samples of it that fit one row.
    """

    length_buckets: tuple[int, ...] = default_length_buckets(8192)
    micro_batch_tokens: int = 16384
    tokens_per_chunk: int = 1024
    share_prefix: bool = True

    def __post_init__(self) -> None:
        buckets = tuple(self.length_buckets)
        object.__setattr__(self, "length_buckets", buckets)
        if not buckets or list(buckets) != sorted(set(buckets)) or buckets[0] < 2:
            raise ValueError(
                f"LearnerConfig.length_buckets={buckets}; it must be ascending lengths from 2 up"
            )
        for name in ("micro_batch_tokens", "tokens_per_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"LearnerConfig.{name}={getattr(self, name)}; it must be positive")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("params", "opt_state", "num_updates", "num_skipped"),
    meta_fields=(),
)
@dataclasses.dataclass(frozen=True)
class TrainState:
    """What an update changes, and what a checkpoint must hold.

    Attributes:
      params: float32 master weights.
      opt_state: Adam's moments, sharded like the parameters.
      num_updates: int32, optimizer steps taken.
      num_skipped: int32, steps not taken: gradient not finite, or no token counted.
    """

    params: Params
    opt_state: Any
    num_updates: Array
    num_skipped: Array


class Learner:
    """Computes log-probs and updates for one model on one mesh. Holds programs, no state.

    Args:
      offload_optimizer: states keep Adam's moments in the host's memory; they are on the devices
        for the optimizer's program only.
    """

    def __init__(
        self,
        model: LanguageModel,
        mesh: Mesh,
        optimizer: OptimizerConfig,
        loss: LossConfig,
        config: LearnerConfig,
        offload_optimizer: bool = False,
    ):
        self.model = model
        self.mesh = mesh
        self.optimizer = optimizer
        self.loss = loss
        self.config = config
        self.offload_optimizer = offload_optimizer
        self._num_row_shards = math.prod(mesh.shape[axis] for axis in sharding.RULES["batch"])
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._param_shardings = sharding.param_shardings(model, mesh)
        self._state_shardings = self._make_state_shardings()

        self._init = jax.jit(self._init_state, out_shardings=self._state_shardings)
        # What the host reads is replicated, so that every process of a run can read it.
        self._logprobs = jax.jit(self._row_logprobs, out_shardings=self._replicated)
        gradients = partial(jax.jit, out_shardings=(self._param_shardings, self._replicated))
        self._policy_gradients = gradients(
            partial(self._row_gradients, partial(policy_loss, config=loss))
        )
        self._sft_gradients = gradients(partial(self._row_gradients, sft_loss))
        self._add = jax.jit(
            partial(jax.tree.map, jnp.add),
            donate_argnums=0,
            out_shardings=self._param_shardings,
        )
        self._apply = jax.jit(
            self._apply_gradients,
            donate_argnums=0,
            out_shardings=(self._state_shardings, self._replicated),
        )

    # State

    def init_state(self, params: Params) -> TrainState:
        """A fresh state around a float32 copy of `params`, which stay usable.

        `params` are on this learner's mesh (as `hf_io.load_params` puts them) or on the host.
        """
        with jax.set_mesh(self.mesh):
            return self._between_updates(self._init(params))

    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of a state between updates: a checkpoint restores to it."""
        shardings = self._state_shardings
        if self.offload_optimizer:
            shardings = _with_moments(shardings, offload.host_shardings)
        return self._shapes(shardings)

    def _shapes(self, shardings: Any) -> TrainState:
        shapes = jax.eval_shape(self._init_state, self.model.abstract_params())
        return jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
            shapes,
            shardings,
        )

    def _between_updates(self, state: TrainState) -> TrainState:
        return _with_moments(state, offload.to_host) if self.offload_optimizer else state

    def _init_state(self, params: Params) -> TrainState:
        # A copy even where the dtype already fits: the state is donated to every update, and the
        # caller may keep `params` as the frozen reference.
        params = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
        return TrainState(
            params, optim.init_moments(self.optimizer, params), jnp.int32(0), jnp.int32(0)
        )

    def _make_state_shardings(self) -> Any:
        """A TrainState with a sharding in place of every array."""
        counter: Any = self._replicated
        moments = optax.ScaleByAdamState(counter, self._param_shardings, self._param_shardings)
        return TrainState(self._param_shardings, moments, counter, counter)

    # Log-probs

    def logprobs(
        self,
        params: Params,
        tokens: Int32[np.ndarray, "B L"],
        lengths: Int32[np.ndarray, "B"],
        response_mask: Float32[np.ndarray, "B L"],
        temperature: float = 1.0,
    ) -> tuple[Float32[np.ndarray, "B L"], Float32[np.ndarray, "B L"]]:
        """Log-prob of each response token and entropy of the distribution it came from.

        Args:
          params: of any float dtype; the policy's or the reference's.
          temperature: divides the logits.

        Returns:
          (logp, entropy), zero outside the mask.
        """
        if temperature <= 0.0:
            raise ValueError(f"temperature={temperature}; log-probs need one above 0")
        zeros = np.zeros(tokens.shape, np.float32)
        batch = TrainBatch(
            tokens, lengths, response_mask, np.zeros(len(tokens), np.float32), *(zeros,) * 4
        )
        logp, entropy = np.zeros_like(zeros), np.zeros_like(zeros)
        for micro in self.micro_batches(batch):
            with jax.set_mesh(self.mesh):
                values = self._logprobs(params, self._to_device(micro), np.float32(temperature))
            for whole, part in zip((logp, entropy), jax.device_get(values), strict=True):
                micro.restore(part, into=whole)
        return logp, entropy

    def score(
        self, params: Params, batch: TrainBatch
    ) -> tuple[Float32[np.ndarray, "B L"], Float32[np.ndarray, "B L"]]:
        """`logprobs` of a batch at the loss's temperature: its `old_logp` or `ref_logp`."""
        return self.logprobs(
            params, batch.tokens, batch.lengths, batch.response_mask, self.loss.temperature
        )

    def _row_logprobs(
        self, params: Params, rows: dict[str, Array], temperature: Array
    ) -> tuple[Float32[Array, "B L"], Float32[Array, "B L"]]:
        num_rows, length = rows["tokens"].shape
        hidden = self.model.hidden(
            params, rows["tokens"], rows["positions"], rows["segment_ids"], rows["branch_ids"]
        )  # [B, L, D]
        rows_per_shard = max(num_rows // self._num_row_shards, 1)
        head = params["embedder" if self.model.config.tie_word_embeddings else "head"]
        return response_logp(
            head["table"],
            hidden,
            rows["hidden_index"],
            rows["targets"],
            rows["response_mask"],
            temperature,
            chunk_length=min(max(self.config.tokens_per_chunk // rows_per_shard, 1), length),
        )

    # Updates

    def update(
        self, state: TrainState, batch: TrainBatch, training_step: int
    ) -> tuple[TrainState, dict[str, float]]:
        """One step on a mini-batch with its advantages, `old_logp` and `ref_logp`.

        `state` is donated: do not use it again. A step whose gradient is not finite, or that
        counts no token, leaves parameters and moments alone and is counted.

        Args:
          training_step: counts from 1; sets the learning rate.

        Returns:
          (state, metrics). Metrics are token means over the mini-batch, before the step.
        """
        return self._update(
            self._policy_gradients, state, batch, training_step, self.loss.temperature
        )

    def sft_update(
        self, state: TrainState, batch: TrainBatch, training_step: int
    ) -> tuple[TrainState, dict[str, float]]:
        """One step on the mean cross-entropy of the response tokens; otherwise as `update`."""
        return self._update(self._sft_gradients, state, batch, training_step, 1.0)

    def gradients(self, params: Params, batch: TrainBatch) -> tuple[Params, dict[str, float]]:
        """The objective's gradient sum over the mini-batch, undivided, and the metrics.

        None stands for the zero gradient of a mini-batch without counted tokens.
        """
        grads, _, metrics = self._accumulate(
            self._policy_gradients, params, batch, self.loss.temperature
        )
        return grads, metrics

    def _update(
        self,
        program: Any,
        state: TrainState,
        batch: TrainBatch,
        training_step: int,
        temperature: float,
    ) -> tuple[TrainState, dict[str, float]]:
        lr = self.optimizer.peak_lr * optim.lr_multiplier(self.optimizer, training_step)
        grads, count, metrics = self._accumulate(program, state.params, batch, temperature)
        metrics["lr"] = lr
        if grads is None:
            state = dataclasses.replace(state, num_skipped=state.num_skipped + 1)
            return state, metrics | {"grad_norm": 0.0, "is_skipped": 1.0}
        with jax.set_mesh(self.mesh):
            state, (grad_norm, is_taken) = self._apply(
                _with_moments(state, offload.to_device), grads, np.float32(count), np.float32(lr)
            )
        metrics["grad_norm"] = float(grad_norm)
        metrics["is_skipped"] = 1.0 - float(is_taken)
        return self._between_updates(state), metrics

    def _accumulate(
        self, program: Any, params: Params, batch: TrainBatch, temperature: float
    ) -> tuple[Params | None, float, dict[str, float]]:
        """(gradient sum, what to divide it by, metrics) of a mini-batch."""
        grads = None
        outputs = []
        for micro in self.micro_batches(batch):
            with jax.set_mesh(self.mesh):
                part, output = program(params, self._to_device(micro), np.float32(temperature))
                grads = part if grads is None else self._add(grads, part)
            del part  # else it would live on while the next one is computed
            outputs.append(output)
        outputs = jax.device_get(outputs)
        count = sum(float(output.divisor) for output in outputs)
        return grads, count, _combine(outputs, count, batch)

    def _row_gradients(
        self, loss_fn: LossFn, params: Params, rows: dict[str, Array], temperature: Array
    ) -> tuple[Params, LossOutput]:
        """Gradient of one micro-batch's loss sum, float32."""

        def loss_sum(params: Params) -> tuple[Array, LossOutput]:
            logp, entropy = self._row_logprobs(params, rows, temperature)
            output = loss_fn(logp, entropy, rows)
            return output.loss_sum, output

        return jax.grad(loss_sum, has_aux=True)(params)

    def _apply_gradients(
        self, state: TrainState, grads: Params, count: Array, lr: Array
    ) -> tuple[TrainState, tuple[Array, Array]]:
        params, opt_state, grad_norm, is_taken = optim.clipped_step(
            self.optimizer, state.params, state.opt_state, grads, count, lr
        )
        taken = is_taken.astype(jnp.int32)
        state = TrainState(
            params, opt_state, state.num_updates + taken, state.num_skipped + 1 - taken
        )
        return state, (grad_norm, is_taken)

    # Programs

    def lowered(self, num_rows: int, length: int) -> dict[str, Callable[[], jax.stages.Lowered]]:
        """What lowers each program from shapes alone: its arguments need not exist.

        Returns:
          By name: "init" a state, "logprobs" of the policy, "reference" log-probs in the compute
          dtype, "gradients" of one micro-batch of num_rows x length tokens, "add" them up, and the
          optimizer's step, "apply".
        """
        state = self._shapes(self._state_shardings)
        reference = jax.tree.map(
            lambda p: jax.ShapeDtypeStruct(p.shape, self.model.compute_dtype, sharding=p.sharding),
            state.params,
        )
        rows = {
            name: jax.ShapeDtypeStruct(
                (num_rows, length), dtype, sharding=sharding.batch_sharding(self.mesh)
            )
            for name, dtype in PackedRows.dtypes().items()
        }
        scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=self._replicated)

        def lower(program: Any, *args: Any) -> Callable[[], jax.stages.Lowered]:
            def run() -> jax.stages.Lowered:
                with jax.set_mesh(self.mesh):
                    return program.lower(*args)

            return run

        return {
            "init": lower(self._init, state.params),
            "logprobs": lower(self._logprobs, state.params, rows, scalar),
            "reference": lower(self._logprobs, reference, rows, scalar),
            "gradients": lower(self._policy_gradients, state.params, rows, scalar),
            "add": lower(self._add, state.params, state.params),
            "apply": lower(self._apply, state, state.params, scalar, scalar),
        }

    # Rows

    def micro_batches(self, batch: TrainBatch) -> list[PackedRows]:
        """How a mini-batch is packed for this learner's programs."""
        if np.any(batch.response_mask[:, 0]):
            raise ValueError("response_mask is set in column 0; a first token has no log-prob")
        return micro_batches(
            batch,
            length_buckets=self.config.length_buckets,
            max_tokens=self.config.micro_batch_tokens,
            row_multiple=self._num_row_shards,
            share_prefix=self.config.share_prefix,
        )

    def _to_device(self, micro: PackedRows) -> dict[str, Array]:
        return distributed.put(micro.arrays(), sharding.batch_sharding(self.mesh))


def _with_moments(state: TrainState, change: Callable[[Any], Any]) -> TrainState:
    """The state, or its shardings, with both moments replaced by what `change` makes of them."""
    mu, nu = change((state.opt_state.mu, state.opt_state.nu))
    return dataclasses.replace(state, opt_state=state.opt_state._replace(mu=mu, nu=nu))


def _combine(outputs: list[LossOutput], count: float, batch: TrainBatch) -> dict[str, float]:
    """Adds up micro-batches' sums and divides once."""
    num_tokens = batch.num_response_tokens
    metrics = {
        "num_tokens": float(num_tokens),
        "num_rows": float(np.count_nonzero(batch.response_mask.sum(axis=1))),
        "num_micro_batches": float(len(outputs)),
    }
    if not outputs:
        return metrics | {"loss": 0.0}
    metrics["loss"] = sum(float(output.loss_sum) for output in outputs) / count
    for name in outputs[0].sums:
        metrics[name] = sum(float(output.sums[name]) for output in outputs) / num_tokens
    for name in outputs[0].maxima:
        metrics[name] = max(float(output.maxima[name]) for output in outputs)
    return metrics
