"""What the matrix products of a rollout allow on this machine, measured.

Decoding is bound by the products of activations with weights. The roof of a decode step is one pass
through them, as the sampler's own programs run them and without anything else; prefill's roof is
the same at the shape of a prefill. What separates an engine from it: attention, sampling, norms,
cache writes, padding, rows without a sample, and the host.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.fused import linear
from codea1_jax.models.layers import matmul
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.typing import Array, Params

_REPEATS = 7


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Fastest seconds of the products alone: of a decode step, and of a prefill per token."""

    rows: int
    decode_step_s: float
    prefill_token_s: float

    def seconds(self, num_tokens: int, num_prompt_tokens: int) -> float:
        """Least time to draw `num_tokens` with all rows in use, after prefilling the prompts."""
        steps = num_tokens / self.rows
        return steps * self.decode_step_s + num_prompt_tokens * self.prefill_token_s


def measure(model: LanguageModel, view: Params, rows: int, prefill_tokens: int) -> Roofline:
    """Times the products of one decode step of `rows` rows and of one prefill.

    Args:
      view: a `decode_view` of the model, fused or stacked.
      prefill_tokens: tokens of one prefill program.
    """
    body = _fused_body if isinstance(view["layers"], list) else _stacked_body

    def products(view: Params, x: Array) -> Array:
        return body(model.config, view["layers"], x)

    def step(view: Params, x: Array) -> Array:
        x = lax.optimization_barrier(products(view, x)[0])
        return model.vocab_first_logits(view, x)

    def activations(count: int) -> Array:
        return jnp.ones((1, count, model.config.hidden_size), model.compute_dtype)

    return Roofline(
        rows,
        _fastest_s(step, view, activations(rows)),
        _fastest_s(products, view, activations(prefill_tokens)) / prefill_tokens,
    )


def _fused_body(config: Qwen2Config, layers: list[Params], x: Array) -> Array:
    width, inner = config.num_attention_heads * config.head_dim, config.intermediate_size
    for layer in layers:
        x = x + linear(linear(x, layer["qkv"])[..., :width], layer["o"])
        x = x + linear(linear(x, layer["gate_up"])[..., :inner], layer["down"])
    return x


def _stacked_body(config: Qwen2Config, layers: Params, x: Array) -> Array:
    def one(x: Array, layer: Params) -> tuple[Array, None]:
        def product(x: Array, part: str, name: str, num_in: int = 1) -> Array:
            return matmul(x, layer[part][name]["kernel"], num_in, x.dtype)

        q, k, v = (product(x, "attention", name) for name in ("q", "k", "v"))
        x = x + product(q + (k.sum() + v.sum()), "attention", "o", 2)
        inner = product(x, "mlp", "gate") + product(x, "mlp", "up")
        return x + product(inner, "mlp", "down"), None

    return lax.scan(one, x, layers)[0]


def _fastest_s(function: Callable[..., Array], *args: Any) -> float:
    program = jax.jit(function).lower(*args).compile()
    jax.block_until_ready(program(*args))
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(program(*args))
        times.append(time.perf_counter() - start)
    return min(times)
