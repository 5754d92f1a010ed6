"""Sizes of the models this project trains, so that a plan needs no download.

From the `config.json` of each model's public home. The parameter counts of gin/models/*.gin are
checked against them in tests/unit/test_plan.py.
"""

from codea1_jax.config import RoleConfig
from codea1_jax.gin_io import ConfigurationError, resolve_path
from codea1_jax.models.config import Qwen2Config


def _qwen(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **more) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=more.get("vocab_size", 151936),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=more.get("tie_word_embeddings", True),
        max_position_embeddings=32768,
    )


SIZES = {
    "0.5B": _qwen(896, 4864, 24, 14, 2),
    "1.5B": _qwen(1536, 8960, 28, 12, 2),
    "3B": _qwen(2048, 11008, 36, 16, 2),
    "7B": _qwen(3584, 18944, 28, 28, 4, vocab_size=152064, tie_word_embeddings=False),
}
MODELS = {
    f"Qwen/Qwen2.5{kind}-{size}{tuned}": config
    for size, config in SIZES.items()
    for kind in ("", "-Coder")
    for tuned in ("", "-Instruct")
}


def model_sizes(role: RoleConfig) -> Qwen2Config:
    """Sizes of a role's model: its directory's `config.json`, or the published ones of its hub id.

    Raises:
      ConfigurationError: neither a directory nor one of `MODELS`.
    """
    directory = resolve_path(role.checkpoint)
    if directory.is_dir():
        return Qwen2Config.from_directory(directory)
    if role.checkpoint in MODELS:
        return MODELS[role.checkpoint]
    raise ConfigurationError(
        f"{role.name}/RoleConfig.checkpoint={role.checkpoint!r} is no directory, and its sizes are "
        "not known offline; give a directory with its config.json"
    )
