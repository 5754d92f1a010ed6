"""Hugging Face checkpoints in and out: safetensors files straight onto shards, and back.

Loading reads, for every shard of every parameter, only the slices of the files which that shard
holds; no parameter exists as a whole on the host unless a device holds it whole. A checkpoint that
differs from the model in any way is refused before anything is read.

What is left out: quantised formats, pickled `.bin` files, and any architecture but Qwen2.
"""

import dataclasses
import functools
import json
import math
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (safetensors' NumPy reader finds "bfloat16" through it)
import numpy as np
import safetensors
import safetensors.numpy
from jax.sharding import Mesh

from codea1_jax.errors import UserError
from codea1_jax.models.config import ConfigError, Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.sharding import param_shardings
from codea1_jax.typing import Array, Params

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOAT_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# Beside the weights: what a tokenizer and `generate` need.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


class CheckpointError(UserError):
    """A checkpoint that doesn't fit; names the tensor or key, the file, and what was expected."""


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """How one parameter (of one layer) lies in a checkpoint.

    Attributes:
      template: Hugging Face's name, `{}` where the layer index goes.
      shape: the parameter's shape without the layer axis.
      groups: for each stored dimension, the parameter's dimensions it is made of. A query kernel
        [D N H] is stored as [N*H, D]: ((1, 2), (0,)).
    """

    template: str
    shape: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def is_layered(self) -> bool:
        return "{}" in self.template

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[axis] for axis in group) for group in self.groups)

    @property
    def _order(self) -> list[int]:
        return [axis for group in self.groups for axis in group]

    def read(self, stored: Any, index: tuple[slice, ...]) -> np.ndarray:
        """The part `index` of the parameter from a safetensors slice object (or an array)."""
        cuts, dims, rest = [], [], list(index)
        for lead, *inner in self.groups:
            # The first dimension of a group is cut while reading; the others, never split, after.
            start, stop, _ = index[lead].indices(self.shape[lead])
            inner_dims = [self.shape[axis] for axis in inner]
            cuts.append(slice(start * math.prod(inner_dims), stop * math.prod(inner_dims)))
            dims += [stop - start, *inner_dims]
            rest[lead] = slice(None)
        block = stored[tuple(cuts)].reshape(dims).transpose(np.argsort(self._order))
        return block[tuple(rest)]

    def to_stored(self, value: np.ndarray) -> np.ndarray:
        """The parameter as the checkpoint stores it, contiguous."""
        return np.ascontiguousarray(value.transpose(self._order).reshape(self.stored_shape))


def stored_tensors(config: Qwen2Config) -> dict[str, StoredTensor]:
    """Parameter path ("layers.attention.q.kernel") -> its place in a checkpoint."""
    d, f, h, v = config.hidden_size, config.intermediate_size, config.head_dim, config.vocab_size
    n, k = config.num_attention_heads, config.num_key_value_heads
    one, two = ((0,),), ((0,), (1,))
    heads_out, heads_in, swapped = ((1, 2), (0,)), ((2,), (0, 1)), ((1,), (0,))
    layer = "model.layers.{}."
    table = {
        "embedder.table": StoredTensor("model.embed_tokens.weight", (v, d), two),
        "final_norm.scale": StoredTensor("model.norm.weight", (d,), one),
    }
    if not config.tie_word_embeddings:
        table["head.table"] = StoredTensor("lm_head.weight", (v, d), two)
    for name in ("input_norm", "post_attention_norm"):
        hf_name = {"input_norm": "input_layernorm"}.get(name, "post_attention_layernorm")
        table[f"layers.{name}.scale"] = StoredTensor(f"{layer}{hf_name}.weight", (d,), one)
    for name, num_heads in (("q", n), ("k", k), ("v", k)):
        prefix = f"{layer}self_attn.{name}_proj"
        path = f"layers.attention.{name}"
        table[f"{path}.kernel"] = StoredTensor(f"{prefix}.weight", (d, num_heads, h), heads_out)
        table[f"{path}.bias"] = StoredTensor(f"{prefix}.bias", (num_heads, h), ((0, 1),))
    table["layers.attention.o.kernel"] = StoredTensor(
        f"{layer}self_attn.o_proj.weight", (n, h, d), heads_in
    )
    for name, shape in (("gate", (d, f)), ("up", (d, f)), ("down", (f, d))):
        table[f"layers.mlp.{name}.kernel"] = StoredTensor(
            f"{layer}mlp.{name}_proj.weight", shape, swapped
        )
    return table


