"""Writes what transformers on torch computes, for tests that run without torch.

Run in an environment of its own (Python 3.11: `pip install torch==2.13.0 transformers==5.24.0`):

  python tests/numerics/make_torch_fixtures.py tiny
      The four Qwen2.5 sizes with their own head ratios and tying, shrunk to a few hundred kB:
      random weights as Hugging Face directories, and beside them `expected.npz` with logits, the
      gradients of all biases and norms, and greedy continuations. Written to fixtures/.

  python tests/numerics/make_torch_fixtures.py real CHECKPOINT PROMPTS.jsonl
      Greedy continuations (float32, 64 tokens) of the prompts ({"prompt": "..."} a line) by a real
      checkpoint. Written to fixtures/greedy_real.json with the checkpoint's SHA-256.
"""

import argparse
import hashlib
import json
import pathlib

import numpy as np
import torch
import transformers

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
# name: layers, query heads, key/value heads, head size, MLP width, tied.
SIZES = {
    "qwen2_5_0_5b": (2, 14, 2, 8, 144, True),
    "qwen2_5_1_5b": (3, 12, 2, 8, 120, True),
    "qwen2_5_3b": (2, 16, 2, 8, 152, True),
    "qwen2_5_7b": (2, 28, 4, 4, 160, False),
}
VOCAB_SIZE = 96
LENGTHS = (40, 23, 1)
NUM_GREEDY = 16


def make_tiny(name: str, seed: int) -> None:
    num_layers, num_heads, num_kv_heads, head_dim, width, is_tied = SIZES[name]
    config = transformers.Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=num_heads * head_dim,
        intermediate_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        rms_norm_eps=1e-6,
        rope_theta=1_000_000.0,
        tie_word_embeddings=is_tied,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    torch.manual_seed(seed)
    model = transformers.Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for param_name, param in model.named_parameters():
            # Far from the usual start, so that every bias, scale and head matters; bfloat16 values,
            # so that the float32 weights of the test are exactly those of the file.
            std = {1: 0.5}.get(param.ndim, 0.15)
            mean = 1.0 if "norm" in param_name else 0.0
            param.copy_((mean + std * torch.randn_like(param)).bfloat16().float())

    tokens = torch.randint(0, VOCAB_SIZE, (len(LENGTHS), max(LENGTHS)))
    mask = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
    logits = model(tokens, attention_mask=mask.long()).logits
    logp = torch.log_softmax(logits[:, :-1], -1).gather(-1, tokens[:, 1:, None])[..., 0]
    loss = -logp[mask[:, 1:]].mean()
    loss.backward()
    grads = {
        f"grad/{param_name}": param.grad.numpy()
        for param_name, param in model.named_parameters()
        if param.ndim == 1
    }
    greedy = np.stack([continue_greedily(model, row[:n]) for row, n in zip(tokens, LENGTHS)])
    folder = FIXTURES / name
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(
        folder / "expected.npz",
        tokens=tokens.numpy().astype(np.int32),
        lengths=np.array(LENGTHS, np.int32),
        logits=logits.detach().numpy(),
        loss=loss.item(),
        greedy=greedy,
        **grads,
    )


def continue_greedily(model: transformers.Qwen2ForCausalLM, prompt: torch.Tensor) -> np.ndarray:
    out = prompt.tolist()
    with torch.no_grad():
        for _ in range(NUM_GREEDY):
            out.append(int(model(torch.tensor([out])).logits[0, -1].argmax()))
    return np.array(out[len(prompt) :], np.int32)


def make_real(checkpoint: pathlib.Path, prompts_file: pathlib.Path, num_tokens: int) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    stops = [151645, 151643]
    rows = []
    for line in prompts_file.read_text().splitlines():
        prompt = tokenizer(json.loads(line)["prompt"], return_tensors="pt")
        out = model.generate(
            **prompt,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            max_new_tokens=num_tokens,
            eos_token_id=stops,
            pad_token_id=stops[1],
        )[0].tolist()
        num_prompt = prompt["input_ids"].shape[1]
        rows.append({"prompt": out[:num_prompt], "greedy": out[num_prompt:]})
        print(repr(tokenizer.decode(rows[-1]["greedy"])))
    digest = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    result = {"sha256": digest, "stop_token_ids": stops, "max_new_tokens": num_tokens, "rows": rows}
    path = FIXTURES / "greedy_real.json"
    path.write_text(json.dumps(result, separators=(",", ":")).replace('{"prompt"', '\n{"prompt"'))
    print(f"wrote {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tiny")
    real = commands.add_parser("real")
    real.add_argument("checkpoint", type=pathlib.Path)
    real.add_argument("prompts", type=pathlib.Path)
    real.add_argument("--num_tokens", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(2)
    if args.command == "real":
        make_real(args.checkpoint, args.prompts, args.num_tokens)
        return
    for seed, name in enumerate(SIZES):
        make_tiny(name, seed)
        print(f"wrote {FIXTURES / name}")


if __name__ == "__main__":
    main()
