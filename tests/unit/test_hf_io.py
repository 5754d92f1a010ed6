"""If this fails, training starts from weights that are not the checkpoint's, or an exported model
is not the one that was trained."""

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from codea1_jax.mesh import make_mesh
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.hf_io import (
    INDEX_FILE,
    SINGLE_FILE,
    CheckpointError,
    load_params,
    resolve_directory,
    save_params,
    stored_tensors,
)
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.sharding import param_shardings

FIXTURES = pathlib.Path(__file__).parent.parent / "numerics" / "fixtures"
TIED, UNTIED = FIXTURES / "qwen2_5_0_5b", FIXTURES / "qwen2_5_7b"
Tensors = dict[str, np.ndarray]


def model_of(directory: pathlib.Path) -> LanguageModel:
    return LanguageModel(Qwen2Config.from_directory(directory))


def one_device() -> jax.sharding.Mesh:
    return make_mesh(devices=jax.devices()[:1])


def read_all(directory: pathlib.Path) -> Tensors:
    tensors: Tensors = {}
    for file in directory.glob("*.safetensors"):
        tensors |= safetensors.numpy.load_file(file)
    return tensors


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


class TestLoading:
    def test_values_land_where_they_belong(self):
        """Against the file itself, by hand: transposes, heads, the layer a tensor belongs to."""
        tensors, model = read_all(UNTIED), model_of(UNTIED)
        params = load_params(UNTIED, model, one_device())
        config = model.config
        d, n, h = config.hidden_size, config.num_attention_heads, config.head_dim
        for layer in range(config.num_hidden_layers):
            mine = jax.tree.map(lambda x: np.asarray(x)[layer], params["layers"])  # noqa: B023
            theirs = {
                name.split(f"layers.{layer}.")[1]: value.astype(np.float32)
                for name, value in tensors.items()
                if f"layers.{layer}." in name
            }
            q = theirs["self_attn.q_proj.weight"]
            head, row, unit = 5, 3, 2
            assert mine["attention"]["q"]["kernel"][row, head, unit] == q[head * h + unit, row]
            np.testing.assert_array_equal(mine["attention"]["q"]["kernel"], q.T.reshape(d, n, h))
            np.testing.assert_array_equal(
                mine["attention"]["o"]["kernel"],
                theirs["self_attn.o_proj.weight"].T.reshape(n, h, d),
            )
            np.testing.assert_array_equal(
                mine["attention"]["k"]["bias"].reshape(-1), theirs["self_attn.k_proj.bias"]
            )
            np.testing.assert_array_equal(
                mine["mlp"]["down"]["kernel"], theirs["mlp.down_proj.weight"].T
            )
            np.testing.assert_array_equal(
                mine["input_norm"]["scale"], theirs["input_layernorm.weight"]
            )
        head_table = tensors["lm_head.weight"].astype(np.float32)
        np.testing.assert_array_equal(params["head"]["table"], head_table)
        assert not np.array_equal(head_table, params["embedder"]["table"])

    @pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 8, 1), (1, 2, 4)], ids=str)
    def test_shards_equal_the_whole(self, sizes: tuple[int, int, int]):
        model, mesh = model_of(UNTIED), make_mesh(*sizes)
        whole = load_params(UNTIED, model, one_device())
        params = load_params(UNTIED, model, mesh, jnp.bfloat16)
        shardings = param_shardings(model, mesh)
        jax.tree.map(lambda x, s: x.sharding == s or pytest.fail(str(s)), params, shardings)
        for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(whole), strict=True):
            assert a.dtype == jnp.bfloat16
            np.testing.assert_array_equal(np.asarray(a, np.float32), b)  # the file is bfloat16

    def test_no_shard_reads_more_than_its_part(self, monkeypatch: pytest.MonkeyPatch):
        """What is read from the files is one copy of the parameters, not one a device."""
        from codea1_jax.models import hf_io

        num_read = 0
        original = hf_io.StoredTensor.read

        class Counting:
            def __init__(self, stored: Any):
                self.stored = stored

            def __getitem__(self, index: Any) -> np.ndarray:
                nonlocal num_read
                block = self.stored[index]
                num_read += block.size
                return block

        monkeypatch.setattr(
            hf_io.StoredTensor,
            "read",
            lambda self, stored, index: original(self, Counting(stored), index),
        )
        model = model_of(UNTIED)
        params = load_params(UNTIED, model, make_mesh(2, 2, 2))
        assert all(not x.is_fully_replicated for x in (params["embedder"]["table"],))
        assert num_read == model.config.num_params()

    def test_copied_tied_head_is_ignored(self, tmp_path: pathlib.Path):
        tensors = read_all(TIED)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        write_single(tmp_path, tensors, TIED)
        assert "head" not in load_params(tmp_path, model_of(TIED), one_device())


