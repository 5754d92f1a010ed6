"""If this fails, the port is right on tiny models and wrong on the real one (sizes, length)."""

import functools
import hashlib
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codea1_jax.mesh import make_mesh
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.hf_io import load_params
from codea1_jax.models.qwen2 import LanguageModel

EXPECTED = pathlib.Path(__file__).parent / "fixtures" / "greedy_real.json"


@pytest.mark.real_model
@pytest.mark.timeout(1800)
def test_greedy_tokens_equal_torch(real_checkpoint: pathlib.Path):
    """float32, 64 tokens of 8 HumanEval prompts, against transformers on torch, token by token."""
    expected = json.loads(EXPECTED.read_text())
    with (real_checkpoint / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == expected["sha256"], (
        "the expected tokens belong to another checkpoint; remake them: "
        "python tests/numerics/make_torch_fixtures.py real CHECKPOINT PROMPTS.jsonl"
    )
    model = LanguageModel(Qwen2Config.from_directory(real_checkpoint))
    params = load_params(real_checkpoint, model, make_mesh(devices=jax.devices()[:1]))
    rows, num_new = expected["rows"], expected["max_new_tokens"]
    lengths = np.array([len(row["prompt"]) for row in rows], np.int32)
    tokens = np.zeros((len(rows), lengths.max()), np.int32)
    for row, length, into in zip(rows, lengths, tokens):
        into[:length] = row["prompt"]
    hidden, cache = jax.jit(model.prefill, static_argnums=3)(
        params, tokens, lengths, int(lengths.max()) + num_new
    )

    @functools.partial(jax.jit, donate_argnums=3)
    def step(params: Any, hidden: Any, positions: Any, cache: Any) -> Any:
        token = jnp.argmax(model.logits(params, hidden), -1).astype(jnp.int32)
        return token, model.decode(params, token, positions, cache)

    got = []
    for i in range(num_new):
        token, (hidden, cache) = step(params, hidden, lengths + i, cache)
        got.append(np.asarray(token))
    for index, row in enumerate(rows):
        ours = [int(token[index]) for token in got]
        assert len(row["greedy"]) == num_new or row["greedy"][-1] in expected["stop_token_ids"]
        assert ours[: len(row["greedy"])] == row["greedy"], f"prompt {index}"
