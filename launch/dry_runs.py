"""Writes the dry runs that docs/launch.md quotes, from the launchers as they are.

python launch/dry_runs.py           writes them into docs/launch.md
python launch/dry_runs.py --check   exit code 1 when the quoted ones are out of date
"""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "launch.md"
START, END = "<!-- dry runs: start -->", "<!-- dry runs: end -->"
SLICES = ("v6e-8", "v4-32", "v5e-16", "v5p-64")
PLACE = "--name=a1 --project=my-project --zone=us-east5-b --bucket=gs://my-bucket/codea1"
CLUSTER = "--cluster=tpus --image=IMAGE"
TRAIN = "-- --gin_file=gin/runs/a1_1_5b.gin --gin.SEED=1"
LAUNCHERS = {
    "tpu_vm.sh": f"{PLACE} --spot",
    "gke.sh": f"{PLACE} {CLUSTER} --own-node-pool",
    "xpk.sh": f"{PLACE} {CLUSTER}",
}


def dry_run(script: str, accelerator: str, options: str) -> str:
    """One command and what it prints, as a folded block of Markdown."""
    # Hosts of several chips: v6e-8 is one host everywhere but under xpk.
    is_single = accelerator == "v6e-8" and script != "xpk.sh"
    multi = "" if is_single else " --allow-multi-host"
    words = f"launch/{script} start {options} --accelerator={accelerator}{multi} --dry-run {TRAIN}"
    command = words.replace("IMAGE", "images/codea1:1")
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, cwd=ROOT
    )
    output = done.stdout.replace(str(ROOT), ".").rstrip()
    return (
        f"<details><summary>{script}, {accelerator}</summary>\n\n"
        f"```console\n{command}\n\n{output}\n```\n\n</details>"
    )


def main() -> int:
    blocks = [
        dry_run(script, accelerator, options)
        for script, options in LAUNCHERS.items()
        for accelerator in SLICES
    ]
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(START)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{DOCUMENT}: no '{START}' and '{END}'")
    new = "\n".join([before + START, "", "\n\n".join(blocks), "", END]) + after
    if "--check" in sys.argv[1:]:
        return int(new != text)
    DOCUMENT.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
