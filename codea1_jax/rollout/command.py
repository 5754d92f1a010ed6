"""`codea1 rollout`: samples of a checkpoint for finished prompts, a JSON line each.

codea1 rollout --checkpoint=DIR --prompts=FILE.jsonl --output=OUT.jsonl --group=8

A prompt's line has its text under `prompt` and, if wanted, a name under `id` (default: its line
number from 0). A sample's line has `id`, `sample`, `text`, `num_tokens`, `logp` (sum over its
tokens) and `finish_reason`. The same command continues after a kill: a sample follows from
(seed, id, sample), so the file has the lines it would have had, in another order.
"""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import jax
import jax.numpy as jnp

from codea1_jax.data import rows as rows_lib
from codea1_jax.errors import UserError
from codea1_jax.mesh import make_mesh
from codea1_jax.models import hf_io
from codea1_jax.models.config import Qwen2Config
from codea1_jax.models.qwen2 import LanguageModel
from codea1_jax.models.tokenizer import ChatTokenizer
from codea1_jax.obs.progress import QUIET_S, REDRAW_S, duration
from codea1_jax.rollout.engine import RolloutConfig, RolloutEngine
from codea1_jax.rollout.types import GroupRequest, Sample, SamplingParams
from codea1_jax.typing import Params

_BUCKET = 32  # prompts are padded to multiples of this
_MIN_ROWS = 8


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One line of the prompts file."""

    id: str
    text: str


@dataclasses.dataclass(frozen=True)
class Sampler:
    """A loaded checkpoint with an engine whose buckets fit the prompts."""

    model: LanguageModel
    tokenizer: ChatTokenizer
    params: Params
    engine: RolloutEngine
    sampling: SamplingParams
    groups: tuple[GroupRequest, ...]
    num_left_out: int  # prompts over the limit

    def generate(self, groups: tuple[GroupRequest, ...]) -> Iterator[Sample]:
        return self.engine.generate(self.params, groups, self.sampling, policy_version=0)


def read_prompts(path: pathlib.Path) -> list[Prompt]:
    """Raises UserError for a file without prompts, a line without `prompt` or an `id` twice."""
    prompts = []
    for number, row in enumerate(rows_lib.read_rows(path)):
        where = f"--prompts={path}: prompt {number}"
        text = rows_lib.field(row, "prompt", str, where)
        if not text:
            raise UserError(f"{where}: `prompt` is empty")
        prompts.append(Prompt(str(row.get("id", number)), text))
    if not prompts:
        raise UserError(f"--prompts={path}: no prompts; give one JSON object with `prompt` a line")
    ids = [prompt.id for prompt in prompts]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise UserError(f"--prompts={path}: the id {twice!r} is there twice; make ids unique")
    return prompts


def load(options: argparse.Namespace, *, natural_eos: bool = True) -> Sampler:
    """Loads the checkpoint and builds the engine.

    Args:
      natural_eos: end samples at the checkpoint's stop tokens.

    Raises:
      UserError: names the option that does not fit.
    """
    prompts = read_prompts(options.prompts)
    directory = hf_io.resolve_directory(options.checkpoint)
    tokenizer = ChatTokenizer(directory)
    dtype = jnp.dtype(options.dtype)
    config = Qwen2Config.from_directory(directory)
    model = LanguageModel(config, compute_dtype=dtype, attention=options.attention)
    sampling = SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        max_new_tokens=options.max_new_tokens,
        stop_token_ids=tokenizer.stop_token_ids if natural_eos else (),
    )
    room = (model.config.max_position_embeddings - options.max_new_tokens) // _BUCKET * _BUCKET
    if room < _BUCKET:
        raise UserError(
            f"--max_new_tokens={options.max_new_tokens} leaves no room for a prompt in the model's "
            f"{model.config.max_position_embeddings} positions; lower it"
        )
    limit = min(getattr(options, "max_prompt_tokens", None) or room, room)
    groups = []
    for prompt in prompts:
        tokens = tuple(tokenizer.encode(prompt.text))
        if len(tokens) <= limit:
            groups.append(GroupRequest(prompt.id, tokens, options.group, options.seed))
    if not groups:
        raise UserError(f"--prompts={options.prompts}: all prompts have more than {limit} tokens")
    mesh = make_mesh()
    try:
        engine = RolloutEngine(model, mesh, _shapes(options, mesh, groups), tokenizer.pad_id)
        engine.check(groups, sampling)
    except ValueError as error:
        raise UserError(str(error)) from error
    params = hf_io.load_params(directory, model, mesh, dtype)
    return Sampler(
        model, tokenizer, params, engine, sampling, tuple(groups), len(prompts) - len(groups)
    )


def _shapes(
    options: argparse.Namespace, mesh: jax.sharding.Mesh, groups: list[GroupRequest]
) -> RolloutConfig:
    ordered = sorted(len(group.prompt) for group in groups)
    # Half of the prompts, nine tenths, all: three shapes to compile, little padding.
    chosen = [ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.9, 1.0)]
    multiple = mesh.shape["data"] * mesh.shape["fsdp"]
    return RolloutConfig(
        prompt_buckets=tuple(sorted({-(-length // _BUCKET) * _BUCKET for length in chosen})),
        rows=-(-options.rows // multiple) * multiple,
        prefill_rows=options.prefill_rows,
        min_rows=_MIN_ROWS,
        decode_chunk=options.decode_chunk,
    )


def run(options: argparse.Namespace) -> int:
    written = _written(options)
    sampler = load(options)
    if sampler.num_left_out:
        print(f"{sampler.num_left_out} prompts are over the limit and left out", file=sys.stderr)
    # A group that was cut off is drawn again as a whole; what is in the file is not written twice.
    todo = tuple(
        group
        for group in sampler.groups
        if any((group.request_id, i) not in written for i in range(options.group))
    )
    if written:
        print(f"{len(written)} samples are in {options.output} already", file=sys.stderr)
    progress = _Progress(sum(group.num_samples for group in todo), sys.stderr)
    with options.output.open("a", encoding="utf-8") as file:
        for sample in sampler.generate(todo):
            if (sample.request_id, sample.sample_index) not in written:
                line = _line(sample, sampler.tokenizer.decode, options.tokens)
                file.write(json.dumps(line) + "\n")
                file.flush()
            progress.advance(len(sample.tokens))
    progress.finish()
    return 0


def _line(sample: Sample, decode: Callable[[list[int]], str], with_tokens: bool) -> dict[str, Any]:
    line = {
        "id": sample.request_id,
        "sample": sample.sample_index,
        "text": decode(sample.tokens.tolist()),
        "num_tokens": len(sample.tokens),
        "logp": round(float(sample.sampler_logp.sum(dtype=float)), 6),
        "finish_reason": sample.finish_reason,
    }
    if with_tokens:
        line["tokens"] = sample.tokens.tolist()
        line["token_logp"] = [round(float(logp), 6) for logp in sample.sampler_logp]
    return line


def _written(options: argparse.Namespace) -> set[tuple[str, int]]:
    """Samples of an earlier start of the same command; an unfinished last line is cut off.

    Raises:
      UserError: the file was written with other settings.
    """
    output: pathlib.Path = options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    meta_path = output.with_name(output.name + ".meta.json")
    names = ("checkpoint", "group", "max_new_tokens", "temperature", "top_p", "top_k", "seed",
             "dtype", "max_prompt_tokens", "tokens")  # fmt: skip
    meta = {name: getattr(options, name) for name in names}
    try:
        meta["prompts_sha256"] = hashlib.sha256(options.prompts.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"--prompts={options.prompts}: cannot be read ({error})") from error
    if not output.exists():
        meta_path.write_text(json.dumps(meta, indent=1) + "\n")
        return set()
    found = json.loads(meta_path.read_text()) if meta_path.exists() else {}
    changed = [name for name in meta if found.get(name) != meta[name]]
    if changed:
        raise UserError(
            f"--output={output} was written with another {', '.join(changed)}; "
            "remove it or choose another file"
        )
    content = output.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        output.write_bytes(whole)
    lines = [json.loads(line) for line in whole.splitlines()]
    return {(line["id"], line["sample"]) for line in lines}


class _Progress:
    """A line on stderr: samples, tokens per second, time left."""

    def __init__(self, total: int, stream: TextIO):
        self._total = total
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._wait_s = REDRAW_S if self._is_terminal else QUIET_S
        self._start = self._last = time.monotonic()
        self._samples = self._tokens = 0

    def advance(self, num_tokens: int) -> None:
        self._samples += 1
        self._tokens += num_tokens
        if time.monotonic() - self._last >= self._wait_s:
            self._last = time.monotonic()
            self._show("" if self._is_terminal else "\n")

    def finish(self) -> None:
        self._show("\n")

    def _show(self, end: str) -> None:
        spent = max(time.monotonic() - self._start, 1e-9)
        left = spent / max(self._samples, 1) * (self._total - self._samples)
        text = (
            f"{self._samples}/{self._total} samples  {self._tokens / spent:.1f} tokens/s  "
            f"left {duration(left)}"
        )
        redraw = "\r\033[K" if self._is_terminal else ""
        print(f"{redraw}{text}", end=end, file=self._stream, flush=True)
