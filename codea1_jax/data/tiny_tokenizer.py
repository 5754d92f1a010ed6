"""Trains the tokenizer of the embedded checkpoint: byte-level BPE, a few hundred tokens.

Any text can be encoded (all 256 bytes are there), but it is made for the embedded problems:
- a digit is always a token of its own, with the space before it if there is one;
- a line break carries its indentation, a fence its language;
- the letters in string literals stay single;
- each fixed sentence of the coder's and the tester's prompts is one token, so that a model of
  a million parameters spends its few positions on the question and the code.
The special tokens and the turn format are Qwen2.5's, without its default system message.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from codea1_jax.coevo.prompts import coder_messages, tester_messages
from codea1_jax.data.embedded_problems import SolvedProblem
from codea1_jax.data.record import Problem

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TURN = "<|im_end|>"
# Qwen2's split: transformers puts it in whatever a Qwen2 model's tokenizer.json says.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Pieces that the split would cut although they always come whole.
_FRAMES = (
    *("```python\n", "\n```", "\n    ", "\n        ", "\n            "),
    *("system\n", "user\n", "assistant\n"),
    *(f" {digit}" for digit in range(10)),
)
_CUT = re.compile(r"\n *| \d")
_MARK = "\x00"  # stands for what changes between prompts
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def prompt_phrases() -> list[str]:
    """The fixed pieces of both roles' prompts, cut at line breaks, numbers and filled-in text."""
    problem = Problem(_MARK, _MARK, question=_MARK, description=_MARK, reference=_MARK)
    shown = [coder_messages(problem), tester_messages(problem, _MARK, 5, style="simple")]
    pieces: dict[str, None] = {}
    for message in (message for messages in shown for message in messages):
        for piece in re.split(rf"[\n\d{_MARK}]+", message["content"]):
            if len(piece) > 2:
                pieces[piece] = None
    return list(pieces)


def _corpus(rows: Sequence[SolvedProblem]) -> Iterable[str]:
    """Questions, code, and the frame of tests; no literals, so that their letters stay single."""
    for row in rows:
        problem = row.problem
        for text in (problem.question, *row.solutions, *row.slips):
            yield _CUT.sub("\n", text)  # these pieces will never reach the merges
        for test in problem.golden_tests[:2]:
            yield _CUT.sub("\n", re.sub(r"'[^']*'", "''", test))


def train_tokenizer(rows: Sequence[SolvedProblem], vocab_size: int) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` ids, or fewer when the text yields fewer merges."""
    phrases = [*prompt_phrases(), *_FRAMES]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(phrases),
        min_frequency=3,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(rows), trainer)
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in phrases])
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    return tokenizer


@dataclasses.dataclass(frozen=True)
class TinyModelSizes:
    """Sizes of the embedded checkpoint; heads of 32 keep rotary positions useful."""

    hidden_size: int = 128
    intermediate_size: int = 256
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 1024


def write_tiny_directory(
    directory: str | pathlib.Path,
    rows: Sequence[SolvedProblem],
    vocab_size: int,
    sizes: TinyModelSizes,
) -> None:
    """Writes config, generation config and tokenizer of an untrained tiny Qwen2 model.

    The weights are the caller's: `models/hf_io.py`, `save_params`.
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(rows, vocab_size)
    tokenizer.save(str(directory / "tokenizer.json"))
    end, pad = (tokenizer.token_to_id(t) for t in (END_OF_TURN, "<|endoftext|>"))
    tokenizer_config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": END_OF_TURN,
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "model_max_length": sizes.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **dataclasses.asdict(sizes),
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "bos_token_id": pad,
        "eos_token_id": end,
        "torch_dtype": "float32",
    }
    generation = {"bos_token_id": pad, "eos_token_id": [end, pad], "pad_token_id": pad}
    for name, content in (
        ("tokenizer_config.json", tokenizer_config),
        ("config.json", config),
        ("generation_config.json", generation),
    ):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
