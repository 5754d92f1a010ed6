"""What goes into a rollout engine and what comes out."""

import dataclasses
from typing import Literal

import numpy as np

FinishReason = Literal["stop", "length"]


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn.

    `temperature` 0 means greedy. `top_p` 1 and `top_k` 0 mean no truncation. Truncation is applied
    to the temperature-scaled distribution, top-k first, then top-p (Hugging Face's order).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 512
    stop_token_ids: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class GroupRequest:
    """One prompt and how many samples of it are wanted.

    The tokens drawn are a pure function of (policy version, seed, request_id, sample index,
    position) and the parameters: never of what else is in the batch.
    """

    request_id: str
    prompt: tuple[int, ...]
    num_samples: int
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Sample:
    """A finished sample.

    Attributes:
      tokens: int32[R], the generated tokens, the stop token included when one was drawn.
      sampler_logp: float32[R], log-probability of each token under the distribution it was drawn
        from (temperature and truncation applied; greedy: temperature 1, no truncation).
      kept_mass: float32[R], probability mass that survived top-k/top-p (1 without truncation).
      finish_reason: "stop" (a stop token was drawn) or "length".
    """

    request_id: str
    sample_index: int
    prompt: tuple[int, ...]
    tokens: np.ndarray
    sampler_logp: np.ndarray
    kept_mass: np.ndarray
    finish_reason: FinishReason
    policy_version: int
