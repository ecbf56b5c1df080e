"""No example of README, docs or the demo judges a policy by the episodes that trained it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs_code import DEMO, PAGES, ROOT

YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
JUDGING_COMMAND = re.compile(
    r"^ *hindcast (?:evaluate|gate|audit create) (runs/([\w-]+)\S*) .*?--data (\S+)", re.MULTILINE
)
FILES = [DEMO, *sorted((ROOT / "examples").glob("**/*.yaml"))]

Resources = dict[tuple[str, str], dict[str, Any]]


def read_resources(text: str) -> Resources:
    """Return (kind, name) -> spec of the resources in YAML blocks, or of a whole YAML file."""
    documents = [
        document
        for block in YAML_BLOCK.findall(text) or [text]
        if "apiVersion: hindcast.dev" in block
        for document in yaml.safe_load_all(block)
    ]
    return {(item["kind"], item["metadata"]["name"]): item["spec"] for item in documents}


def find_judging_by_training_data(text: str, others: Resources) -> Iterator[str]:
    """Yield the judgements of a page by episodes that may have trained the policy.

    Args:
        text: the page.
        others: resources of other pages.
    """
    resources = read_resources(text)
    for (kind, name), spec in resources.items():
        offline = spec.get("evaluation", {}).get("offline", {}) if kind == "OfflineTraining" else {}
        if set(offline.get("input", [])) & trained_paths(spec, resources):
            yield f"{name}: evaluation.offline.input"
    for run, name, data in JUDGING_COMMAND.findall(text):
        spec = resources.get(("OfflineTraining", name)) or others.get(("OfflineTraining", name))
        if spec is None:
            yield f"{run}: trained nowhere"
        elif data in trained_paths(spec, resources) and not holds_out(spec):
            yield f"{run} by {data}"


def trained_paths(spec: dict[str, Any], resources: Resources) -> set[str]:
    """Return the paths of a training's inputs."""
    references = [
        source["recordingRef"]["name"] for source in spec.get("input", []) if "recordingRef" in source
    ]
    recordings = [resources[("OfflineRecording", name)] for name in references]
    paths = [source["path"] for source in spec.get("input", []) if "path" in source]
    return {*map(str, paths), *(recording["output"]["path"] for recording in recordings)}


def holds_out(spec: dict[str, Any]) -> bool:
    offline = spec.get("evaluation", {}).get("offline", {})
    return bool(offline.get("heldOut") or offline.get("setAside"))


def all_resources() -> Resources:
    return {key: spec for page in PAGES for key, spec in read_resources(page.read_text()).items()}


@pytest.mark.parametrize("page", [*PAGES, *FILES], ids=lambda page: str(page.relative_to(ROOT)))
def test_example_judges_by_episodes_that_did_not_train(page: Path) -> None:
    assert list(find_judging_by_training_data(page.read_text(), all_resources())) == []


def test_pages_judge_somewhere() -> None:
    commands = [match for page in PAGES for match in JUDGING_COMMAND.findall(page.read_text())]
    assert len(commands) >= 5


TRAINING = """
```yaml
apiVersion: hindcast.dev/v1alpha1
kind: OfflineTraining
metadata: {{name: a}}
spec: {{input: [{{path: data}}], evaluation: {{{evaluation}}}}}
```
```bash
hindcast {command} runs/a/r1 --data data
```
"""


@pytest.mark.parametrize(
    ("evaluation", "command", "problem"),
    [
        ("", "evaluate", "runs/a/r1 by data"),
        ("gate: {}", "gate", "runs/a/r1 by data"),
        ("offline: {input: [data]}", "status", "a: evaluation.offline.input"),
        ("offline: {heldOut: 0.1}", "audit create", None),
        ("offline: {setAside: 0.1}", "evaluate", None),
    ],
)
def test_judging_by_training_data_is_found(evaluation: str, command: str, problem: str | None) -> None:
    text = TRAINING.format(evaluation=evaluation, command=command)
    assert list(find_judging_by_training_data(text, {})) == ([problem] if problem else [])
