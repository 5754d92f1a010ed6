"""Chat prompts to token ids and back, on top of a Hugging Face tokenizer."""

import json
import os
import pathlib
from collections.abc import Sequence


class ChatTokenizer:
    """A tokenizer with the model's chat template and stop tokens.

    Attributes:
      pad_id: id used for padding. Masks never come from it (it may equal a stop token).
      stop_token_ids: ids that end an answer: `generation_config.json`'s and the tokenizer's.
    """

    def __init__(self, directory: str | pathlib.Path):
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(str(directory))
        stops = {self._tokenizer.eos_token_id}
        generation = pathlib.Path(directory) / "generation_config.json"
        if generation.exists():
            eos = json.loads(generation.read_text()).get("eos_token_id")
            stops.update(eos if isinstance(eos, list) else [eos])
        self.stop_token_ids: tuple[int, ...] = tuple(sorted(i for i in stops if i is not None))
        pad = self._tokenizer.pad_token_id
        self.pad_id: int = pad if pad is not None else self.stop_token_ids[0]
        self.vocab_size: int = len(self._tokenizer)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of the templated conversation, ending with the generation prompt."""
        text = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        assert isinstance(text, str)  # tokenize=False
        return self.encode(text)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of an answer, special tokens dropped, whitespace untouched."""
        text = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)  # one sequence in, one text out
        return text

    def save(self, directory: str | pathlib.Path) -> None:
        """Writes the tokenizer, and the stop tokens where `generate` looks for them."""
        self._tokenizer.save_pretrained(str(directory))
        generation = {"eos_token_id": list(self.stop_token_ids), "pad_token_id": self.pad_id}
        path = pathlib.Path(directory) / "generation_config.json"
        path.write_text(json.dumps(generation) + "\n")
