"""What compiled sampling programs hold and send: a second cache or a sent weight is lost speed."""

import math
import re

import jax
import numpy as np
import pytest

from codea1_jax.mesh import make_mesh
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.rollout.programs import CacheShape, DecodeShape, Programs
from codea1_jax.rollout.sampling import Method

CONFIG = Qwen2Config(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    max_position_embeddings=4096,
)
MODEL = LanguageModel(CONFIG)
SHAPE = CacheShape(rows=8, length=1024)
PLAIN = Method(is_greedy=False, top_k=0, has_top_p=False)
CACHE_BYTES = 2 * 6 * 8 * 1024 * 2 * 16 * 4


def compiled(sizes):
    devices = jax.devices()[: math.prod(sizes)]
    programs = Programs(MODEL, make_mesh(*sizes, devices=devices), pad_id=0, chunk=4)
    return programs, programs.decode(DecodeShape(SHAPE, PLAIN, num_stops=8))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 1)], ids=str)
def test_decoding_updates_the_cache_in_place(sizes):
    """A copy of the cache in every loop halves the context that fits."""
    programs, decode = compiled(sizes)
    memory = decode.memory_analysis()
    per_device = CACHE_BYTES / math.prod(sizes)
    assert memory.alias_size_in_bytes >= per_device
    # Scores and logits.
    assert memory.temp_size_in_bytes < per_device / 4
    insert = programs.insert(*SHAPE, 32).memory_analysis()
    assert insert.alias_size_in_bytes >= per_device
    assert insert.temp_size_in_bytes < per_device / 4


COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def collectives(text):
    """(kind, elements) of every collective of a compiled program."""
    found = []
    for shapes, kind in COLLECTIVE.findall(text):
        sizes = re.findall(r"\w+\[([\d,]*)\]", shapes)
        found.append((kind, max(math.prod(map(int, filter(None, s.split(",")))) for s in sizes)))
    return found


@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 2, 2), (1, 2, 4)], ids=str)
def test_decoding_sends_activations_only(sizes):
    """Gathered weights or keys and values would make every token pay for the network."""
    _, decode = compiled(sizes)
    found = collectives(decode.as_text())
    assert found or sizes[2] == 1  # split heads have to be summed, so the pattern must match
    # The largest activation is the logits of all rows; the smallest matrix has twice as many.
    largest_activation = SHAPE.rows * CONFIG.vocab_size
    assert largest_activation <= CONFIG.hidden_size**2
    for kind, elements in found:
        assert elements <= largest_activation, f"{kind} of {elements} elements"


def test_layers_are_unrolled_on_cpu_only_without_a_tensor_axis():
    """The form follows the devices of the mesh; the wrong one costs a third of a step."""
    for sizes, num_leaves in (((1, 1, 1), 12), ((2, 2, 2), 2)):
        devices = jax.devices()[: math.prod(sizes)]
        programs = Programs(MODEL, make_mesh(*sizes, devices=devices), 0, 4)
        assert len(jax.tree.leaves(programs.empty(*SHAPE)())) == num_leaves


def test_a_shrunk_cache_holds_the_rows_that_were_asked_for():
    """A row that moves to another row's keys and values goes on with another sample's text."""
    programs = Programs(MODEL, make_mesh(1, 1, 1, devices=jax.devices()[:1]), 0, 4)
    before, after = CacheShape(4, 12), CacheShape(2, 6)
    rng = np.random.default_rng(0)
    cache = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), programs.empty(*before)()
    )
    expected = [np.asarray(leaf)[[3, 1], :, :6] for leaf in jax.tree.leaves(cache)]
    got = programs.shrink(before, after)(cache, np.array([3, 1], np.int32))
    for leaf, want in zip(jax.tree.leaves(got), expected, strict=True):
        np.testing.assert_array_equal(leaf, want)
