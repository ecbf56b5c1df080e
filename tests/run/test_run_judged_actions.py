"""Evaluation, export and serving use sampled or greedy actions as configured for the run's own evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hindcast.run.checkpoint_evaluation import choose_explore

GATE = {"returns": {"low": 0, "high": 1}}


def write_run(folder: Path, evaluation: dict[str, Any] | None) -> Path:
    """Write the owner record of a run, and return the run's checkpoint folder."""
    spec = {} if evaluation is None else {"evaluation": evaluation}
    document = {"kind": "OfflineTraining", "metadata": {"name": "a"}, "spec": {"algorithm": "BC", **spec}}
    folder.joinpath("checkpoints").mkdir()
    folder.joinpath("spec.json").write_text(json.dumps({"spec": document}))
    return folder / "checkpoints"


@pytest.mark.parametrize(
    ("evaluation", "expected"),
    [
        (None, False),
        ({"interval": 1}, False),
        ({"explore": True}, True),
        ({"explore": True, "offline": {"heldOut": 0.1}}, True),
        ({"explore": True, "offline": {"heldOut": 0.1, "estimates": ["dm"]}}, False),
        ({"offline": {"heldOut": 0.1, "explore": True}}, True),
        ({"explore": True, "gate": GATE}, False),
        ({"gate": GATE | {"explore": True}}, True),
    ],
)
def test_default_actions_are_those_of_the_run_evaluation(
    tmp_path: Path, evaluation: dict[str, Any] | None, expected: bool
) -> None:
    assert choose_explore(write_run(tmp_path, evaluation), None) == expected


@pytest.mark.parametrize("requested", [True, False])
def test_requested_actions_other_than_evaluated_are_noted(tmp_path: Path, requested: bool) -> None:
    path, notes = write_run(tmp_path, {"explore": True}), list[str]()
    assert choose_explore(path, requested, note=notes.append) == requested
    expected = "greedy actions were requested, but the run judges the policy by sampled actions"
    assert [expected in note for note in notes] == ([] if requested else [True])