class TestRoundTrip:
    @pytest.mark.parametrize("source", [TIED, UNTIED], ids=["tied", "untied"])
    @pytest.mark.parametrize("max_shard_bytes", [2**30, 50_000], ids=["single", "sharded"])
    def test_bfloat16_bits_survive(
        self, source: pathlib.Path, max_shard_bytes: int, tmp_path: pathlib.Path
    ):
        model, mesh = model_of(source), make_mesh(1, 4, 2)
        params = load_params(source, model, mesh, jnp.bfloat16)
        save_params(params, model, tmp_path, source=source, max_shard_bytes=max_shard_bytes)
        before, after = read_all(source), read_all(tmp_path)
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert after[name].dtype == value.dtype == ml_dtypes.bfloat16
            np.testing.assert_array_equal(bits(after[name]), bits(value), err_msg=name)
        assert (tmp_path / INDEX_FILE).exists() == (max_shard_bytes == 50_000)
        again = load_params(tmp_path, model, mesh, jnp.bfloat16)
        jax.tree.map(
            lambda a, b: np.testing.assert_array_equal(bits(np.asarray(a)), bits(np.asarray(b))),
            again,
            params,
        )

    def test_float32_masters_survive_a_float32_export(self, tmp_path: pathlib.Path):
        model = model_of(TIED)
        shapes = model.abstract_params()
        params = jax.tree.map(lambda x: jnp.linspace(0, 1 / 3, x.size).reshape(x.shape), shapes)
        save_params(params, model, tmp_path, dtype=jnp.float32)
        again = load_params(tmp_path, model, one_device())
        jax.tree.map(np.testing.assert_array_equal, again, params)
        raw = json.loads((tmp_path / "config.json").read_text())
        assert raw["torch_dtype"] == "float32"
        assert Qwen2Config.from_directory(tmp_path) == model.config

    def test_smaller_export_leaves_nothing_of_a_larger_one(self, tmp_path: pathlib.Path):
        model = model_of(TIED)
        params = load_params(TIED, model, one_device())
        save_params(params, model, tmp_path, max_shard_bytes=50_000)
        assert len(list(tmp_path.glob("model-*"))) > 3
        save_params(params, model, tmp_path)
        files = {path.name for path in tmp_path.iterdir()}
        assert files == {SINGLE_FILE, "config.json"}

    def test_transformers_reads_the_config(self, tmp_path: pathlib.Path):
        from transformers import AutoConfig

        model = model_of(UNTIED)
        save_params(load_params(UNTIED, model, one_device()), model, tmp_path)
        config = AutoConfig.from_pretrained(tmp_path)
        assert type(config).__name__ == "Qwen2Config"
        assert config.rope_parameters["rope_theta"] == 1e6
        assert config.num_key_value_heads == 4
        assert config.tie_word_embeddings is False
        with safetensors.safe_open(tmp_path / SINGLE_FILE, "np") as file:
            assert file.metadata() == {"format": "pt"}

    def test_source_gives_tokenizer_and_unknown_keys(self, tmp_path: pathlib.Path):
        source, target = tmp_path / "source", tmp_path / "target"
        shutil.copytree(TIED, source)
        (source / "tokenizer.json").write_text("{}")
        raw = json.loads((source / "config.json").read_text()) | {"eos_token_id": 7}
        (source / "config.json").write_text(json.dumps(raw))
        model = model_of(source)
        save_params(load_params(source, model, one_device()), model, target, source=source)
        assert (target / "tokenizer.json").read_text() == "{}"
        assert json.loads((target / "config.json").read_text())["eos_token_id"] == 7

    def test_parameters_of_another_model_are_refused(self, tmp_path: pathlib.Path):
        params = load_params(UNTIED, model_of(UNTIED), one_device())
        with pytest.raises(CheckpointError, match=r"head\.table"):
            save_params(params, model_of(TIED), tmp_path)


