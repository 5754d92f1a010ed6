"""Building blocks of the decoder: linear maps, RMSNorm, rotary positions, SwiGLU.

Parameters are kept in whatever dtype they were given (float32 masters, usually) and cast to
`compute_dtype` where they are used. Every parameter carries `axes`, the logical names of its
dimensions (see models/sharding.py).
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from codea1_jax.models.sharding import constrain
from codea1_jax.typing import Array, Float, Int

MATMUL_RESULT = "matmul"  # what remat="dots" keeps
INIT_STDDEV = 0.02  # `initializer_range` of every Qwen2.5 config


def matmul_precision(dtype: Any) -> lax.Precision:
    """float32 means float32: a TPU would otherwise multiply in bfloat16."""
    return lax.Precision.HIGHEST if jnp.dtype(dtype) == jnp.float32 else lax.Precision.DEFAULT


def keep_apart(values: Any) -> Any:
    """Keeps XLA's CPU backend from fusing elementwise work into the matmuls on either side.

    It would then leave its fast matrix kernels: a SwiGLU MLP's backward pass takes three times as
    long. Decided when the program is lowered, for the platform it is lowered for.
    """
    return lax.platform_dependent(values, cpu=lax.optimization_barrier, default=lambda v: v)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def matmul(
    x: Float[Array, "..."], kernel: Float[Array, "..."], num_in: int, compute_dtype: Any
) -> Float[Array, "..."]:
    """[*B *D] @ [*D *F] in `compute_dtype`, where D stands for `num_in` dimensions.

    The kernel's gradient is summed over tokens in float32 whatever the compute dtype is.
    """
    return _matmul_forward(x, kernel, num_in, compute_dtype)[0]


def _matmul_forward(x: Array, kernel: Array, num_in: int, compute_dtype: Any) -> tuple[Array, Any]:
    contract = (tuple(range(x.ndim - num_in, x.ndim)), tuple(range(num_in)))
    apart_x, cast_kernel = keep_apart((x, kernel.astype(compute_dtype)))
    y = _dot(apart_x, cast_kernel, contract, compute_dtype)
    return keep_apart(y), (x, kernel)


def _matmul_backward(
    num_in: int, compute_dtype: Any, residuals: tuple[Array, Array], y_bar: Array
) -> tuple[Array, Array]:
    x, kernel = residuals
    num_batch = x.ndim - num_in
    x, cast_kernel, y_bar = keep_apart((x, kernel.astype(compute_dtype), y_bar))
    out_dims = tuple(range(num_batch, y_bar.ndim)), tuple(range(num_in, kernel.ndim))
    x_bar = _dot(y_bar, cast_kernel, out_dims, compute_dtype)
    batch_dims = tuple(range(num_batch))
    kernel_bar = _dot(x, y_bar, (batch_dims, batch_dims), jnp.float32)
    x_bar, kernel_bar = keep_apart((x_bar, kernel_bar))
    return x_bar, kernel_bar.astype(kernel.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


def _dot(a: Array, b: Array, contract: Any, out_dtype: Any) -> Array:
    precision = matmul_precision(a.dtype)
    return lax.dot_general(
        a, b, (contract, ((), ())), precision=precision, preferred_element_type=out_dtype
    )


class Linear(nnx.Module):
    """A linear map over one or more trailing dimensions, e.g. [... D] -> [... N H]."""

    def __init__(
        self,
        in_shape: tuple[int, ...],
        out_shape: tuple[int, ...],
        axes: tuple[str, ...],
        *,
        use_bias: bool,
        compute_dtype: Any,
        rngs: nnx.Rngs,
    ):
        self.num_in = len(in_shape)
        self.compute_dtype = compute_dtype
        kernel = INIT_STDDEV * jax.random.normal(rngs.params(), in_shape + out_shape, jnp.float32)
        self.kernel = nnx.Param(kernel, axes=axes)
        self.use_bias = use_bias
        if use_bias:
            self.bias = nnx.Param(jnp.zeros(out_shape, jnp.float32), axes=axes[self.num_in :])

    def __call__(self, x: Array) -> Array:
        y = matmul(x, self.kernel[...], self.num_in, self.compute_dtype)
        y = checkpoint_name(y, MATMUL_RESULT)
        if self.use_bias:
            bias = self.bias[...].astype(self.compute_dtype)
            y = y + jnp.expand_dims(bias, range(y.ndim - bias.ndim))
        return y


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation over the last dimension, computed in float32."""

    def __init__(self, dim: int, epsilon: float):
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.ones((dim,), jnp.float32), axes=("norm",))

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        scale = jnp.expand_dims(self.scale[...].astype(jnp.float32), range(x.ndim - 1))
        return (wide * lax.rsqrt(mean_square + self.epsilon) * scale).astype(x.dtype)


