"""Options of `codea1 bench`, apart from what runs them: `codea1 --help` should not import jax."""

import argparse
import pathlib

from codea1_jax.rollout import arguments as rollout_arguments


def add_learner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, help="Hugging Face model directory")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=256, help="prompt and response, tokens")
    parser.add_argument("--prompt_length", type=int, default=128)
    parser.add_argument("--group", type=int, default=1, help="sequences that share a prompt")
    parser.add_argument(
        "--naive", action="store_true", help="with --group: a prompt of its own for every sequence"
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--remat", choices=("none", "dots", "full"), default="none")
    parser.add_argument("--tokens_per_chunk", type=int, default=1024)
    parser.add_argument("--micro_batch_tokens", type=int, help="default: all in one micro-batch")
    parser.add_argument("--steps", type=int, default=3, help="timed steps, after one that is not")
    rollout_arguments.add_attention(parser)


def add_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gin_file", action="append", required=True, help="may be repeated")
    parser.add_argument("--steps", type=int, default=3, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before, which compile")


def add_sampler(parser: argparse.ArgumentParser) -> None:
    rollout_arguments.add_model(parser)
    parser.add_argument(
        "--natural_eos",
        action="store_true",
        help="samples end at the model's stop tokens; default: all have MAX_NEW_TOKENS tokens",
    )
    parser.add_argument("--plot", type=pathlib.Path, help="occupancy over time, as PNG")


def add_curves(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--checkpoint", required=True, help="Hugging Face directory or hub id")
    add("--slots", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    add("--contexts", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    add("--groups", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="divisors of --rows")
    add("--rows", type=int, default=16, help="samples where slots do not vary")
    add("--context", type=int, default=256, help="prompt and answer where it does not vary, tokens")
    add("--new_tokens", type=int, default=16, help="of each answer")
    add("--decode_chunk", type=int, default=4)
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add("--plot", type=pathlib.Path, help="PNG")
    rollout_arguments.add_attention(parser)
