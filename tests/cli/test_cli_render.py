"""`hindcast render`: manifests on stdout, reasons as comments, mistakes in sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

KINDS = ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "RayJob"]


@pytest.fixture
def values(tmp_path: Path) -> Path:
    file = tmp_path / "values.yaml"
    file.write_text("replicas: 2\ndefaults: {storageRoot: 's3://bucket/hindcast', image: 'platform:key:1'}\n")
    return file


def documents(text: str) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all(text))


def test_all_manifests_of_all_resources_are_printed(
    hindcast: Callable[..., Any], resources: Path, values: Path
) -> None:
    called = hindcast("render", resources, "--defaults", values)
    assert (called.code, called.err) == (0, "")
    found = documents(called.out)
    assert [document["kind"] for document in found] == KINDS * 2
    assert [found[4]["metadata"]["name"], found[9]["metadata"]["name"]] == ["random-data-r1-1", "clone-t1-1"]
    attempt = json.loads(found[5]["data"]["attempt.json"])
    assert attempt["inputs"]["OfflineRecording/random-data"]["path"] == "s3://bucket/hindcast/default/data"
    head = found[4]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert head["image"] == "platform:key:1"


def test_sizes_and_their_reasons_are_comments(
    hindcast: Callable[..., Any], resources: Path, values: Path
) -> None:
    called = hindcast("render", resources, "--defaults", values)
    comments = [line for line in called.out.splitlines() if line.startswith("#")]
    assert "# OfflineTraining/clone, attempt 1 of revision 1" in comments
    assert "#   learner.pods: 1 (spec.learners.replicas)" in comments
    quiet = hindcast("render", resources, "--defaults", values, "--quiet")
    assert "#" not in quiet.out
    assert documents(quiet.out) == documents(called.out)


def test_json_has_the_same_manifests_and_the_sizes(
    hindcast: Callable[..., Any], resources: Path, values: Path
) -> None:
    called = hindcast("render", resources, "--defaults", values, "--json")
    recording, training = json.loads(called.out)["resources"]
    plain = hindcast("render", resources, "--defaults", values)
    assert recording["manifests"] + training["manifests"] == documents(plain.out)
    assert training["resolved"]["pools"]["learner"]["pods"] == {
        "value": 1,
        "reason": "spec.learners.replicas",
    }
    assert (training["kind"], training["name"], training["unknown"]) == ("OfflineTraining", "clone", [])


def test_the_namespace_of_resources_that_name_none(
    hindcast: Callable[..., Any], resources: Path, values: Path
) -> None:
    for arguments, expected in (((), "default"), (("-n", "rl"), "rl")):
        called = hindcast("render", resources, "--defaults", values, *arguments)
        assert {document["metadata"]["namespace"] for document in documents(called.out)} == {expected}


def test_a_recording_that_is_in_none_of_the_files_is_noted(
    hindcast: Callable[..., Any], resources: Path, values: Path
) -> None:
    alone = resources.with_name("alone.yaml")
    alone.write_text(resources.read_text().split("---")[1])
    called = hindcast("render", alone, "--defaults", values)
    assert called.code == 0
    assert called.err == (
        "OfflineTraining/clone refers to OfflineRecording/random-data, which is in none of the files: "
        "its outputs are unknown\n"
    )
    assert [document["kind"] for document in documents(called.out)] == KINDS


def test_what_the_platform_refuses_is_said_with_its_line_and_nothing_is_printed(
    hindcast: Callable[..., Any], resources: Path
) -> None:
    called = hindcast("render", resources)
    assert (called.code, called.out) == (2, "")
    lines = called.err.splitlines()
    assert lines[0].startswith(f"error: {resources}:9: spec.output.path is data, which is relative")
    assert len(lines) == 2 and "spec.checkpoint.path is runs" in lines[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("defaults: {imag: x}", "imag"),
        ("- a", "is not a mapping"),
        ("defaults: [", "values.yaml"),
    ],
)
def test_broken_values_are_told(
    hindcast: Callable[..., Any], resources: Path, values: Path, text: str, said: str
) -> None:
    values.write_text(text)
    called = hindcast("render", resources, "--defaults", values)
    assert called.code == 2
    assert said in called.err and "Traceback" not in called.err
