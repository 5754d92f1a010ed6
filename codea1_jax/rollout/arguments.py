"""Options of `codea1 rollout` and `codea1 bench sampler`, without jax: help should be quick."""

import argparse
import pathlib


def add_model(parser: argparse.ArgumentParser) -> None:
    """What both commands take."""
    add = parser.add_argument
    add("--checkpoint", required=True, help="Hugging Face directory or hub id")
    add("--prompts", type=pathlib.Path, required=True, help=".jsonl, finished text in `prompt`")
    add("--group", type=int, default=1, help="samples of each prompt")
    add("--max_new_tokens", type=int, default=512)
    add("--temperature", type=float, default=1.0, help="0: greedy")
    add("--top_p", type=float, default=1.0)
    add("--top_k", type=int, default=0, help="0: off")
    add("--seed", type=int, default=0)
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add("--rows", type=int, default=64, help="samples that decode at a time")
    add("--prefill_rows", type=int, default=2, help="prompts in a prefill, at most")
    add("--decode_chunk", type=int, default=4, help="tokens between two looks of the host")
    add_attention(parser)


def add_attention(parser: argparse.ArgumentParser) -> None:
    """`LanguageModel.attention`, for every command that loads a checkpoint."""
    parser.add_argument(
        "--attention",
        choices=("auto", "xla", "pallas"),
        default="auto",
        help="auto: kernels on TPU where they take the sizes; pallas: an error where they do not",
    )


def add_rollout(parser: argparse.ArgumentParser) -> None:
    """The options of `codea1 rollout`."""
    add_model(parser)
    add = parser.add_argument
    add("--output", type=pathlib.Path, required=True, help=".jsonl, continued if it exists")
    add(
        "--max_prompt_tokens",
        type=int,
        help="longer prompts are left out and counted; default: what the model has room for",
    )
    add("--tokens", action="store_true", help="write token ids and their log-probabilities too")
