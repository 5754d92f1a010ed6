"""Attention on TPU: Pallas kernels behind the signatures of `models/attention.py`.

| here | in the place of | kernel |
|---|---|---|
| `attend_full` | `attention.attend_full` | JAX's splash attention, forward and backward |
| `attend_stack` | `attention.attend_stack` | one query a row, reads a row's live slots only |

Splash knows two kinds of masks. Rows without branches use the static one, causal, with segment ids:
it takes no memory. What a branch sees depends on data, so rows with branches hand over their whole
mask, [L L] a row; in return blocks in which nothing is visible (other segments and branches) are
skipped. JAX's own decode kernels want keys and values in pages, with another layout than the
cache's; the one here reads the cache where it is.

`refuse_full` and `refuse_stack` say what the kernels do not take; XLA's form is used there.

Nothing here has run on a TPU: the kernels compile for the slices of `codea1 plan`, and the tests
check their results in Pallas's interpreter.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash_mask
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask_info as mask_info,
)

from codea1_jax.errors import UserError
from codea1_jax.models.attention import MASKED_SCORE, repeated_for_tensor, segment_mask
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.layers import MATMUL_RESULT, matmul_precision
from codea1_jax.models.sharding import CACHE_AXES, ambient_axis_size, constrain, partition_spec
from codea1_jax.typing import Array, Float, Float32, Int

_LANES = 128  # rows and columns of a block are multiples of this
_LARGEST_BLOCK = 512
_HEADS = ("batch", "length", "act_heads", "head_dim")
_KV_HEADS = ("batch", "length", "act_kv_heads", "head_dim")
# Slots of the cache per step of the decode kernel, the largest that divides its length. Smaller
# ones have transfers too short for a step's own cost; the smallest is a packed bfloat16 tile.
_SLOT_BLOCKS = (512, 256, 128, 64, 32, 16)


Choice = Literal["auto", "xla", "pallas"]


def why_xla(choice: Choice, refused: str) -> str:
    """Why XLA's form is taken on the ambient mesh; empty if the kernel is.

    Args:
      refused: of `refuse_full` or `refuse_stack`.

    Raises:
      UserError: "pallas" was chosen where it cannot be.
    """
    if choice == "xla":
        return "attention='xla'"
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None or device.platform != "tpu":
        refused = "the mesh has no TPUs"
    if choice == "pallas" and refused:
        raise UserError(f"attention='pallas' is refused: {refused}; use 'auto' or 'xla'")
    return refused


def refuse_full(dtype: Any) -> str:
    """Why `attend_full` does not take such arrays; empty if it does."""
    if dtype == jnp.float32:
        return "splash multiplies float32 in bfloat16"
    return ""


def refuse_stack(config: Qwen2Config, num_slots: int) -> str:
    """Why `attend_stack` does not take a cache of so many slots; empty if it does."""
    tensor, num_kv = ambient_axis_size("tensor"), config.num_key_value_heads
    if config.head_dim % _LANES:
        return f"head_dim={config.head_dim} is no multiple of {_LANES}"
    if num_slots % _SLOT_BLOCKS[-1]:
        return f"a cache of {num_slots} slots is no multiple of {_SLOT_BLOCKS[-1]}"
    if num_kv % tensor:
        return f"{num_kv} key/value heads do not divide over tensor={tensor}"
    return ""


def attend_full(
    q: Float[Array, "B L N H"],
    k: Float[Array, "B L K H"],
    v: Float[Array, "B L K H"],
    segment_ids: Int[Array, "B L"],
    branch_ids: Int[Array, "B L"] | None = None,
    *,
    interpret: bool = False,
) -> Float[Array, "B L N H"]:
    """`attention.attend_full` as a splash kernel; differentiable in q, k and v.

    Args:
      interpret: run the kernel in Pallas's interpreter, on any device.
    """
    length, n = q.shape[1:3]
    k, v = (repeated_for_tensor(x, n) for x in (k, v))
    block = min(_LARGEST_BLOCK, -(-length // _LANES) * _LANES)
    pad = -length % block
    q, k, v = (jnp.pad(x, ((0, 0), (0, pad), (0, 0), (0, 0))) for x in (q, k, v))
    ids = [segment_ids] if branch_ids is None else [segment_ids, branch_ids]
    ids = [jnp.pad(x, ((0, 0), (0, pad))) for x in ids]

    def local(q: Array, k: Array, v: Array, *ids: Array) -> Array:
        q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))  # [B N L H]
        # The kernel does not scale.
        q = q * jnp.asarray(1.0 / math.sqrt(q.shape[-1]), q.dtype)
        one_row = functools.partial(_attend_row, block, interpret)
        return jnp.swapaxes(jax.vmap(one_row)(q, k, v, *ids), 1, 2)

    axes = (_HEADS, _KV_HEADS, _KV_HEADS, *(_HEADS[:2] for _ in ids))
    out = _on_each_device(local, axes, (q, k, v, *ids))
    return constrain(out[:, :length], *_HEADS)


def _attend_row(
    block: int,
    interpret: bool,
    q: Float[Array, "N L H"],
    k: Float[Array, "K L H"],
    v: Float[Array, "K L H"],
    segment_ids: Int[Array, "L"],
    branch_ids: Int[Array, "L"] | None = None,
) -> Float[Array, "N L H"]:
    """One row on one device."""
    n, length, _ = q.shape
    sizes = splash.BlockSizes(*(block,) * 8)
    common: dict[str, Any] = dict(block_sizes=sizes, interpret=interpret)
    common["residual_checkpoint_name"] = MATMUL_RESULT
    if branch_ids is None:
        causal = splash_mask.MultiHeadMask([splash_mask.CausalMask((length, length))] * n)
        kernel = splash.make_splash_mha(causal, head_shards=1, q_seq_shards=1, **common)
        ids = splash.SegmentIds(segment_ids, segment_ids)
        return cast(Array, kernel(q, k, v, segment_ids=ids))
    where = (segment_ids[None], branch_ids[None], jnp.arange(length))
    # Padding sees itself: a query whose blocks are all skipped would be divided by zero.
    mask = segment_mask(where, where) | jnp.eye(length, dtype=bool)[None]
    info, _ = mask_info.process_dynamic_mask(mask, (block, block))
    transposed, _ = mask_info.process_dynamic_mask_dkv(mask, (block, block))
    # What `make_splash_mha` does, but for a flag that it turns into an array and then reads.
    kernel = splash.SplashAttentionKernel(
        info,
        info,
        transposed,
        is_mqa=False,
        save_residuals=False,
        mask_value=splash.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=None,
        mask_function=None,
        **common,
    )
    return cast(Array, kernel(q, k, v))


def attend_stack(
    q: Float[Array, "B 1 N H"],
    k: Float[Array, "B Y S K H"],
    v: Float[Array, "B Y S K H"],
    layer: Int[Array, ""],
    positions: Int[Array, "B"],
    *,
    interpret: bool = False,
) -> Float[Array, "B 1 N H"]:
    """`attention.attend_stack` as a kernel that reads slots up to positions[b], in blocks.

    Args:
      interpret: run the kernel in Pallas's interpreter, on any device.
    """
    whole = jnp.minimum(positions, k.shape[2] - 1)
    axes = (_HEADS, CACHE_AXES, CACHE_AXES, (), ("batch",))
    local = functools.partial(_decode_rows, interpret)
    return constrain(_on_each_device(local, axes, (q, k, v, layer, whole)), *_HEADS)


def _decode_rows(
    interpret: bool, q: Array, k: Array, v: Array, layer: Array, positions: Array
) -> Float[Array, "B 1 N H"]:
    """Some rows and heads on one device."""
    rows, _, slots, num_kv, h = k.shape
    block = next(size for size in _SLOT_BLOCKS if slots % size == 0)
    heads: tuple[int, ...] = (num_kv, h)
    if num_kv == 1:  # [S 1 H] would be padded to pairs of heads, in a copy
        k, v, heads = k[:, :, :, 0], v[:, :, :, 0], (h,)

    def at(row: Array, step: Array, layer_ref: Any, position_ref: Any) -> tuple[Any, ...]:
        # Beyond the live slots: the block that is there already, so that nothing is fetched.
        last = position_ref[row] // block
        return row, layer_ref[0], jnp.minimum(step, last), *(0 for _ in heads)

    cached = pl.BlockSpec((None, None, block, *heads), at)
    one_row = pl.BlockSpec((None, None, *q.shape[2:]), lambda row, step, *_: (row, 0, 0, 0))
    n = q.shape[2]
    return pl.pallas_call(
        functools.partial(_decode_kernel, block, num_kv),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(rows, slots // block),
            in_specs=[one_row, cached, cached],
            out_specs=one_row,
            scratch_shapes=[pltpu.VMEM((n, width), jnp.float32) for width in (1, 1, h)],
        ),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name="decode_attention",
    )(layer[None], positions, q, k, v)


def _decode_kernel(
    block: int,
    num_kv: int,
    layer_ref: Any,
    position_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    out_ref: Any,
    top_ref: Any,
    sum_ref: Any,
    weighted_ref: Any,
) -> None:
    """One block of slots of one row: FlashAttention's running maximum, sum and weighted sum.

    All heads are one product: slots and key/value heads are the columns, [S K] of them, and a query
    head sees those of its own key/value head. A product of fewer query heads would be as slow, as
    they fill a part of the rows of a tile only.
    """
    step = pl.program_id(1)
    position = position_ref[pl.program_id(0)]

    @pl.when(step == 0)
    def _start() -> None:
        top_ref[...] = jnp.full_like(top_ref, MASKED_SCORE)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        weighted_ref[...] = jnp.zeros_like(weighted_ref)

    @pl.when(step * block <= position)
    def _add() -> None:
        q = q_ref[...]
        n, h = q.shape
        k, v = (ref[...].reshape(block * num_kv, h) for ref in (k_ref, v_ref))
        scores = _dot(q, k, 1)
        head, column = (jax.lax.broadcasted_iota(jnp.int32, scores.shape, axis) for axis in (0, 1))
        is_own = column % num_kv == head // (n // num_kv)
        visible = is_own & (step * block + column // num_kv <= position)
        scores = jnp.where(visible, scores * (1.0 / math.sqrt(h)), MASKED_SCORE)
        top = jnp.maximum(top_ref[...], jnp.max(scores, axis=1, keepdims=True))
        weights, kept = jnp.exp(scores - top), jnp.exp(top_ref[...] - top)
        sum_ref[...] = kept * sum_ref[...] + jnp.sum(weights, axis=1, keepdims=True)
        weighted_ref[...] = kept * weighted_ref[...] + _dot(weights.astype(v.dtype), v, 0)
        top_ref[...] = top

    @pl.when(step == pl.num_programs(1) - 1)
    def _finish() -> None:
        out_ref[...] = (weighted_ref[...] / sum_ref[...]).astype(out_ref.dtype)


def _dot(a: Array, b: Array, axis: int) -> Float32[Array, "..."]:
    """Contracts the last axis of `a` with `axis` of `b`."""
    return jax.lax.dot_general(
        a,
        b,
        (((1,), (axis,)), ((), ())),
        precision=matmul_precision(a.dtype),
        preferred_element_type=jnp.float32,
    )


def _on_each_device(
    function: Callable[..., Array],
    axes: Sequence[tuple[str, ...]],
    arrays: Sequence[Array],
) -> Array:
    """Runs `function` on each device's part of `arrays`; XLA cannot split a kernel by itself.

    Args:
      axes: logical axes of each array; the result has those of the first.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function(*arrays)
    specs = tuple(
        partition_spec(names, x.shape, mesh.shape) for names, x in zip(axes, arrays, strict=True)
    )
    mapped = jax.shard_map(function, in_specs=specs, out_specs=specs[0], check_vma=False)
    return mapped(*arrays)
