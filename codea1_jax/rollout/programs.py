"""The device programs of a rollout, compiled once per shape.

Everything is compiled ahead of time from shapes alone, so a call with another shape is an error and
never a silent recompilation. Small results come back replicated: every host can read them.

| program | what it does |
|---|---|
| view    | weights as the sampler wants them: compute dtype, whole on every data-parallel replica |
| prefill | prompts [Q P] -> each prompt's keys and values |
| empty   | a cache for `rows` samples |
| scratch | on CPU: memory for a step's logits, kept from loop to loop |
| insert  | copies one prompt's keys and values to the slots of its samples, in place |
| decode  | up to `chunk` tokens for all rows in one device loop, the cache updated in place |
| shrink  | moves a cache to fewer rows or to fewer slots a row |
| grow    | moves a cache to more slots a row |

A cache has one form for its whole life, chosen by the devices of the mesh and not by the host that
compiles: a list of layers on CPU, all layers stacked elsewhere (and on CPU with a tensor axis).
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from codea1_jax.models.attention import LAYER_CACHE_AXES, Cache, KVCache, LayerCache
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.sharding import (
    RULES,
    batch_sharding,
    cache_sharding,
    param_shardings,
    partition_spec,
)
from codea1_jax.rollout import sampling as sampling_lib
from codea1_jax.rollout.sampling import Draw, Method
from codea1_jax.rollout.scheduler import Buckets, cache_lengths, is_worth_moving
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


class CacheShape(NamedTuple):
    """Sizes of a cache: samples, and slots of each."""

    rows: int
    length: int


@dataclasses.dataclass(frozen=True)
class DecodeShape:
    """Names a decode program."""

    cache: CacheShape
    method: Method
    num_stops: int


@functools.lru_cache(maxsize=8)
def shared_programs(model: LanguageModel, mesh: Mesh, pad_id: int, chunk: int) -> "Programs":
    """One `Programs` for all engines of the same model: two roles compile once."""
    return Programs(model, mesh, pad_id, chunk)


class Programs:
    """Compiles on first use and remembers; `count` and `compile_s` say how much that was.

    Args:
      finish: makes what `prefill`, `decode`, ... return of a lowered program. `codea1 plan` keeps
        the lowered form.
    """

    def __init__(
        self,
        model: LanguageModel,
        mesh: Mesh,
        pad_id: int,
        chunk: int,
        finish: Callable[[jax.stages.Lowered], Any] = jax.stages.Lowered.compile,
    ):
        self._finish = finish
        self._model = model
        self._mesh = mesh
        self._pad_id = pad_id
        self.chunk = chunk
        self._compiled: dict[tuple[Any, ...], Program] = {}
        self._is_fused = mesh.devices.flat[0].platform == "cpu" and mesh.shape["tensor"] == 1
        self.num_row_shards = math.prod(mesh.shape[axis] for axis in RULES["batch"])
        self._decode_view = functools.partial(model.decode_view, fused=self._is_fused)
        abstract_view = jax.eval_shape(self._decode_view, model.abstract_params())
        self._view_shardings = self._shardings_of_view(abstract_view)
        self._abstract_view = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            abstract_view,
            self._view_shardings,
        )
        self.compile_s = 0.0

    @property
    def reads_all_slots(self) -> bool:
        """A decode step costs what the cache is long, not what its rows hold."""
        return self._is_fused

    @property
    def count(self) -> int:
        """Programs compiled so far."""
        return len(self._compiled)

    @property
    def abstract_view(self) -> Params:
        """Shapes and shardings of what `view` gives."""
        return self._abstract_view

    def abstract_cache(self, num_rows: int, cache_length: int) -> Cache:
        """Shapes and shardings of a cache."""
        return self._cache(num_rows, cache_length)[0]

    def names(self) -> list[str]:
        return ["view" if key[0] == "view" else " ".join(map(str, key)) for key in self._compiled]

    def view(self, params: Params) -> Params:
        """Runs `LanguageModel.decode_view`, resharded for sampling, in one program."""
        return self.sync(params)(params)

    def sync(self, params: Params) -> Program:
        """(params) -> view, for parameters like these; abstract ones will do."""
        leaves, treedef = jax.tree.flatten(params)
        key = ("view", treedef, *((leaf.dtype, leaf.sharding) for leaf in leaves))
        return self._get(
            key,
            lambda: jax.jit(self._decode_view, out_shardings=self._view_shardings),
            params,
        )

    def prefill(self, num_rows: int, prompt_length: int) -> Program:
        """(view, tokens i32[Q P], lengths i32[Q]) -> Q caches of one row and P slots."""

        def run(view: Params, tokens: Array, lengths: Array) -> tuple[Cache, ...]:
            _, cache = self._model.prefill(view, tokens, lengths, prompt_length)
            return tuple(_row(cache, i) for i in range(num_rows))

        return self._get(
            ("prefill", num_rows, prompt_length),
            lambda: jax.jit(run, out_shardings=(self._cache(1, prompt_length)[1],) * num_rows),
            self._abstract_view,
            self._rows((num_rows, prompt_length), _I32),
            self._rows((num_rows,), _I32),
        )

    def empty(self, num_rows: int, cache_length: int) -> Program:
        """() -> a cache of zeros; nothing in it is read before it has been written."""
        cache, shardings = self._cache(num_rows, cache_length)

        def run() -> Cache:
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), cache)

        return self._get(
            ("empty", num_rows, cache_length), lambda: jax.jit(run, out_shardings=shardings)
        )

    def scratch(self, num_rows: int) -> Program:
        """() -> what `decode` takes and gives back as `scratch`."""
        abstract = self._scratch(num_rows)
        shardings = tuple(leaf.sharding for leaf in abstract)

        def run() -> tuple[Array, ...]:
            return tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in abstract)

        return self._get(("scratch", num_rows), lambda: jax.jit(run, out_shardings=shardings))

    def insert(self, num_rows: int, cache_length: int, prompt_length: int) -> Program:
        """(cache, a prompt's cache of one row, slots i32[B], count i32) -> cache, in place.

        The prompt is written to the first `count` of `slots`.
        """
        cache, shardings = self._cache(num_rows, cache_length)

        def run(cache: Cache, prompt: Cache, slots: Array, count: Array) -> Cache:
            def write(i: Array, cache: Cache) -> Cache:
                return jax.tree.map(
                    lambda rows, row: jax.lax.dynamic_update_slice(
                        rows,
                        row,
                        [slots[i], *(0 for _ in rows.shape[1:])],
                    ),
                    cache,
                    prompt,
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

    def shrink(self, before: CacheShape, after: CacheShape) -> Program:
        """(cache, old row of each new one i32[after.rows]) -> cache of the smaller shape.

        Every row stays on its device: the new rows of one are taken from its own old ones.
        """
        shardings = self._cache(*after)[1]
        specs = jax.tree.map(lambda sharding: sharding.spec, shardings)
        old_share = before.rows // self.num_row_shards

        def take(cache: Cache, old: Array) -> Cache:
            return jax.tree.map(lambda rows: _take_rows(rows, old % old_share, after.length), cache)

        in_specs = (specs, P(RULES["batch"]))
        local = jax.shard_map(take, in_specs=in_specs, out_specs=specs, check_vma=False)
        return self._get(
            ("shrink", before, after),
            lambda: jax.jit(local, out_shardings=shardings),
            self._cache(*before)[0],
            self._rows((after.rows,), _I32),
        )

    def grow(self, before: CacheShape, cache_length: int) -> Program:
        """(cache) -> cache of the same rows with `cache_length` slots each."""
        shardings = self._cache(before.rows, cache_length)[1]
        added = cache_length - before.length

        def lengthen(rows: Array) -> Array:
            new = jnp.zeros((*rows.shape[:2], added, *rows.shape[3:]), rows.dtype)
            return jnp.concatenate([rows, new], axis=2)  # twice as fast as jnp.pad on CPU

        def run(cache: Cache) -> Cache:
            return jax.tree.map(lengthen, cache)

        return self._get(
            ("grow", before, cache_length),
            lambda: jax.jit(run, out_shardings=shardings),
            self._cache(*before)[0],
        )

    def decode(self, shape: DecodeShape) -> Program:
        """(view, cache, state, temperature, top_p, limit i32, stops i32[num_stops], scratch).

        Gives (cache, number of steps run, Draw of [B chunk], scratch). The loop ends early when
        every row has drawn a stop token or `limit` tokens. Unused entries of `stops` are -1.
        """
        rows, chunk, pad_id = shape.cache.rows, self.chunk, self._pad_id
        scratch = self._scratch(rows)

        def run(
            view: Params,
            cache: Cache,
            state: DecodeState,
            temperature: Array,
            top_p: Array,
            limit: Array,
            stops: Array,
            scratch: tuple[Array, ...],
        ) -> tuple[Cache, Array, Draw, tuple[Array, ...]]:
            def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
                i, state, cache, drawn, scratch = carry
                hidden, cache = self._model.decode(view, state.token, state.position, cache)
                logits = self._model.vocab_first_logits(view, hidden)
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
                return i + 1, state, cache, drawn, (logits,) if scratch else ()

            def is_running(carry: tuple[Any, ...]) -> Array:
                i, state, *_ = carry
                return (i < chunk) & ~state.is_done.all()

            start = Draw(
                jnp.full((chunk, rows), pad_id, _I32),
                jnp.zeros((chunk, rows), _F32),
                jnp.zeros((chunk, rows), _F32),
            )
            carry = (jnp.zeros((), _I32), state, cache, start, scratch)
            num_steps, _, cache, drawn, scratch = jax.lax.while_loop(is_running, step, carry)
            return cache, num_steps, jax.tree.map(jnp.transpose, drawn), scratch

        cache, cache_sharding = self._cache(*shape.cache)
        scratch_sharding = tuple(leaf.sharding for leaf in scratch)
        return self._get(
            ("decode", shape),
            lambda: jax.jit(
                run,
                donate_argnums=(1, 7),
                out_shardings=(cache_sharding, self._whole, self._whole, scratch_sharding),
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
            scratch,
        )

    def warm_up(
        self, buckets: Buckets, responses: Sequence[int], method: Method, num_stops: int
    ) -> None:
        """Compiles every program that requests with these buckets can need.

        Args:
          responses: as `scheduler.SlotBook` takes them.
        """
        for rows in buckets.prefill:
            for prompt_length in buckets.prompts:
                self.prefill(rows, prompt_length)
        for r, rows in enumerate(buckets.slots):
            self.scratch(rows)
            for response, lengths in zip(responses, cache_lengths(buckets, responses)):
                for i, length in enumerate(lengths):
                    shape = CacheShape(rows, length)
                    self.empty(*shape)
                    self.decode(DecodeShape(shape, method, num_stops))
                    for prompt_length in buckets.prompts[: i + 1]:
                        self.insert(*shape, prompt_length)
                    if r > 0:
                        self.shrink(shape, CacheShape(buckets.slots[r - 1], length))
                    for shorter in lengths[:i]:
                        if is_worth_moving(length, shorter):
                            self.shrink(shape, CacheShape(rows, shorter))
                    if response < responses[-1]:
                        self.grow(shape, length + responses[-1] - response)

    def _get(self, key: tuple[Any, ...], build: Callable[[], Any], *args: Any) -> Program:
        if key not in self._compiled:
            start = time.perf_counter()
            with jax.set_mesh(self._mesh):
                self._compiled[key] = self._finish(build().lower(*args))
            self.compile_s += time.perf_counter() - start
        return self._compiled[key]

    @property
    def _whole(self) -> NamedSharding:
        return NamedSharding(self._mesh, P())

    def _same(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._whole)

    def _rows(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(self._mesh))

    def _cache(self, num_rows: int, cache_length: int) -> tuple[Cache, Cache]:
        """Abstract cache and its shardings."""
        config, dtype = self._model.config, self._model.compute_dtype
        num_layers, heads = config.num_hidden_layers, config.num_key_value_heads
        sharding: Any
        if self._is_fused:
            shape: tuple[int, ...] = (num_rows, heads, cache_length, config.head_dim)
            spec = partition_spec(LAYER_CACHE_AXES, shape, self._mesh.shape)
            sharding = NamedSharding(self._mesh, spec)
            leaf: Any = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
            return (
                [LayerCache(leaf, leaf)] * num_layers,
                [LayerCache(sharding, sharding)] * num_layers,
            )
        shape = (num_rows, num_layers, cache_length, heads, config.head_dim)
        sharding = cache_sharding(config, self._mesh, num_rows)
        leaf = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        return KVCache(leaf, leaf), KVCache(sharding, sharding)

    def _scratch(self, num_rows: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Logits [V B] on CPU, else nothing.

        XLA's CPU backend takes a program's temporary memory anew in every call, and 64 rows of
        logits are 10,000 pages that the kernel has to clear: 2 % of a loop of 4 tokens.
        """
        if not self._is_fused:
            return ()
        sharding = NamedSharding(self._mesh, P(None, *batch_sharding(self._mesh).spec))
        shape = (self._model.config.vocab_size, num_rows)
        return (jax.ShapeDtypeStruct(shape, _F32, sharding=sharding),)

    def _shardings_of_view(self, abstract_view: Params) -> Params:
        """Split over `tensor` only: weights split over `fsdp` would be gathered for every token."""
        if self._is_fused:
            return jax.tree.map(lambda _: self._whole, abstract_view)

        def keep_tensor(sharding: NamedSharding) -> NamedSharding:
            axes = (axis if axis == "tensor" else None for axis in sharding.spec)
            return NamedSharding(self._mesh, P(*axes))

        return jax.tree.map(keep_tensor, param_shardings(self._model, self._mesh))


def _row(cache: Cache, index: int) -> Cache:
    return jax.tree.map(lambda rows: rows[index : index + 1], cache)


def _take_rows(rows: Array, old: Array, length: int) -> Array:
    """Rows `old` and their first `length` slots, one by one: a gather needs the memory twice."""

    def move(i: Array, new: Array) -> Array:
        row = jax.lax.dynamic_slice_in_dim(rows, old[i], 1)[:, :, :length]
        return jax.lax.dynamic_update_slice_in_dim(new, row, i, 0)

    new = jnp.zeros((len(old), rows.shape[1], length, *rows.shape[3:]), rows.dtype)
    return jax.lax.fori_loop(0, len(old), move, new)
