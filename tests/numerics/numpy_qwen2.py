"""Qwen2.5's forward pass in NumPy, float64, one sequence at a time, from Hugging Face's tensors.

Written from the architecture's definition, loops over heads and without the package's layouts: the
second opinion beside the torch fixtures.
"""

import json
import pathlib

import ml_dtypes  # noqa: F401  (safetensors finds bfloat16 through it)
import numpy as np
import safetensors.numpy


def load(directory: pathlib.Path) -> tuple[dict, dict[str, np.ndarray]]:
    config = json.loads((directory / "config.json").read_text())
    tensors = safetensors.numpy.load_file(directory / "model.safetensors")
    return config, {name: value.astype(np.float64) for name, value in tensors.items()}


def rms_norm(x: np.ndarray, scale: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def rotate(x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    """x [L H]: pairs (x[i], x[i + H/2]) turn by position * theta^(-2i/H), as complex numbers."""
    half = x.shape[1] // 2
    angle = positions[:, None] * theta ** (-np.arange(half) / half)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=1)


def forward(
    config: dict, tensors: dict[str, np.ndarray], tokens: np.ndarray, first_position: int = 0
) -> np.ndarray:
    """Logits [L V] of one sequence."""
    theta = config["rope_parameters"]["rope_theta"]
    epsilon, num_heads = config["rms_norm_eps"], config["num_attention_heads"]
    group = num_heads // config["num_key_value_heads"]
    positions = first_position + np.arange(len(tokens))
    causal = np.tril(np.ones((len(tokens), len(tokens)), bool))
    x = tensors["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        weights = {
            name.removeprefix(f"model.layers.{layer}."): value
            for name, value in tensors.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        normed = rms_norm(x, weights["input_layernorm.weight"], epsilon)
        q, k, v = (
            normed @ weights[f"self_attn.{name}_proj.weight"].T
            + weights[f"self_attn.{name}_proj.bias"]
            for name in "qkv"
        )
        size = q.shape[1] // num_heads
        outs = []
        for head in range(num_heads):
            mine, shared = (slice(i * size, (i + 1) * size) for i in (head, head // group))
            q_head, k_head = (
                rotate(a[:, cut], positions, theta) for a, cut in ((q, mine), (k, shared))
            )
            scores = np.where(causal, q_head @ k_head.T / np.sqrt(size), -np.inf)
            weight = np.exp(scores - scores.max(1, keepdims=True))
            outs.append(weight / weight.sum(1, keepdims=True) @ v[:, shared])
        x = x + np.concatenate(outs, 1) @ weights["self_attn.o_proj.weight"].T
        normed = rms_norm(x, weights["post_attention_layernorm.weight"], epsilon)
        gate = normed @ weights["mlp.gate_proj.weight"].T
        up = normed @ weights["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights["mlp.down_proj.weight"].T
    x = rms_norm(x, tensors["model.norm.weight"], epsilon)
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return x @ tensors[f"{head}.weight"].T
