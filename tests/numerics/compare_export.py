"""An exported role in our engine and in transformers on torch: greedy text, side by side.

    python compare_export.py TORCH_PYTHON EXPORT PROMPTS.jsonl [--max_new_tokens N]

EXPORT is what `codea1 export --dtype=float32` wrote; TORCH_PYTHON an interpreter with torch and
transformers; PROMPTS has a finished prompt text a line under `prompt`. Transformers gets nothing
but the folder: its tokenizer, stop tokens and padding are those of the export. Prints one JSON line
and ends with 1 if a text differs.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile


def transformers_texts(checkpoint: str, prompts: pathlib.Path, max_new_tokens: int) -> list[str]:
    """One text a prompt; in the interpreter that has torch."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    texts = []
    for line in prompts.read_text().splitlines():
        inputs = tokenizer(json.loads(line)["prompt"], return_tensors="pt")
        with torch.no_grad():
            out = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
        new = out[0, inputs["input_ids"].shape[1] :]
        texts.append(tokenizer.decode(new, skip_special_tokens=True))
    return texts


def our_texts(checkpoint: str, prompts: pathlib.Path, max_new_tokens: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        samples = pathlib.Path(folder) / "samples.jsonl"
        command = [sys.executable, "-m", "codea1_jax.cli", "rollout", "--temperature=0"]
        command += [f"--checkpoint={checkpoint}", f"--prompts={prompts}", f"--output={samples}"]
        command += ["--dtype=float32", "--group=1", f"--max_new_tokens={max_new_tokens}"]
        subprocess.run(command, check=True)
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
    return [row["text"] for row in sorted(rows, key=lambda row: int(row["id"]))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("torch_python")
    parser.add_argument("export")
    parser.add_argument("prompts", type=pathlib.Path)
    parser.add_argument("--max_new_tokens", type=int, default=64)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    job = (options.export, options.prompts, options.max_new_tokens)
    if options.peer:
        json.dump(transformers_texts(*job), sys.stdout)
        return 0
    command = [options.torch_python, __file__, *sys.argv[1:], "--peer"]
    theirs = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    ours = our_texts(*job)
    equal = [a == b for a, b in zip(ours, theirs, strict=True)]
    for index in (i for i, same in enumerate(equal) if not same):
        print(f"prompt {index}\n  ours   {ours[index]!r}\n  theirs {theirs[index]!r}")
    print(
        json.dumps({"prompts": len(equal), "equal": sum(equal), "tokens": options.max_new_tokens})
    )
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
