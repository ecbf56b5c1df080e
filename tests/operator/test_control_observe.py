"""Observation of the facts about a resource."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hindcast_operator.control import kinds
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.observe import Observer
from hindcast_operator.control.startup import new_startups
from hindcast_operator.facts import ReferenceFacts
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


@pytest.mark.parametrize("num_pairs", [1, 2, 5])
def test_ring_of_references_is_named_until_one_resource_has_started(num_pairs: int) -> None:
    """Regression: only rings of two were seen; the resources of a longer one waited without end."""
    names = [f"n{number}" for number in range(num_pairs)]
    keys = [Key(kind, "team", name) for name in names for kind in ("OfflineRecording", "OfflineTraining")]
    cache = Cache()
    for number, name in enumerate([*names, "outside"]):
        recorder = make_recording()
        recorder["spec"]["policy"] = {"trainingRef": {"name": name}}
        recorder["metadata"] |= {"name": name, "uid": f"r-{name}"}
        cache.put(kinds.RECORDING, recorder)
        spec = {"input": [{"recordingRef": {"name": names[(number + 1) % num_pairs]}}]}
        clone = recorder | {"kind": "OfflineTraining", "spec": spec}
        cache.put(kinds.TRAINING, clone | {"metadata": recorder["metadata"] | {"uid": f"t-{name}"}})
    observer = Observer(None, cache, new_startups(), SteadyClock())  # type: ignore[arg-type]

    def observe_reference(key: Key) -> ReferenceFacts:
        facts = asyncio.run(observer.observe(key))
        assert facts is not None
        return facts.references[0]

    for number, key in enumerate(keys):
        ring = [f"{other.kind}/{other.name}" for other in keys[number:] + keys[: number + 1]]
        assert observe_reference(key).state == "Circular"
        assert list(observe_reference(key).ring) == ring
    outside = Key("OfflineTraining", "team", "outside")
    assert observe_reference(outside).state == "Unfinished", "it waits for the ring, but is no part of it"

    status = {"runs": [{"revision": 1, "attempt": 1, "rayJobName": "n0-t1-1", "specHash": "h"}]}
    clone = {"kind": "OfflineTraining", "spec": {"input": [{"recordingRef": {"name": names[-1]}}]}}
    metadata = make_recording()["metadata"] | {"name": "n0", "uid": "t-n0", "resourceVersion": "8"}
    cache.put(kinds.TRAINING, make_recording() | clone | {"metadata": metadata, "status": status})
    states = [observe_reference(key).state for key in keys if key != Key("OfflineTraining", "team", "n0")]
    assert states == ["Unfinished"] * len(states), "n0 has started, so it waits for no recording"
