"""The rollout engine: groups in, finished samples out, one policy version at a time.

A group's prompt is prefilled once and its keys and values are copied to the slots of its samples.
All slots then decode together in a loop on the device; between loops of `decode_chunk` tokens the
host collects what was drawn, yields finished samples and gives their slots to waiting ones, of any
prompt bucket. When nothing waits any more the live rows move to a smaller program.

Exact in float32: the same request gives the same tokens whatever else is in the batch, however many
slots, buckets or devices there are. In bfloat16 the order of additions inside a matmul depends on
its shape, so a token drawn very close to a boundary can change with the number of rows.

Left out: tokens can't be streamed before a sample is finished, and stop strings are the caller's
(tokens after them can be cut exactly, since log-probabilities are per token).
"""

import dataclasses
import time
import weakref
from collections.abc import Iterator, Sequence

import jax
from jax.sharding import Mesh

from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rollout import scheduler
from codea1_jax.rollout.programs import shared_programs
from codea1_jax.rollout.run import RolloutRun, RolloutStats, padded_stops
from codea1_jax.rollout.sampling import Method
from codea1_jax.rollout.scheduler import Buckets
from codea1_jax.rollout.types import GroupRequest, Sample, SamplingParams
from codea1_jax.typing import Params


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """Shapes of the rollout programs.

    Attributes:
      prompt_buckets: prompts are padded to the next of these; the largest is the limit.
      rows: samples that decode at a time; divisible by the mesh's data x fsdp. At least 2 on CPU.
      prefill_rows: prompts that are prefilled at a time, at most; rounded up to the mesh's data x
        fsdp. On CPU a prefill of some hundred tokens runs faster per token than a larger one.
      min_rows: the smallest decode program that leftovers of a batch move to.
      decode_chunk: tokens per loop on the device between two looks of the host. A finished sample
        keeps its slot until the next look; a look costs some milliseconds.
    """

    prompt_buckets: tuple[int, ...]
    rows: int = 32
    prefill_rows: int = 2
    min_rows: int = 8
    decode_chunk: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_buckets", tuple(self.prompt_buckets))
        if not self.prompt_buckets or min(self.prompt_buckets) < 1:
            raise ValueError(
                f"RolloutConfig.prompt_buckets={self.prompt_buckets}: give one or more lengths >= 1"
            )
        for name in ("rows", "prefill_rows", "min_rows", "decode_chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"RolloutConfig.{name}={getattr(self, name)}: must be >= 1")


class RolloutEngine:
    """Samples from a `LanguageModel` on a mesh.

    Args:
      model: gives `decode_view`, `prefill`, `decode` and `logits`.
      mesh: rows are split over (data, fsdp), heads over tensor.
      config: shapes.
      pad_id: fills prompts and finished rows; may equal a stop token, nothing is read from it.
    """

    def __init__(self, model: LanguageModel, mesh: Mesh, config: RolloutConfig, pad_id: int):
        multiple = mesh.shape["data"] * mesh.shape["fsdp"]
        if config.rows % multiple:
            raise ValueError(
                f"RolloutConfig.rows={config.rows} is not divisible by the mesh's data x fsdp = "
                f"{multiple}; choose a multiple"
            )
        if not 0 <= pad_id < model.config.vocab_size:
            raise ValueError(
                f"pad_id={pad_id} is outside the vocabulary of {model.config.vocab_size}"
            )
        self._model = model
        self._config = config
        self._pad_id = pad_id
        self._programs = shared_programs(model, mesh, pad_id, config.decode_chunk)
        # A step of one row takes four times as long as one of two on CPU: XLA multiplies a matrix
        # with a vector in another way.
        least = 2 if self._programs.reads_all_slots and multiple == 1 else 1
        self._buckets = Buckets.halved(
            config.prompt_buckets,
            max(config.rows, least),
            max(config.min_rows, least),
            config.prefill_rows,
            multiple,
        )
        self._view: Params | None = None
        self._view_source: tuple[int, list[weakref.ref[jax.Array]]] | None = None
        self.stats = RolloutStats()  # of the latest `generate`

    @property
    def buckets(self) -> Buckets:
        """The finite lists of shapes this engine compiles for."""
        return self._buckets

    def num_compilations(self) -> int:
        """Programs compiled so far, by all engines of this model, mesh and chunk.

        Constant after `warm_up` and a first `generate` with the same sampling.
        """
        return self._programs.count

    def program_names(self) -> list[str]:
        return self._programs.names()

    def warm_up(self, sampling: SamplingParams) -> None:
        """Compiles every program that `generate` can need with this method and length limit."""
        method = Method.from_params(sampling, self._model.config.vocab_size)
        responses = self._responses(sampling)
        self._programs.warm_up(self._buckets, responses, method, len(padded_stops(sampling)))

    def release(self) -> None:
        """Frees the copy of the weights; the next `generate` makes a new one."""
        self._view = None
        self._view_source = None

    def generate(
        self,
        params: Params,
        groups: Sequence[GroupRequest],
        sampling: SamplingParams,
        *,
        policy_version: int,
    ) -> Iterator[Sample]:
        """Yields each sample of each group once, as soon as it is finished, in no fixed order.

        Args:
          params: of any dtype and sharding; cast and resharded once per policy version.
          policy_version: part of the key of every sample.

        Raises:
          ValueError: at once, if a request or parameter is out of range.
          FloatingPointError: while iterating, if the model's logits are not finite.
        """
        groups = tuple(groups)
        return self._run(params, groups, sampling, self.check(groups, sampling), policy_version)

    def check(self, groups: Sequence[GroupRequest], sampling: SamplingParams) -> Method:
        """Raises ValueError, naming the request or parameter, if `generate` could not serve it."""
        config = self._model.config
        method = Method.from_params(sampling, config.vocab_size)
        scheduler.check_requests(groups, self._buckets, config.vocab_size)
        longest = max((len(group.prompt) for group in groups), default=0)
        bucket = self._buckets.prompt_bucket(longest)
        if bucket + sampling.max_new_tokens > config.max_position_embeddings:
            raise ValueError(
                f"prompt bucket {bucket} + max_new_tokens={sampling.max_new_tokens} exceeds the "
                f"model's {config.max_position_embeddings} positions; lower max_new_tokens or "
                "prompt_buckets"
            )
        return method

    def _run(
        self,
        params: Params,
        groups: tuple[GroupRequest, ...],
        sampling: SamplingParams,
        method: Method,
        policy_version: int,
    ) -> Iterator[Sample]:
        stats = self.stats = RolloutStats()
        compiled_before = self._programs.compile_s
        view = self.view(params, policy_version)
        run = RolloutRun(
            self._programs, self._buckets, view, groups, sampling, method, policy_version,
            self._pad_id, self._responses(sampling), stats,
        )  # fmt: skip
        for sample in run.samples():
            stats.compile_s = self._programs.compile_s - compiled_before
            yield sample
        stats.compile_s = self._programs.compile_s - compiled_before

    def cache_lengths(self, sampling: SamplingParams) -> list[int]:
        """Slots that a row needs for each prompt bucket."""
        return scheduler.cache_lengths(self._buckets, self._responses(sampling))[-1]

    def _responses(self, sampling: SamplingParams) -> list[int]:
        """Tokens of a sample that a cache has room for, at first and in the end."""
        tokens, chunk = sampling.max_new_tokens, self._config.decode_chunk
        limits = (-(-tokens // 2), tokens) if self._programs.reads_all_slots else (tokens,)
        return sorted({-(-limit // chunk) * chunk for limit in limits})

    def view(self, params: Params, policy_version: int) -> Params:
        """The weights as the programs want them, made anew unless these very arrays were seen.

        Arrays are immutable, so the same objects hold the same values. A version that comes with
        other arrays, or arrays with another version, is converted again.
        """
        leaves = jax.tree.leaves(params)
        if self._view_source is not None:
            version, sources = self._view_source
            if (
                version == policy_version
                and len(sources) == len(leaves)
                and all(ref() is leaf for ref, leaf in zip(sources, leaves))
            ):
                return self._view
        self.release()  # before the new copy is made: two do not have to fit
        compiled_before = self._programs.compile_s
        start = time.perf_counter()
        self._view = jax.block_until_ready(self._programs.view(params))
        elapsed_s = time.perf_counter() - start
        self.stats.weights_s += elapsed_s - (self._programs.compile_s - compiled_before)
        self._view_source = (policy_version, [weakref.ref(leaf) for leaf in leaves])
        return self._view
