"""Qwen2.5 as pure functions over a plain parameter tree.

`Transformer` is the Flax NNX module that defines parameters, their names and their logical axes.
`LanguageModel` is what the rest of the package uses: frozen, hashable, no arrays inside; each
method merges the graph definition with the parameters it is given. Layers are stacked on a leading
axis and scanned; a sampler on CPU unrolls them instead (`decode_view(params, fused=True)`).

Nothing here jits: callers jit whole programs, under `jax.set_mesh(mesh)` when there is a mesh.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P

from codea1_jax.models import tpu_attention
from codea1_jax.models.attention import (
    LAYER_CACHE_AXES,
    Attention,
    Cache,
    KVCache,
    LayerCache,
    attend_full,
    attend_layer,
    attend_stack,
    write_layer,
)
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.fused import apply_layer, fuse_layer
from codea1_jax.models.layers import (
    MATMUL_RESULT,
    MLP,
    RMSNorm,
    VocabTable,
    keep_apart,
    matmul_precision,
    rotary_tables,
)
from codea1_jax.models.sharding import CACHE_AXES, constrain
from codea1_jax.typing import Array, Float, Float32, Int32, Params

Remat = Literal["none", "full", "dots"]
# What a layer does between projecting q, k, v and the output projection: (q, k, v) -> (out, extra).
Attend = Callable[[Array, Array, Array], tuple[Array, Any]]


class Block(nnx.Module):
    """One pre-norm decoder layer."""

    def __init__(self, config: Qwen2Config, *, compute_dtype: Any, rngs: nnx.Rngs):
        d, eps = config.hidden_size, config.rms_norm_eps
        self.input_norm = RMSNorm(d, eps)
        self.attention = Attention(config, compute_dtype=compute_dtype, rngs=rngs)
        self.post_attention_norm = RMSNorm(d, eps)
        self.mlp = MLP(d, config.intermediate_size, compute_dtype=compute_dtype, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B L D"], rotary: tuple[Array, Array], attend: Attend
    ) -> tuple[Float[Array, "B L D"], Any]:
        with jax.named_scope("attention"):
            q, k, v = self.attention.project(self.input_norm(x), rotary)
            out, extra = attend(q, k, v)
            x = constrain(x + self.attention.o(out), "batch", "length", "act_embed")
        with jax.named_scope("mlp"):
            x = x + self.mlp(self.post_attention_norm(x))
        return constrain(x, "batch", "length", "act_embed"), extra


class Transformer(nnx.Module):
    """All parameters. `layers` is one Block whose parameters have a leading layer axis."""

    def __init__(self, config: Qwen2Config, *, compute_dtype: Any, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=config.num_hidden_layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stack(layer_rngs: nnx.Rngs) -> Block:
            return Block(config, compute_dtype=compute_dtype, rngs=layer_rngs)

        vocab, d = config.vocab_size, config.hidden_size
        self.embedder = VocabTable(vocab, d, compute_dtype=compute_dtype, rngs=rngs)
        self.layers = stack(rngs)
        self.final_norm = RMSNorm(d, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.head = VocabTable(vocab, d, compute_dtype=compute_dtype, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class _Definition:
    """What `nnx.split` leaves without arrays: graph definitions, shapes, logical axes."""

    stem: nnx.GraphDef  # the Transformer without its layers
    block: nnx.GraphDef
    shapes: Params
    axes: Params


@functools.cache
def _define(config: Qwen2Config, compute_dtype: Any) -> _Definition:
    module = nnx.eval_shape(
        lambda: Transformer(config, compute_dtype=compute_dtype, rngs=nnx.Rngs(params=0))
    )
    _, state = nnx.split(module, nnx.Param)

    def axes_of(path: tuple[Any, ...], variable: nnx.Param) -> P:
        names = variable.get_metadata()["axes"]
        return P("layers", *names) if path[0].key == "layers" else P(*names)

    axes = jax.tree_util.tree_map_with_path(
        axes_of, state, is_leaf=lambda node: isinstance(node, nnx.Variable)
    )
    block, _ = nnx.split(module.layers, nnx.Param)
    del module.layers
    stem, _ = nnx.split(module, nnx.Param)
    return _Definition(stem, block, nnx.to_pure_dict(state), nnx.to_pure_dict(axes))


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """A Qwen2.5 decoder as pure functions of its parameters.

    Attributes:
      config: sizes.
      compute_dtype: dtype of activations, matmuls and the KV cache. Norms, rotary positions,
        softmax and logits are float32 whatever it is.
      remat: what the backward pass of `hidden` recomputes: "none", "full" (every layer; only layer
        inputs are kept), "dots" (everything but matmul results).
      attention: "auto" (Pallas kernels on a mesh of TPUs where they take the sizes), "xla", or
        "pallas" (an error where "auto" would take XLA).
    """

    config: Qwen2Config
    compute_dtype: Any = jnp.float32
    remat: Remat = "none"
    attention: tpu_attention.Choice = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "compute_dtype", jnp.dtype(self.compute_dtype))
        if self.compute_dtype not in (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)):
            raise ValueError(f"compute_dtype={self.compute_dtype}; use float32 or bfloat16")
        if self.remat not in ("none", "full", "dots"):
            raise ValueError(f"remat={self.remat!r}; use 'none', 'full' or 'dots'")

    @property
    def _definition(self) -> _Definition:
        return _define(self.config, self.compute_dtype)

    def init(self, key: Array) -> Params:
        """Random float32 parameters: normal(0.02) matrices, zero biases, unit norms."""
        module = Transformer(
            self.config, compute_dtype=self.compute_dtype, rngs=nnx.Rngs(params=key)
        )
        return nnx.to_pure_dict(nnx.state(module, nnx.Param))

    def abstract_params(self, dtype: Any = jnp.float32) -> Params:
        """Shapes of the parameters; same tree as `init`."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), self._definition.shapes
        )

    def logical_axes(self) -> Params:
        """Logical axis names of the parameters, a PartitionSpec of names a leaf; tree of `init`."""
        return self._definition.axes

    def hidden(
        self,
        params: Params,
        tokens: Int32[Array, "B L"],
        positions: Int32[Array, "B L"],
        segment_ids: Int32[Array, "B L"],
        branch_ids: Int32[Array, "B L"] | None = None,
    ) -> Float[Array, "B L D"]:
        """Final-normed hidden states.

        A token attends to itself and to earlier tokens of its own segment; with `branch_ids`, only
        to those of branch 0 and of its own branch. Segment 0 is padding: it influences nothing, and
        its own result is finite but meaningless.
        """

        def attend(q: Array, k: Array, v: Array) -> tuple[Array, None]:
            return self._attend_full(q, k, v, segment_ids, branch_ids), None

        x, rotary, stem = self._start(params, tokens, positions)
        x, _ = self._scan_layers(params, x, rotary, attend)
        return stem.final_norm(x)

    def prefill(
        self,
        params: Params,
        tokens: Int32[Array, "B P"],
        lengths: Int32[Array, "B"],
        cache_length: int,
    ) -> tuple[Float[Array, "B D"], Cache]:
        """Runs right-padded prompts; slots of the cache at or beyond `lengths` hold no information.

        Returns the hidden state of each prompt's last token and a cache with `cache_length` slots
        (at least P), ready for `decode` at positions `lengths`: a KVCache, or a list of LayerCache
        when `params` is a fused view.
        """
        num_rows, prompt_length = tokens.shape
        if cache_length < prompt_length:
            raise ValueError(
                f"cache_length={cache_length} is below the prompt length {prompt_length}"
            )
        index = jnp.arange(prompt_length, dtype=jnp.int32)
        positions = jnp.broadcast_to(index[None], (num_rows, prompt_length))
        segment_ids = (positions < lengths[:, None]).astype(jnp.int32)
        x, rotary, stem = self._start(params, tokens, positions)
        unused = (0, cache_length - prompt_length)

        def attend(q: Array, k: Array, v: Array) -> tuple[Array, tuple[Array, Array]]:
            return self._attend_full(q, k, v, segment_ids), (k, v)

        cache: Cache
        if isinstance(params["layers"], list):
            rotary = keep_apart(rotary)
            cache = []
            for layer in params["layers"]:
                x, kv = apply_layer(self.config, layer, x, rotary, attend)
                heads = (jnp.swapaxes(a, 1, 2) for a in kv)
                padded = (jnp.pad(a, ((0, 0), (0, 0), unused, (0, 0))) for a in heads)
                cache.append(LayerCache(*(constrain(a, *LAYER_CACHE_AXES) for a in padded)))
        else:
            x, kv = self._scan_layers(params, x, rotary, attend)
            rows = (jnp.swapaxes(a, 0, 1) for a in kv)  # [B Y P K H]
            padded = (jnp.pad(a, ((0, 0), (0, 0), unused, (0, 0), (0, 0))) for a in rows)
            cache = KVCache(*(constrain(a, *CACHE_AXES) for a in padded))
        last = jnp.maximum(lengths - 1, 0)[:, None, None]
        x = jnp.take_along_axis(x, last, axis=1)[:, 0]  # [B D]
        return stem.final_norm(x), cache

    def decode(
        self,
        params: Params,
        tokens: Int32[Array, "B"],
        positions: Int32[Array, "B"],
        cache: Cache,
    ) -> tuple[Float[Array, "B D"], Cache]:
        """One token a row: writes its key and value at slot positions[b], sees slots up to it.

        A position outside the cache writes nothing. Donate `cache` when jitting: it is updated in
        place. A list of LayerCache belongs to a fused view, a KVCache to stacked layers.
        """
        x, rotary, stem = self._start(params, tokens[:, None], positions[:, None])
        layers = params["layers"]
        if isinstance(cache, list):
            rotary = keep_apart(rotary)  # XLA would compute it again in every layer
            written = []
            for layer, layer_cache in zip(layers, cache, strict=True):
                attend = functools.partial(self._attend_layer, layer_cache, positions)
                x, new = apply_layer(self.config, layer, x, rotary, attend)
                written.append(new)
            return stem.final_norm(x)[:, 0], written

        def body(carry: tuple[Array, KVCache], scanned: Any) -> tuple[Any, None]:
            return self._decode_stacked(*carry, rotary, positions, *scanned), None

        indices = jnp.arange(self.config.num_hidden_layers)
        (x, stacked), _ = lax.scan(body, (x, cache), (layers, indices))
        return stem.final_norm(x)[:, 0], stacked

    @staticmethod
    def _attend_layer(
        cache: LayerCache, positions: Array, q: Array, k: Array, v: Array
    ) -> tuple[Array, LayerCache]:
        written = write_layer(cache, k, v, positions)
        return attend_layer(q, written, positions), written

    def _decode_stacked(
        self,
        x: Array,
        cache: KVCache,
        rotary: tuple[Array, Array],
        positions: Array,
        layer_params: Params,
        layer_index: Array,
    ) -> tuple[Array, KVCache]:
        def write(stack: Array, new: Array) -> Array:
            # vmap over rows makes a scatter with a batch dimension, which XLA can partition.
            put = jax.vmap(lambda row, at, value: row.at[layer_index, at].set(value, mode="drop"))
            return constrain(put(stack, positions, new[:, 0]), *CACHE_AXES)

        attend_cached = self._attend_stack(cache.k.shape[2])

        def attend(q: Array, k: Array, v: Array) -> tuple[Array, KVCache]:
            written = KVCache(write(cache.k, k), write(cache.v, v))
            out = attend_cached(q, written.k, written.v, layer_index, positions)
            return out, written

        return nnx.merge(self._definition.block, layer_params)(x, rotary, attend)

    @property
    def _attend_full(self) -> Callable[..., Array]:
        refused = tpu_attention.refuse_full(self.compute_dtype)
        is_xla = tpu_attention.why_xla(self.attention, refused)
        return attend_full if is_xla else tpu_attention.attend_full

    def _attend_stack(self, num_slots: int) -> Callable[..., Array]:
        refused = tpu_attention.refuse_stack(self.config, num_slots)
        is_xla = tpu_attention.why_xla(self.attention, refused)
        return attend_stack if is_xla else tpu_attention.attend_stack

    def logits(self, params: Params, hidden: Float[Array, "*B D"]) -> Float32[Array, "*B V"]:
        """Scores of the next token, float32, not divided by a temperature."""
        stem = self._stem(params)
        table = stem.embedder if self.config.tie_word_embeddings else stem.head
        return table.logits(hidden)

    def vocab_first_logits(
        self, params: Params, hidden: Float[Array, "B D"]
    ) -> Float32[Array, "V B"]:
        """`logits` transposed, as the sampler reads them; the table on the left as in fused.py."""
        name = "embedder" if self.config.tie_word_embeddings else "head"
        table = params[name]["table"].astype(self.compute_dtype)
        table, hidden = keep_apart((table, hidden.astype(self.compute_dtype)))
        logits = lax.dot_general(
            table,
            hidden,
            (((1,), (1,)), ((), ())),
            precision=matmul_precision(self.compute_dtype),
            preferred_element_type=jnp.float32,
        )
        return keep_apart(logits)

    def decode_view(self, params: Params, *, fused: bool = False) -> Params:
        """The same values ready for sampling, in the compute dtype where the model casts to it.

        Jit it whenever the weights change: every program that samples would otherwise repeat it.
        `prefill`, `decode` and `logits` take the result in place of `params`.

        Args:
          fused: a list of one tree a layer, laid out for CPU (models/fused.py), in place of the
            stack. A scan copies each layer's weights out of the stack on every step, which costs a
            quarter of a decode step there.
        """

        def cast(path: tuple[Any, ...], leaf: Array) -> Array:
            # Norms multiply by their float32 scale, in the learner too.
            return leaf.astype(jnp.float32 if path[-1].key == "scale" else self.compute_dtype)

        view = jax.tree_util.tree_map_with_path(cast, params)
        if fused:
            indices = range(self.config.num_hidden_layers)
            view["layers"] = [fuse_layer(_layer(view["layers"], i)) for i in indices]
        return view

    def _stem(self, params: Params) -> Any:
        return nnx.merge(
            self._definition.stem,
            {name: value for name, value in params.items() if name != "layers"},
        )

    def _start(
        self, params: Params, tokens: Array, positions: Array
    ) -> tuple[Array, tuple[Array, Array], Any]:
        stem = self._stem(params)
        x = constrain(stem.embedder.embed(tokens), "batch", "length", "act_embed")
        rotary = rotary_tables(positions, self.config.head_dim, self.config.rope_theta)
        return x, rotary, stem

    def _scan_layers(
        self, params: Params, x: Array, rotary: tuple[Array, Array], attend: Attend
    ) -> tuple[Array, Any]:
        """Runs all layers; what each layer's `attend` adds is stacked on a leading axis."""

        def body(x: Array, layer_params: Params) -> tuple[Array, Any]:
            return nnx.merge(self._definition.block, layer_params)(x, rotary, attend)

        if self.remat == "full":
            body = jax.checkpoint(body)
        elif self.remat == "dots":
            body = jax.checkpoint(
                body, policy=jax.checkpoint_policies.save_only_these_names(MATMUL_RESULT)
            )
        return lax.scan(body, x, params["layers"])


def _layer(layers: Params, index: int) -> Params:
    return jax.tree.map(lambda leaf: leaf[index], layers)
