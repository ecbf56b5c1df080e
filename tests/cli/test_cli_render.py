"""`hindcast render`: manifests on stdout, reasons as comments, errors as sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_result import Hindcast
from ruamel.yaml import YAML

INSTALLATION_PAGE = Path(__file__).parents[2] / "docs" / "install-cluster.md"
KINDS = ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "RayJob"]


@pytest.fixture
def values_file(tmp_path: Path) -> Path:
    """Write a values file of the chart, which sets a storage root and an image."""
    file = tmp_path / "values.yaml"
    file.write_text("replicas: 2\ndefaults: {storageRoot: 's3://bucket/hindcast', image: 'platform:key:1'}\n")
    return file


def load_documents(text: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all(text))


def test_all_manifests_of_all_resources_are_printed(
    hindcast: Hindcast, resources: Path, values_file: Path
) -> None:
    result = hindcast("render", resources, "--defaults", values_file)
    assert (result.code, result.err) == (0, "")
    manifests = load_documents(result.out)
    assert [document["kind"] for document in manifests] == KINDS * 2
    assert [manifests[4]["metadata"]["name"], manifests[9]["metadata"]["name"]] == [
        "random-data-r1-1",
        "clone-t1-1",
    ]
    attempt = json.loads(manifests[5]["data"]["attempt.json"])
    assert attempt["inputs"]["OfflineRecording/random-data"]["path"] == "s3://bucket/hindcast/default/data"
    head = manifests[4]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert head["image"] == "platform:key:1"


def test_sizes_and_their_reasons_are_comments(hindcast: Hindcast, resources: Path, values_file: Path) -> None:
    result = hindcast("render", resources, "--defaults", values_file)
    comments = [line for line in result.out.splitlines() if line.startswith("#")]
    assert "# OfflineTraining/clone, attempt 1 of revision 1" in comments
    assert "#   learner.pods: 1 (spec.learners.replicas)" in comments
    quiet_result = hindcast("render", resources, "--defaults", values_file, "--quiet")
    assert "#" not in quiet_result.out
    assert load_documents(quiet_result.out) == load_documents(result.out)


def test_json_has_the_same_manifests_and_the_sizes(
    hindcast: Hindcast, resources: Path, values_file: Path
) -> None:
    result = hindcast("render", resources, "--defaults", values_file, "--json")
    recording, training = json.loads(result.out)["resources"]
    yaml_result = hindcast("render", resources, "--defaults", values_file)
    assert recording["manifests"] + training["manifests"] == load_documents(yaml_result.out)
    assert training["resolved"]["pools"]["learner"]["pods"] == {
        "value": 1,
        "reason": "spec.learners.replicas",
    }
    assert (training["kind"], training["name"], training["unknown"]) == ("OfflineTraining", "clone", [])


def test_namespace_option_applies_to_resources_without_one(
    hindcast: Hindcast, resources: Path, values_file: Path
) -> None:
    for arguments, expected in (((), "default"), (("-n", "rl"), "rl")):
        result = hindcast("render", resources, "--defaults", values_file, *arguments)
        assert {document["metadata"]["namespace"] for document in load_documents(result.out)} == {expected}


def test_unknown_recording_is_noted(hindcast: Hindcast, resources: Path, values_file: Path) -> None:
    training_file = resources.with_name("training.yaml")
    training_file.write_text(resources.read_text().split("---")[1])
    result = hindcast("render", training_file, "--defaults", values_file)
    assert result.code == 0
    assert result.err == (
        "OfflineTraining/clone refers to OfflineRecording/random-data, which is not in any of the files: "
        "its outputs are unknown\n"
    )
    assert [document["kind"] for document in load_documents(result.out)] == KINDS


def test_platform_refusal_names_line_and_prints_no_manifests(hindcast: Hindcast, resources: Path) -> None:
    result = hindcast("render", resources)
    assert (result.code, result.out) == (2, "")
    lines = result.err.splitlines()
    assert lines[0].startswith(f"error: {resources}:9: spec.output.path is data, which is relative")
    assert len(lines) == 2 and "spec.checkpoint.path is runs" in lines[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [("defaults: {imag: x}", "imag"), ("- a", "is not a mapping"), ("defaults: [", "values.yaml")],
)
def test_invalid_values_file_is_refused(
    hindcast: Hindcast, resources: Path, values_file: Path, text: str, message: str
) -> None:
    values_file.write_text(text)
    hindcast("render", resources, "--defaults", values_file).assert_refused(2, message)


def test_pods_of_the_example_fit_a_node_of_2_cpus_and_6_gib(hindcast: Hindcast, tmp_path: Path) -> None:
    page = INSTALLATION_PAGE.read_text()
    for name in ("kind.yaml", "cartpole.yaml"):
        (tmp_path / name).write_text(page.partition(f"```yaml\n# {name}\n")[2].partition("```")[0])
    result = hindcast("render --json", tmp_path / "cartpole.yaml", "--defaults", tmp_path / "kind.yaml")
    for resource in json.loads(result.out)["resources"]:
        (job,) = [document for document in resource["manifests"] if document["kind"] == "RayJob"]
        cluster = job["spec"]["rayClusterSpec"]
        groups = [(1, cluster["headGroupSpec"])]
        groups += [(group["replicas"], group) for group in cluster["workerGroupSpecs"]]
        pods = [(number, group["template"]) for number, group in groups]
        pods.append((1, job["spec"]["submitterPodTemplate"]))
        requests = [
            (number, container["resources"]["requests"])
            for number, pod in pods
            for container in pod["spec"]["containers"]
        ]
        millicpus = sum(number * int(request["cpu"].removesuffix("m")) for number, request in requests)
        mebibytes = sum(number * parse_memory(request["memory"]) for number, request in requests)
        assert millicpus <= 1300 and mebibytes <= 4608  # the rest is for the system


def parse_memory(text: str) -> int:
    """Parse a quantity to MiB."""
    return int(text[:-2]) * {"Mi": 1, "Gi": 1024}[text[-2:]]