def rotary_tables(
    positions: Int[Array, "B L"], head_dim: int, theta: float
) -> tuple[Float[Array, "B L 1 H/2"], Float[Array, "B L 1 H/2"]]:
    """Cosines and sines of the rotation angles.

    float32 throughout: bfloat16 has 8 bits of mantissa, so positions above 256 would collide.
    """
    exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequency = 1.0 / (jnp.float32(theta) ** exponent)
    angle = positions.astype(jnp.float32)[:, :, None, None] * frequency[None, None, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Float[Array, "B L N H"], rotary: tuple[Array, Array]) -> Float[Array, "B L N H"]:
    """Rotates (x[i], x[i + H/2]) pairs, Hugging Face's half-split convention."""
    cos, sin = rotary
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


class MLP(nnx.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)); gate and up are [D F], down is [F D]."""

    def __init__(self, dim: int, width: int, *, compute_dtype: Any, rngs: nnx.Rngs):
        common: dict[str, Any] = dict(use_bias=False, compute_dtype=compute_dtype, rngs=rngs)
        self.gate = Linear((dim,), (width,), ("embed", "mlp"), **common)
        self.up = Linear((dim,), (width,), ("embed", "mlp"), **common)
        self.down = Linear((width,), (dim,), ("mlp", "embed"), **common)

    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        inner = jax.nn.silu(self.gate(x)) * self.up(x)
        return self.down(constrain(inner, "batch", "length", "act_mlp"))


class VocabTable(nnx.Module):
    """A [V D] table: token embeddings, the output head, or (tied) both."""

    def __init__(self, vocab_size: int, dim: int, *, compute_dtype: Any, rngs: nnx.Rngs):
        self.compute_dtype = compute_dtype
        table = INIT_STDDEV * jax.random.normal(rngs.params(), (vocab_size, dim), jnp.float32)
        self.table = nnx.Param(table, axes=("vocab", "embed"))

    def embed(self, tokens: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        # Gather the fsdp shards of the table first: looking up in a table that is split along D
        # would make XLA reshard (or fully replicate) the much larger [B L D] result.
        table = constrain(self.table[...].astype(self.compute_dtype), "vocab", "act_embed")
        return table[tokens]

    def logits(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """float32 scores; products in the compute dtype, summed in float32."""
        return lax.dot_general(
            hidden.astype(self.compute_dtype),
            self.table[...].astype(self.compute_dtype),
            (((hidden.ndim - 1,), (1,)), ((), ())),
            precision=matmul_precision(self.compute_dtype),
            preferred_element_type=jnp.float32,
        )


def repeats_for_tensor(num_kv_heads: int, group_size: int, tensor: int) -> int:
    """How often each key/value head is repeated so that the heads divide over `tensor` shards.

    The smallest divisor r of `group_size` with `num_kv_heads * r` a multiple of `tensor`; 1 when
    they already divide. E.g. 2 key/value heads, 12 query heads, tensor=4: r=2.
    """
    if num_kv_heads % tensor == 0:
        return 1
    for repeats in range(2, group_size + 1):
        if group_size % repeats == 0 and num_kv_heads * repeats % tensor == 0:
            return repeats
    raise ValueError(
        f"{num_kv_heads * group_size} query heads do not divide over tensor={tensor}"
        f" (gcd {math.gcd(num_kv_heads * group_size, tensor)})"
    )
