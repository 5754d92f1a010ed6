"""The device programs of a rollout, compiled once per shape.

Everything is compiled ahead of time from shapes alone, so a call with another shape is an error and
never a silent recompilation. Small results come back replicated: every host can read them.

| program | what it does |
|---|---|
| view    | weights as the sampler wants them: compute dtype, whole on every data-parallel replica |
| prefill | prompts [Q P] -> last hidden states [Q D] and each prompt's keys and values |
| first   | last hidden states -> the first token of up to n samples |
| empty   | a cache for `rows` samples |
| insert  | copies one prompt's keys and values to the slots of its samples, in place |
| decode  | up to `chunk` tokens for all rows in one device loop, the cache updated in place |
| compact | moves some rows of a cache to a smaller one |
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from codea1_jax.models.attention import KVCache, empty_cache
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.sharding import batch_sharding, cache_sharding, param_shardings
from codea1_jax.rollout import sampling as sampling_lib
from codea1_jax.rollout.sampling import Draw, Method
from codea1_jax.rollout.scheduler import Buckets
from codea1_jax.typing import Array, Params

Program = Callable[..., Any]
_I32, _F32, _U32 = jnp.int32, jnp.float32, jnp.uint32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
    """What the host knows about each row before a decode loop; all [B].

    Attributes:
      token: last token drawn, not yet in the cache.
      position: the cache slot it goes to.
      index: number of tokens drawn so far.
      is_done: rows that are finished or empty; they emit padding.
      key_data: uint32[B 2], see `sampling.request_key`.
    """

    token: Any
    position: Any
    index: Any
    is_done: Any
    key_data: Any


@dataclasses.dataclass(frozen=True)
class DecodeShape:
    """Names a decode program."""

    rows: int
    cache_length: int
    method: Method
    num_stops: int


@functools.lru_cache(maxsize=8)
def shared_programs(model: LanguageModel, mesh: Mesh, pad_id: int, chunk: int) -> "Programs":
    """One `Programs` for all engines of the same model: two roles compile once."""
    return Programs(model, mesh, pad_id, chunk)


class Programs:
    """Compiles on first use and remembers; `count` and `compile_s` say how much that was."""

    def __init__(self, model: LanguageModel, mesh: Mesh, pad_id: int, chunk: int):
        self._model = model
        self._mesh = mesh
        self._pad_id = pad_id
        self._chunk = chunk
        self._compiled: dict[tuple[Any, ...], Program] = {}
        self._view_shardings = _sampler_shardings(model, mesh)
        self._abstract_view = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            jax.eval_shape(model.decode_view, model.abstract_params()),
            self._view_shardings,
        )
        self.compile_s = 0.0

    @property
    def count(self) -> int:
        """Programs compiled so far."""
        return len(self._compiled)

    def names(self) -> list[str]:
        return ["view" if key[0] == "view" else " ".join(map(str, key)) for key in self._compiled]

    def view(self, params: Params) -> Params:
        """Runs `LanguageModel.decode_view`, resharded for sampling, in one program."""
        leaves, treedef = jax.tree.flatten(params)
        key = ("view", treedef, *((leaf.dtype, leaf.sharding) for leaf in leaves))
        program = self._get(
            key,
            lambda: jax.jit(self._model.decode_view, out_shardings=self._view_shardings),
            params,
        )
        return program(params)

    def prefill(self, num_rows: int, prompt_length: int) -> Program:
        """(view, tokens i32[Q P], lengths i32[Q]) -> (hidden [Q D], Q caches [Y 1 P K H])."""

        def run(view: Params, tokens: Array, lengths: Array) -> tuple[Array, tuple[KVCache, ...]]:
            hidden, cache = self._model.prefill(view, tokens, lengths, prompt_length)
            rows = range(num_rows)
            return hidden, tuple(
                KVCache(cache.k[:, i : i + 1], cache.v[:, i : i + 1]) for i in rows
            )

        return self._get(
            ("prefill", num_rows, prompt_length),
            lambda: jax.jit(
                run, out_shardings=(self._whole, (self._cache(1, prompt_length)[1],) * num_rows)
            ),
            self._abstract_view,
            self._rows((num_rows, prompt_length), _I32),
            self._rows((num_rows,), _I32),
        )

    def first(self, num_prompts: int, num_samples: int, method: Method) -> Program:
        """(view, hidden [Q D], source i32[n], key_data u32[n 2], temperature, top_p) -> Draw [n].

        `source` is the prompt of each sample: the head runs once per prompt.
        """
        config = self._model.config

        def run(
            view: Params,
            hidden: Array,
            source: Array,
            key_data: Array,
            temperature: Array,
            top_p: Array,
        ) -> Draw:
            logits = self._model.logits(view, hidden)[source]
            index = jnp.zeros(num_samples, _I32)
            return sampling_lib.draw(logits, key_data, index, temperature, top_p, method)

        return self._get(
            ("first", num_prompts, num_samples, method),
            lambda: jax.jit(run, out_shardings=self._whole),
            self._abstract_view,
            self._same((num_prompts, config.hidden_size), self._model.compute_dtype),
            self._rows((num_samples,), _I32),
            self._rows((num_samples, 2), _U32),
            self._same((), _F32),
            self._same((), _F32),
        )

    def empty(self, num_rows: int, cache_length: int) -> Program:
        """() -> KVCache of zeros."""
        model = self._model
        return self._get(
            ("empty", num_rows, cache_length),
            lambda: jax.jit(
                lambda: empty_cache(model.config, num_rows, cache_length, model.compute_dtype),
                out_shardings=self._cache(num_rows, cache_length)[1],
            ),
        )

    def insert(self, num_rows: int, cache_length: int, prompt_length: int) -> Program:
        """(cache [Y B S K H], prompt [Y 1 P K H], slots i32[B], count i32) -> cache, in place.

        The prompt is written to the first `count` of `slots`.
        """
        cache, shardings = self._cache(num_rows, cache_length)

        def run(cache: KVCache, prompt: KVCache, slots: Array, count: Array) -> KVCache:
            def write(i: Array, cache: KVCache) -> KVCache:
                at = (0, slots[i], 0, 0, 0)
                return jax.tree.map(
                    lambda rows, row: jax.lax.dynamic_update_slice(rows, row, at), cache, prompt
                )

            return jax.lax.fori_loop(0, count, write, cache)

        return self._get(
            ("insert", num_rows, cache_length, prompt_length),
            lambda: jax.jit(run, out_shardings=shardings, donate_argnums=0),
            cache,
            self._cache(1, prompt_length)[0],
            self._same((num_rows,), _I32),
            self._same((), _I32),
        )

    def compact(self, num_rows: int, fewer_rows: int, cache_length: int) -> Program:
        """(cache, old row of each new one i32[fewer_rows]) -> cache of `fewer_rows`."""

        def run(cache: KVCache, old: Array) -> KVCache:
            return jax.tree.map(lambda rows: jnp.take(rows, old, axis=1), cache)

        return self._get(
            ("compact", num_rows, fewer_rows, cache_length),
            lambda: jax.jit(run, out_shardings=self._cache(fewer_rows, cache_length)[1]),
            self._cache(num_rows, cache_length)[0],
            self._same((fewer_rows,), _I32),
        )

    def decode(self, shape: DecodeShape) -> Program:
        """(view, cache, state, temperature, top_p, limit i32, stops i32[num_stops]) -> results.

        Results: (cache, number of steps run, Draw of [B chunk]). The loop ends early when every row
        has drawn a stop token or `limit` tokens. Unused entries of `stops` are -1.
        """
        rows, chunk, pad_id = shape.rows, self._chunk, self._pad_id

        def run(
            view: Params,
            cache: KVCache,
            state: DecodeState,
            temperature: Array,
            top_p: Array,
            limit: Array,
            stops: Array,
        ) -> tuple[KVCache, Array, Draw]:
            def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
                i, state, cache, drawn = carry
                hidden, cache = self._model.decode(view, state.token, state.position, cache)
                logits = self._model.logits(view, hidden)
                new = sampling_lib.draw(
                    logits, state.key_data, state.index, temperature, top_p, shape.method
                )
                token = jnp.where(state.is_done, pad_id, new.token)
                drawn = jax.tree.map(
                    lambda column, all_: all_.at[i].set(column),
                    dataclasses.replace(new, token=token),
                    drawn,
                )
                is_live = (~state.is_done).astype(_I32)
                index = state.index + is_live
                is_stop = (token[:, None] == stops[None, :]).any(axis=-1)
                state = DecodeState(
                    token=token,
                    position=state.position + is_live,
                    index=index,
                    is_done=state.is_done | is_stop | (index >= limit),
                    key_data=state.key_data,
                )
                return i + 1, state, cache, drawn

            def is_running(carry: tuple[Any, ...]) -> Array:
                i, state, *_ = carry
                return (i < chunk) & ~state.is_done.all()

            start = Draw(
                jnp.full((chunk, rows), pad_id, _I32),
                jnp.zeros((chunk, rows), _F32),
                jnp.zeros((chunk, rows), _F32),
            )
            carry = (jnp.zeros((), _I32), state, self._model.unstack_cache(cache), start)
            num_steps, _, unstacked, drawn = jax.lax.while_loop(is_running, step, carry)
            return self._model.stack_cache(unstacked), num_steps, jax.tree.map(jnp.transpose, drawn)

        cache, cache_sharding = self._cache(rows, shape.cache_length)
        return self._get(
            ("decode", rows, shape.cache_length, shape.method, shape.num_stops),
            lambda: jax.jit(
                run, donate_argnums=1, out_shardings=(cache_sharding, self._whole, self._whole)
            ),
            self._abstract_view,
            cache,
            DecodeState(
                token=self._rows((rows,), _I32),
                position=self._rows((rows,), _I32),
                index=self._rows((rows,), _I32),
                is_done=self._rows((rows,), jnp.bool_),
                key_data=self._rows((rows, 2), _U32),
            ),
            self._same((), _F32),
            self._same((), _F32),
            self._same((), _I32),
            self._same((shape.num_stops,), _I32),
        )

    def warm_up(
        self, buckets: Buckets, cache_lengths: Sequence[int], method: Method, num_stops: int
    ) -> None:
        """Compiles every program that requests with these buckets can need.

        Args:
          cache_lengths: one per prompt bucket.
        """
        for rows in buckets.prefill:
            for prompt_length in buckets.prompts:
                self.prefill(rows, prompt_length)
            for samples in buckets.slots:
                self.first(rows, samples, method)
        for rows in buckets.slots:
            for i, cache_length in enumerate(cache_lengths):
                self.empty(rows, cache_length)
                self.decode(DecodeShape(rows, cache_length, method, num_stops))
                for prompt_length in buckets.prompts[: i + 1]:
                    self.insert(rows, cache_length, prompt_length)
                for fewer in buckets.slots:
                    if fewer < rows:
                        self.compact(rows, fewer, cache_length)

    def _get(self, key: tuple[Any, ...], build: Callable[[], Any], *args: Any) -> Program:
        if key not in self._compiled:
            start = time.perf_counter()
            with jax.set_mesh(self._mesh):
                self._compiled[key] = build().lower(*args).compile()
            self.compile_s += time.perf_counter() - start
        return self._compiled[key]

    @property
    def _whole(self) -> NamedSharding:
        return NamedSharding(self._mesh, P())

    def _same(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._whole)

    def _rows(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(self._mesh))

    def _cache(self, num_rows: int, cache_length: int) -> tuple[KVCache, KVCache]:
        """Abstract cache and its shardings."""
        config = self._model.config
        shape = (
            config.num_hidden_layers,
            num_rows,
            cache_length,
            config.num_key_value_heads,
            config.head_dim,
        )
        sharding = cache_sharding(config, self._mesh, num_rows)
        leaf = jax.ShapeDtypeStruct(shape, self._model.compute_dtype, sharding=sharding)
        return KVCache(leaf, leaf), KVCache(sharding, sharding)  # type: ignore[arg-type]


def _sampler_shardings(model: LanguageModel, mesh: Mesh) -> Params:
    """Shardings of `decode_view`: split over `tensor` only.

    Weights split over `fsdp` would be gathered again for every token.
    """

    def keep_tensor(sharding: NamedSharding) -> NamedSharding:
        return NamedSharding(
            mesh, P(*(axis if axis == "tensor" else None for axis in sharding.spec))
        )

    shardings = jax.tree.map(keep_tensor, param_shardings(model, mesh))
    view = jax.eval_shape(model.decode_view, model.abstract_params())
    if isinstance(view["layers"], list):
        unstacked = jax.tree.map(
            lambda sharding: NamedSharding(mesh, P(*sharding.spec[1:])), shardings["layers"]
        )
        shardings["layers"] = [unstacked] * len(view["layers"])
    return shardings
