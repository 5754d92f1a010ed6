"""A manifest with a typing error, or one that opens the cluster to strangers' code."""

import pathlib
import re
import shlex
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from sandbox_service import cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "sandbox_service" / "deploy"
SCHEMA_VERSIONS = ("1.30", "1.33")


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    """The documents of kubernetes.yaml by kind."""
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in documents if document}


@pytest.mark.parametrize("version", SCHEMA_VERSIONS)
def test_manifests_keep_to_the_published_schema(
    manifests: dict[str, dict[str, Any]], version: str
) -> None:
    """Unknown and misspelt fields are errors: a cluster would drop them without a word."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    assert set(manifests) == {
        *("Deployment", "Service", "NetworkPolicy", "HorizontalPodAutoscaler"),
        *("PodDisruptionBudget", "ServiceAccount"),
    }
    for document in manifests.values():
        kubernetes_validate.validate(document, version, strict=True)
    broken = yaml.safe_load(yaml.safe_dump(manifests["Deployment"]))
    broken["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_manifests_fit_together(manifests: dict[str, dict[str, Any]]) -> None:
    """Labels, ports and names that do not match make a service without pods."""
    deployment = manifests["Deployment"]["spec"]
    pod = deployment["template"]
    labels = pod["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert manifests["Service"]["spec"]["selector"] == labels
    assert manifests["Service"]["spec"]["clusterIP"] == "None"
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert manifests["Service"]["spec"]["ports"][0]["targetPort"] in ports
    policy = manifests["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    allowed = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert allowed == set(ports.values())
    scaler = manifests["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == manifests["Deployment"]["metadata"]["name"]
    # The manifests and the Dockerfile start the service with options that it has.
    arguments = cli._parser().parse_args(container["args"])
    assert arguments.address.endswith(f":{ports['grpc']}")
    assert arguments.metrics_address.endswith(f":{ports['metrics']}")
    assert cli._check_serve(arguments) == ""


def test_pods_are_locked_down(manifests: dict[str, dict[str, Any]]) -> None:
    """Whoever breaks out of a cage must find nothing in the pod."""
    policy = manifests["NetworkPolicy"]["spec"]
    assert policy["egress"] == []
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert all(rule["from"] for rule in policy["ingress"])
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["terminationGracePeriodSeconds"] > 25
    assert not {"hostPID", "hostNetwork", "hostIPC"} & set(pod)
    assert all("hostPath" not in volume for volume in pod["volumes"])
    security = pod["containers"][0]["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert set(pod["containers"][0]["resources"]["limits"]) >= {"cpu", "memory"}


def test_dockerfile_serves_with_known_options() -> None:
    """An image that does not start is found out by a cluster at night."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    command = re.search(r"^CMD \[(.*)\]$", text, re.MULTILINE)
    assert command is not None
    arguments = cli._parser().parse_args(shlex.split(command[1].replace(",", " ")))
    assert cli._check_serve(arguments) == ""
    assert re.search(r"^USER [1-9]", text, re.MULTILINE)
    for source in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for path in source.split():
            assert (ROOT / path).exists(), path


def test_systemd_unit(tmp_path: pathlib.Path) -> None:
    """A unit that systemd ignores half of would start without its limits."""
    text = (DEPLOY / "codea1-sandbox.service").read_text()
    command = re.search(r"^ExecStart=(.*?[^\\])$", text, re.MULTILINE | re.DOTALL)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    assert cli._check_serve(cli._parser().parse_args(words[1:])) == ""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "codea1-sandbox.service"
    unit.write_text(text.replace(words[0], "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_launcher_explains_itself() -> None:
    """The first thing that a stranger types."""
    script = ROOT / "launch" / "sandbox.sh"
    done = subprocess.run(
        ["bash", str(script), "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    for word in ("launch/sandbox.sh", "CODEA1_SANDBOX_VENV", "Not tried"):
        assert word in done.stdout
    subprocess.run(["bash", "-n", str(script)], check=True)
