"""Responses of a checkpoint to chat prompts, through the rollout engine."""

import collections
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Literal

import jax.numpy as jnp

from codea1_jax.coevo.prompts import Message
from codea1_jax.errors import UserError
from codea1_jax.mesh import make_mesh
from codea1_jax.models import hf_io
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.tokenizer import ChatTokenizer
from codea1_jax.rollout.engine import RolloutConfig, RolloutEngine
from codea1_jax.rollout.types import GroupRequest, SamplingParams

_BUCKET = 64  # prompts are padded to a multiple of this


def _request_ids(prompts: Sequence[Sequence[int]]) -> list[str]:
    """Names that follow from the prompts, so that a continued evaluation draws the same tokens."""
    counts: collections.Counter[str] = collections.Counter()
    ids = []
    for prompt in prompts:
        name = hashlib.sha256(repr(list(prompt)).encode()).hexdigest()[:16]
        ids.append(f"{name}-{counts[name]}")
        counts[name] += 1
    return ids


class CheckpointSampler:
    """A checkpoint as a `samples.SampleFn`.

    Args:
      checkpoint: Hugging Face directory or hub id.
      sampling: how tokens are drawn; the stop tokens are the checkpoint's own.
      rows: samples that decode at a time.
      seed: of the draws; a sample depends on it and on its prompt, not on the other prompts.
    """

    def __init__(
        self,
        checkpoint: str | pathlib.Path,
        sampling: SamplingParams,
        *,
        compute_dtype: Literal["float32", "bfloat16"] = "bfloat16",
        attention: Literal["auto", "xla", "pallas"] = "auto",
        rows: int = 32,
        seed: int = 0,
    ):
        directory = hf_io.resolve_directory(checkpoint)
        dtype = jnp.dtype(compute_dtype)
        self._tokenizer = ChatTokenizer(directory)
        config = Qwen2Config.from_directory(directory)
        self._model = LanguageModel(config, compute_dtype=dtype, attention=attention)
        self._mesh = make_mesh()
        self._params = hf_io.load_params(directory, self._model, self._mesh, dtype)
        self._sampling = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_new_tokens=sampling.max_new_tokens,
            stop_token_ids=self._tokenizer.stop_token_ids,
        )
        self._rows = rows
        self._seed = seed
        self.num_tokens = 0  # generated so far

    def __call__(
        self, messages: Sequence[Sequence[Message]], num_samples: int
    ) -> Iterator[tuple[int, Sequence[str]]]:
        prompts = [self._tokenizer.encode_chat(chat) for chat in messages]
        engine = self._engine([len(prompt) for prompt in prompts])
        ids = _request_ids(prompts)
        requests = [
            GroupRequest(request_id, tuple(prompt), num_samples, self._seed)
            for request_id, prompt in zip(ids, prompts)
        ]
        index_of = {request_id: index for index, request_id in enumerate(ids)}
        texts: dict[int, dict[int, str]] = {index: {} for index in range(len(prompts))}
        for sample in engine.generate(self._params, requests, self._sampling, policy_version=0):
            index = index_of[sample.request_id]
            texts[index][sample.sample_index] = self._tokenizer.decode(sample.tokens.tolist())
            self.num_tokens += len(sample.tokens)
            if len(texts[index]) == num_samples:
                of_prompt = texts.pop(index)
                yield index, [of_prompt[n] for n in range(num_samples)]

    def _engine(self, lengths: Sequence[int]) -> RolloutEngine:
        ordered = sorted(lengths)
        # Half of the prompts, nine tenths, all: three shapes to compile, little padding.
        chosen = [ordered[round(q * (len(ordered) - 1))] for q in (0.5, 0.9, 1.0)]
        buckets = sorted({-(-length // _BUCKET) * _BUCKET for length in chosen})
        window = buckets[-1] + self._sampling.max_new_tokens
        if window > self._model.config.max_position_embeddings:
            raise UserError(
                f"--max_new_tokens={self._sampling.max_new_tokens}: with a prompt of {buckets[-1]} "
                f"tokens it exceeds the model's {self._model.config.max_position_embeddings} "
                "positions; lower it"
            )
        multiple = self._mesh.shape["data"] * self._mesh.shape["fsdp"]
        rows = -(-self._rows // multiple) * multiple
        return RolloutEngine(
            self._model,
            self._mesh,
            RolloutConfig(prompt_buckets=tuple(buckets), rows=rows),
            self._tokenizer.pad_id,
        )
