"""Observation of the facts about a resource."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hindcast_operator.control import kinds
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.observe import Observer
from hindcast_operator.control.startup import new_startups
from hindcast_operator.times import SteadyClock


def make_recording(**output: Any) -> dict[str, Any]:
    return {
        "apiVersion": "hindcast.dev/v1alpha1",
        "kind": "OfflineRecording",
        "metadata": {
            "name": "lines",
            "namespace": "team",
            "uid": "u",
            "generation": 1,
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-21T12:00:00Z",
        },
        "spec": {
            "environment": {"id": "CartPole-v1"},
            "policy": {"random": {}},
            "duration": {"episodes": 5},
            "output": {"path": "s3://bucket/lines", **output},
        },
    }


@pytest.mark.parametrize(
    ("output", "problems"),
    [
        ({"format": "JSON"}, ()),
        (
            {"format": "JSON", "compression": "zstd"},
            (
                "spec.output.compression is zstd, but JSON is text, which is not compressed; zstd requires format "
                "Episodes or Columns",
            ),
        ),
    ],
)
def test_rule_missing_in_released_crd_becomes_problem(
    output: dict[str, Any], problems: tuple[str, ...]
) -> None:
    """A cluster with CRDs of an earlier version admits such a resource, so the operator reports its problems."""
    body, cache = make_recording(**output), Cache()
    cache.put(kinds.RECORDING, body)
    observer = Observer(None, cache, new_startups(), SteadyClock())  # type: ignore[arg-type]
    facts = asyncio.run(observer.observe(Key("OfflineRecording", "team", "lines")))
    assert facts is not None
    assert facts.problems == problems
    assert (facts.resource is None) == bool(problems)


def test_invalid_spec_still_provides_suspend_and_run_policy() -> None:
    body, cache = make_recording(format="JSON", compression="zstd"), Cache()
    body["spec"] |= {"suspend": True, "runPolicy": {"stallTimeoutSeconds": 7200}}
    cache.put(kinds.RECORDING, body)
    observer = Observer(None, cache, new_startups(), SteadyClock())  # type: ignore[arg-type]
    facts = asyncio.run(observer.observe(Key("OfflineRecording", "team", "lines")))
    assert facts is not None and facts.resource is None
    assert (facts.suspend, facts.run_policy.stall_timeout_seconds) == (True, 7200)
    assert facts.run_policy.model_fields_set == {"stall_timeout_seconds"}, (
        "unset fields get the platform's values"
    )


def test_complete_training_without_checkpoint_provides_no_input_and_is_unfinished() -> None:
    recorder = make_recording()
    recorder["spec"]["policy"] = {"trainingRef": {"name": "clone"}}
    status = {
        "runs": [{"revision": 1, "attempt": 1, "rayJobName": "clone-t1-1", "specHash": "h"}],
        "conditions": [{"type": "Complete", "status": "True"}],
    }
    clone = {
        **recorder,
        "kind": "OfflineTraining",
        "spec": {"input": [{"path": "s3://bucket/lines"}]},
        "status": status,
        "metadata": recorder["metadata"] | {"name": "clone", "uid": "t"},
    }
    cache = Cache()
    cache.put(kinds.RECORDING, recorder)
    observer = Observer(None, cache, new_startups(), SteadyClock())  # type: ignore[arg-type]
    key = Key("OfflineRecording", "team", "lines")
    states: list[str] = []
    for version, checkpoint in (("8", None), ("9", {"path": "s3://bucket/c/1"})):
        metadata = clone["metadata"] | {"resourceVersion": version}
        cache.put(
            kinds.TRAINING, clone | {"metadata": metadata, "status": status | {"checkpoint": checkpoint}}
        )
        facts = asyncio.run(observer.observe(key))
        assert facts is not None
        states += [reference.state for reference in facts.references]
    assert states == ["Unfinished", "Complete"]


def test_circular_reference_ends_when_one_resource_has_started() -> None:
    recorder = make_recording()
    recorder["spec"]["policy"] = {"trainingRef": {"name": "clone"}}
    clone = {"kind": "OfflineTraining", "spec": {"input": [{"recordingRef": {"name": "lines"}}]}}
    clone = recorder | clone | {"metadata": recorder["metadata"] | {"name": "clone", "uid": "t"}}
    cache = Cache()
    cache.put(kinds.RECORDING, recorder)
    cache.put(kinds.TRAINING, clone)
    observer = Observer(None, cache, new_startups(), SteadyClock())  # type: ignore[arg-type]

    def observe_states() -> list[str]:
        keys = (Key("OfflineRecording", "team", "lines"), Key("OfflineTraining", "team", "clone"))
        all_facts = [asyncio.run(observer.observe(key)) for key in keys]
        return [reference.state for facts in all_facts if facts is not None for reference in facts.references]

    assert observe_states() == ["Circular", "Circular"]
    status = {"runs": [{"revision": 1, "attempt": 1, "rayJobName": "clone-t1-1", "specHash": "h"}]}
    new_metadata = clone["metadata"] | {"resourceVersion": "8"}
    cache.put(kinds.TRAINING, clone | {"metadata": new_metadata, "status": status})
    assert observe_states() == ["Unfinished", "Circular"], (
        "the training has started, so it no longer waits for the recording"
    )
