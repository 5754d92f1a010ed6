"""One decoder layer in the form that decodes fastest on CPU.

The layer is the same function as `qwen2.Block`; its weights are laid out anew. XLA's CPU kernels
run a product [T D] @ [D F] with few rows at half of their speed on square matrices, because they
repack the weights on every call. With the weights as the left operand, [F D] @ [D T], only the
activations are packed: a SwiGLU MLP of 896 x 4864 takes 1.25 instead of 1.83 ms at 32 rows. So
matrices are kept as [out in], q, k and v as one matrix, gate and up as another. Every product
stands between barriers: XLA would fuse elementwise work into it and leave the fast kernels.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.layers import matmul_precision, rotate
from codea1_jax.typing import Array, Float, Params

# Numbers of rows at which the weights are the left operand. With fewer both orders read the weights
# at the speed of memory, with more packing them is cheap; between these numbers that order's
# kernels are slow.
_WEIGHTS_FIRST = (16, 32, 64, 96, 128)


def fuse_layer(layer: Params) -> Params:
    """The weights of one layer (`qwen2.Block` without the layer axis) as `apply_layer` wants them.

    Returns:
      `qkv` [(N+2K)H D] with `qkv_bias`, `o` [D NH], `gate_up` [2F D], `down` [D F] and both norms.
    """
    attention, mlp = layer["attention"], layer["mlp"]
    dim = attention["q"]["kernel"].shape[0]
    qkv = [attention[name] for name in ("q", "k", "v")]
    return {
        "input_norm": layer["input_norm"],
        "post_attention_norm": layer["post_attention_norm"],
        "qkv": jnp.concatenate([part["kernel"].reshape(dim, -1).T for part in qkv]),
        "qkv_bias": jnp.concatenate([part["bias"].reshape(-1) for part in qkv]),
        "o": attention["o"]["kernel"].reshape(-1, dim).T,
        "gate_up": jnp.concatenate([mlp[name]["kernel"].T for name in ("gate", "up")]),
        "down": mlp["down"]["kernel"].T,
    }


def apply_layer(
    config: Qwen2Config,
    layer: Params,
    x: Float[Array, "B L D"],
    rotary: tuple[Array, Array],
    attend: Callable[[Array, Array, Array], tuple[Array, Any]],
) -> tuple[Float[Array, "B L D"], Any]:
    """`qwen2.Block.__call__` on the weights of `fuse_layer`."""
    lead, h = x.shape[:2], config.head_dim
    n, k = config.num_attention_heads, config.num_key_value_heads
    with jax.named_scope("attention"):
        normed = _norm(x, layer["input_norm"]["scale"], config.rms_norm_eps)
        qkv = linear(normed, layer["qkv"]) + layer["qkv_bias"][None, None]
        q, key, value = jnp.split(qkv.reshape(*lead, n + 2 * k, h), (n, n + k), axis=2)
        out, extra = attend(rotate(q, rotary), rotate(key, rotary), value)
        x = x + linear(out.reshape(*lead, n * h), layer["o"])
    with jax.named_scope("mlp"):
        normed = _norm(x, layer["post_attention_norm"]["scale"], config.rms_norm_eps)
        x = x + _swiglu(normed, layer["gate_up"], layer["down"])
    return x, extra


def linear(x: Float[Array, "B L I"], weights: Float[Array, "O I"]) -> Float[Array, "B L O"]:
    """x @ weights^T in the dtype of both."""
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) in _WEIGHTS_FIRST:
        y = _product(weights, rows, 1).T
    else:
        y = _product(rows, weights, 1)
    return y.reshape(*x.shape[:-1], -1)


def _swiglu(
    x: Float[Array, "B L D"], gate_up: Float[Array, "2F D"], down: Float[Array, "D F"]
) -> Float[Array, "B L D"]:
    """down @ (silu(gate @ x) * (up @ x)); with the weights first nothing wide is transposed."""
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) in _WEIGHTS_FIRST:
        gate, up = jnp.split(_product(gate_up, rows, 1), 2)
        y = _product(down, _gated(gate, up), 0).T
    else:
        gate, up = jnp.split(_product(rows, gate_up, 1), 2, axis=1)
        y = _product(_gated(gate, up), down, 1)
    return y.reshape(x.shape)


def _gated(gate: Array, up: Array) -> Array:
    """silu(gate) * up, rounded once: a rounding after each step makes it half as slow again."""
    wide = gate.astype(jnp.float32)
    return (wide * up.astype(jnp.float32) / (1 + jnp.exp(-wide))).astype(gate.dtype)


def _product(first: Array, second: Array, axis: int) -> Array:
    """Sums over axis 1 of `first` and `axis` of `second`; nothing is fused into it."""
    first, second = lax.optimization_barrier((first, second))
    y = lax.dot_general(
        first,
        second,
        (((1,), (axis,)), ((), ())),
        precision=matmul_precision(first.dtype),
        preferred_element_type=first.dtype,
    )
    return lax.optimization_barrier(y)


def _norm(x: Array, scale: Array, epsilon: float) -> Array:
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    scale = scale.astype(jnp.float32)[None, None]
    return (wide * lax.rsqrt(mean_square + epsilon) * scale).astype(x.dtype)