def write_single(directory: pathlib.Path, tensors: Tensors, source: pathlib.Path) -> None:
    directory.mkdir(exist_ok=True)
    safetensors.numpy.save_file(tensors, directory / SINGLE_FILE)
    shutil.copyfile(source / "config.json", directory / "config.json")


def write_sharded(directory: pathlib.Path, tensors: Tensors, source: pathlib.Path) -> None:
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, mine in halves.items():
        safetensors.numpy.save_file({n: tensors[n] for n in mine}, directory / file)
    weight_map = {n: file for file, mine in halves.items() for n in mine}
    (directory / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    shutil.copyfile(source / "config.json", directory / "config.json")


K = "model.layers.1.self_attn.k_proj.weight"


def set_key(key: str, value: Any) -> Callable[[pathlib.Path], None]:
    def change(directory: pathlib.Path) -> None:
        raw = json.loads((directory / "config.json").read_text()) | {key: value}
        (directory / "config.json").write_text(json.dumps(raw))

    return change


class TestRefused:
    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda t: t.pop(K), rf"tensor {K} is missing"),
            (lambda t: t.update(extra=t[K]), r"model\.safetensors: tensor extra is not one of"),
            (
                lambda t: t.update({K: t[K][:-1].copy()}),
                rf"model\.safetensors: tensor {K} is \[15, 112\], expected \[16, 112\]",
            ),
            (
                lambda t: t.update({K: t[K].T.copy()}),
                rf"tensor {K} is \[112, 16\], expected \[16, 112\]",
            ),
            (
                lambda t: t.update({K: t[K].astype(np.int32)}),
                rf"tensor {K} has dtype I32, expected one of BF16, F16, F32",
            ),
            (
                lambda t: t.update({K: t[K].astype(np.float32)}),
                rf"tensor {K} has dtype F32, expected BF16",
            ),
            (
                lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] * 2}),
                r"tensor lm_head.weight differs from model.embed_tokens.weight",
            ),
        ],
        ids=["missing", "extra", "short", "transposed", "integer", "other_float", "untied_head"],
    )
    def test_tensor(self, damage: Callable, message: str, tmp_path: pathlib.Path):
        tensors = read_all(TIED)
        damage(tensors)
        write_single(tmp_path, tensors, TIED)
        with pytest.raises(CheckpointError, match=message):
            load_params(tmp_path, model_of(TIED), one_device())

    def test_untied_model_without_head(self, tmp_path: pathlib.Path):
        tensors = read_all(UNTIED)
        del tensors["lm_head.weight"]
        write_single(tmp_path, tensors, UNTIED)
        with pytest.raises(CheckpointError, match=r"tensor lm_head\.weight is missing"):
            load_params(tmp_path, model_of(UNTIED), one_device())

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (set_key("architectures", ["LlamaForCausalLM"]), "only Qwen2ForCausalLM"),
            (set_key("model_type", "qwen3"), r"config\.json: model_type='qwen3'"),
            (set_key("num_hidden_layers", 5), "num_hidden_layers=5, but the model has 2"),
            (set_key("rms_norm_eps", 1e-5), "rms_norm_eps=1e-05, but the model has 1e-06"),
            (set_key("use_sliding_window", True), "use_sliding_window=true is not supported"),
            (lambda d: (d / "config.json").unlink(), r"config\.json does not exist"),
            (lambda d: (d / "config.json").write_text("{"), "config.json"),
            (lambda d: (d / SINGLE_FILE).unlink(), "neither model.safetensors nor"),
            (
                lambda d: (d / SINGLE_FILE).write_bytes((d / SINGLE_FILE).read_bytes()[:9000]),
                r"model\.safetensors can't be read",
            ),
        ],
        ids=[
            "architecture",
            "model_type",
            "layers",
            "epsilon",
            "window",
            "no_config",
            "broken_config",
            "no_weights",
            "truncated",
        ],
    )
    def test_directory(self, damage: Callable, message: str, tmp_path: pathlib.Path):
        write_single(tmp_path, read_all(TIED), TIED)
        damage(tmp_path)
        with pytest.raises(CheckpointError, match=message):
            load_params(tmp_path, model_of(TIED), one_device())

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (
                lambda d, index: (d / "b.safetensors").unlink(),
                r"b\.safetensors is missing; model\.safetensors\.index\.json says that it holds",
            ),
            (
                lambda d, index: index["weight_map"].update(ghost="a.safetensors"),
                r"tensor ghost is not in a\.safetensors, though",
            ),
            (
                lambda d, index: index["weight_map"].pop(K),
                rf"tensor {K} is in \w\.safetensors, but",
            ),
            (lambda d, index: index.pop("weight_map"), "has no readable weight_map"),
        ],
        ids=["missing_file", "ghost", "unlisted", "no_map"],
    )
    def test_index(self, damage: Callable, message: str, tmp_path: pathlib.Path):
        write_sharded(tmp_path, read_all(TIED), TIED)
        index = json.loads((tmp_path / INDEX_FILE).read_text())
        damage(tmp_path, index)
        (tmp_path / INDEX_FILE).write_text(json.dumps(index))
        with pytest.raises(CheckpointError, match=message):
            load_params(tmp_path, model_of(TIED), one_device())

    def test_undamaged_sharded_directory_loads(self, tmp_path: pathlib.Path):
        write_sharded(tmp_path, read_all(TIED), TIED)
        params = load_params(tmp_path, model_of(TIED), one_device())
        reference = load_params(TIED, model_of(TIED), one_device())
        jax.tree.map(np.testing.assert_array_equal, params, reference)

    def test_name_that_is_nothing(self):
        with pytest.raises(CheckpointError, match="no/such/thing is not a directory"):
            resolve_directory("no/such/thing")

    def test_hub_id_without_a_network(self, monkeypatch: pytest.MonkeyPatch):
        import huggingface_hub

        def refuse(name: str, **_: Any) -> str:
            raise huggingface_hub.errors.LocalEntryNotFoundError("outgoing traffic is disabled")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
        with pytest.raises(CheckpointError, match=r"owner/name .*outgoing traffic is disabled"):
            resolve_directory("owner/name")

    def test_hub_id_becomes_its_snapshot(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
    ):
        import huggingface_hub

        monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(tmp_path))
        assert resolve_directory("owner/name") == tmp_path


def test_every_parameter_has_a_place_with_its_shape():
    model = model_of(UNTIED)
    flat = jax.tree_util.tree_flatten_with_path(model.abstract_params())[0]
    shapes = {".".join(k.key for k in path): leaf.shape for path, leaf in flat}
    table = stored_tensors(model.config)
    assert shapes.keys() == table.keys()
    for path, tensor in table.items():
        layers = (model.config.num_hidden_layers,) if path.startswith("layers.") else ()
        assert shapes[path] == layers + tensor.shape, path