def resolve_directory(directory_or_hub_id: str | pathlib.Path) -> pathlib.Path:
    """A local model directory, or the local snapshot of a hub model ("Qwen/Qwen2.5-Coder-0.5B").

    Raises:
      CheckpointError: neither exists, or the hub can't be reached.
    """
    path = pathlib.Path(directory_or_hub_id).expanduser()
    if path.is_dir():
        return path
    name = str(directory_or_hub_id)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise CheckpointError(f"{name} is not a directory (nor a hub id of the form owner/name)")
    import huggingface_hub

    patterns = ["*.safetensors", INDEX_FILE, "config.json", *TOKENIZER_FILES]
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # many kinds: offline mode, DNS, 401, 404, disk
        raise CheckpointError(
            f"{name} is not a directory here, and as a hub id it could not be fetched: "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from error


class _Checkpoint:
    """An opened checkpoint: which file holds which tensor, checked against what a model needs."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        self.file_of: dict[str, str] = {}  # tensor -> file name
        index = directory / INDEX_FILE
        if (directory / SINGLE_FILE).exists():
            self.file_of = dict.fromkeys(self._open(SINGLE_FILE).keys(), SINGLE_FILE)
        elif index.exists():
            self._read_index(index)
        else:
            raise CheckpointError(f"{directory} has neither {SINGLE_FILE} nor {INDEX_FILE}")

    @functools.cache  # noqa: B019  (lives as long as one load)
    def _open(self, file: str) -> Any:
        try:
            return safetensors.safe_open(str(self.directory / file), framework="np")
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{self.directory / file} can't be read: {error}") from error

    def _read_index(self, index: pathlib.Path) -> None:
        try:
            self.file_of = dict(json.loads(index.read_text())["weight_map"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{index} has no readable weight_map: {error!r}") from error
        for file in sorted(set(self.file_of.values())):
            claimed = {name for name, holder in self.file_of.items() if holder == file}
            if not (self.directory / file).exists():
                raise CheckpointError(
                    f"{self.directory / file} is missing; {index.name} says that it holds "
                    f"{min(claimed)} and {len(claimed) - 1} more tensors"
                )
            held = set(self._open(file).keys())
            for names, problem in (
                (claimed - held, f"is not in {file}, though {index.name} says so"),
                (held - claimed, f"is in {file}, but {index.name} doesn't say so"),
            ):
                if names:
                    raise CheckpointError(f"{self.directory}: tensor {min(names)} {problem}")

    def stored(self, name: str) -> Any:
        return self._open(self.file_of[name]).get_slice(name)

    def check(self, config: Qwen2Config) -> None:
        """Raises CheckpointError unless names, shapes and dtypes are exactly the model's."""
        expected = {
            tensor.template.format(layer): tensor.stored_shape
            for tensor in stored_tensors(config).values()
            for layer in range(config.num_hidden_layers if tensor.is_layered else 1)
        }
        self._drop_tied_head(config)
        missing, extra = (
            expected.keys() - self.file_of.keys(),
            self.file_of.keys() - expected.keys(),
        )
        if missing:
            raise CheckpointError(f"{self.directory}: tensor {_first(missing)} is missing")
        if extra:
            name = min(extra)
            raise CheckpointError(
                f"{self.directory / self.file_of[name]}: tensor {_first(extra)} is not one of "
                "the model's"
            )
        common = self.stored("model.embed_tokens.weight").get_dtype()
        for name, shape in expected.items():
            stored = self.stored(name)
            where = f"{self.directory / self.file_of[name]}: tensor {name}"
            if tuple(stored.get_shape()) != shape:
                raise CheckpointError(f"{where} is {stored.get_shape()}, expected {list(shape)}")
            dtype = stored.get_dtype()
            if dtype not in FLOAT_DTYPES:
                raise CheckpointError(
                    f"{where} has dtype {dtype}, expected one of {', '.join(FLOAT_DTYPES)}"
                )
            if dtype != common:
                raise CheckpointError(
                    f"{where} has dtype {dtype}, expected {common} as model.embed_tokens.weight"
                )

    def _drop_tied_head(self, config: Qwen2Config) -> None:
        """Some writers store a tied head as well; a copy is ignored, anything else refused."""
        head, table = "lm_head.weight", "model.embed_tokens.weight"
        if not config.tie_word_embeddings or not {head, table} <= self.file_of.keys():
            return
        copy, original = self.stored(head), self.stored(table)
        num_rows = original.get_shape()[0]
        is_equal = copy.get_shape() == original.get_shape() and all(
            np.array_equal(copy[i : min(i + 4096, num_rows)], original[i : min(i + 4096, num_rows)])
            for i in range(0, num_rows, 4096)
        )
        if not is_equal:
            raise CheckpointError(
                f"{self.directory / self.file_of[head]}: tensor {head} differs from {table}, but "
                "config.json has tie_word_embeddings=true"
            )
        del self.file_of[head]


def _first(names: Any) -> str:
    return min(names) + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _check_config(directory: pathlib.Path, config: Qwen2Config) -> None:
    try:
        found = Qwen2Config.from_directory(directory)
    except ConfigError as error:
        raise CheckpointError(str(error)) from error
    for field in dataclasses.fields(Qwen2Config):
        ours, theirs = getattr(config, field.name), getattr(found, field.name)
        if ours != theirs:
            raise CheckpointError(
                f"{directory / 'config.json'}: {field.name}={theirs}, but the model has {ours}"
            )


def load_params(
    directory_or_hub_id: str | pathlib.Path,
    model: LanguageModel,
    mesh: Mesh,
    dtype: Any = jnp.float32,
) -> Params:
    """Reads a checkpoint onto the shards of `param_shardings(model, mesh)`.

    Raises:
      CheckpointError: anything in the directory that isn't exactly `model.config`: another
        architecture or size, a missing, extra, wrongly shaped or wrongly typed tensor, a file that
        the index names but that is missing or damaged, a tied head that isn't the embedding.
    """
    directory = resolve_directory(directory_or_hub_id)
    _check_config(directory, model.config)
    checkpoint = _Checkpoint(directory)
    checkpoint.check(model.config)
    tensors = stored_tensors(model.config)

    def load(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct, sharding: Any) -> Array:
        tensor = tensors[_dotted(path)]

        @functools.cache  # replicas on one host share a read
        def read(index: tuple[slice, ...]) -> np.ndarray:
            if not tensor.is_layered:
                return tensor.read(checkpoint.stored(tensor.template), index).astype(leaf.dtype)
            layers = range(leaf.shape[0])[index[0]]
            parts = [
                tensor.read(checkpoint.stored(tensor.template.format(layer)), index[1:])
                for layer in layers
            ]
            out = np.empty((len(layers), *parts[0].shape), leaf.dtype)
            for row, part in zip(out, parts):
                row[...] = part
            return out

        return jax.make_array_from_callback(leaf.shape, sharding, read)

    return jax.tree_util.tree_map_with_path(
        load, model.abstract_params(dtype), param_shardings(model, mesh)
    )


def save_params(
    params: Params,
    model: LanguageModel,
    directory: str | pathlib.Path,
    *,
    dtype: Any = jnp.bfloat16,
    source: str | pathlib.Path | None = None,
    max_shard_bytes: int = 2 * 2**30,
) -> None:
    """Writes a directory that transformers loads: safetensors and config.json.

    Several files and an index are written when the weights exceed `max_shard_bytes`. `source`, the
    directory the model came from, gives keys of config.json that the model itself doesn't know
    (special token ids, ...) and the tokenizer's files. Weights already there are replaced. With
    several processes all must call this; the first one writes.
    """
    directory = pathlib.Path(directory)
    is_writer = jax.process_index() == 0
    if is_writer:
        directory.mkdir(parents=True, exist_ok=True)
    files: list[pathlib.Path] = []
    names: list[list[str]] = []
    shard: dict[str, np.ndarray] = {}
    total_bytes = 0

    def flush() -> None:
        files.append(directory / f"part-{len(files)}.tmp")
        names.append(list(shard))
        if is_writer:
            # transformers refuses files without this format tag.
            safetensors.numpy.save_file(shard, files[-1], metadata={"format": "pt"})
            files[-1].chmod(0o644)  # safetensors' writer gives the owner alone access
        shard.clear()

    for name, value in _host_tensors(params, model, np.dtype(dtype)):
        if shard and sum(v.nbytes for v in shard.values()) + value.nbytes > max_shard_bytes:
            flush()
        shard[name] = value
        total_bytes += value.nbytes
    flush()
    if not is_writer:
        return
    _name_files(directory, files, names, total_bytes)
    raw = config_json(model.config, np.dtype(dtype).name)
    if source is not None:
        source = resolve_directory(source)
        raw = json.loads((source / "config.json").read_text()) | {"torch_dtype": raw["torch_dtype"]}
        raw.pop("dtype", None)  # transformers 5's name of torch_dtype
        copy_tokenizer_files(source, directory)
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")


def copy_tokenizer_files(source: pathlib.Path, directory: pathlib.Path) -> None:
    """Copies tokenizer, chat template and generation config, those that exist."""
    for name in TOKENIZER_FILES:
        if (source / name).exists() and source.resolve() != directory.resolve():
            shutil.copyfile(source / name, directory / name)


def config_json(config: Qwen2Config, dtype: str) -> dict[str, Any]:
    """A config.json for a model that came from nowhere."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **dataclasses.asdict(config),
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "torch_dtype": dtype,
    }


def _host_tensors(
    params: Params, model: LanguageModel, dtype: np.dtype
) -> Iterator[tuple[str, np.ndarray]]:
    """All tensors as a checkpoint stores them, one on the host at a time, layer by layer."""
    leaves = {_dotted(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]}
    tensors = stored_tensors(model.config)
    if leaves.keys() != tensors.keys():
        raise CheckpointError(f"parameters don't fit: {sorted(leaves.keys() ^ tensors.keys())}")
    for path, tensor in tensors.items():
        if not tensor.is_layered:
            yield tensor.template, tensor.to_stored(_to_host(leaves[path]).astype(dtype))
    for layer in range(model.config.num_hidden_layers):
        for path, tensor in tensors.items():
            if tensor.is_layered:
                value = _to_host(leaves[path][layer]).astype(dtype)
                yield tensor.template.format(layer), tensor.to_stored(value)


def _to_host(value: Array) -> np.ndarray:
    if value.is_fully_addressable:
        return np.asarray(value)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(value, tiled=True)


def _name_files(
    directory: pathlib.Path, parts: list[pathlib.Path], names: list[list[str]], total_bytes: int
) -> None:
    """Gives finished part files their final names; removes weights that were there before."""
    for old in (*directory.glob("model*.safetensors"), directory / INDEX_FILE):
        old.unlink(missing_ok=True)
    if len(parts) == 1:
        parts[0].rename(directory / SINGLE_FILE)
        return
    weight_map: dict[str, str] = {}
    for number, (part, tensors) in enumerate(zip(parts, names), 1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        part.rename(directory / file)
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(key.key for key in path)
