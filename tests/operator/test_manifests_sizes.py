"""Sizes of the pools: what they grow with, what is given, and that each number has its reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hindcast.api import Resource
from hindcast.api.attempt import ResolvedInput
from hindcast_operator.manifests import Sizes, compute_sizes, effective_resource
from hindcast_operator.manifests.quantities import GI, MI, format_bytes, format_cpus, round_up
from manifest_examples import DEFAULTS, SMALL, recording, training

LARGE = {"OfflineRecording/cartpole": ResolvedInput(path="s3://b/c", bytes=500 * GI, timesteps=10**8)}


PLAYING: dict[str, Any] = {
    "algorithm": "DQN",
    "config": {},
    "environment": {"id": "CartPole-v1"},
    "input": [{"sampler": {"capacityBytes": "1Gi", "envsPerRunner": 2}}],
    "stop": {"updates": 5},
}


def sized(resource: Resource, inputs: dict[str, ResolvedInput] = SMALL) -> Sizes:
    return compute_sizes(effective_resource(resource, DEFAULTS), inputs)


def pools(found: Sizes) -> dict[str, tuple[int, int]]:
    return {pool.pool: (pool.num_pods, pool.max_pods) for pool in found.pools}


def test_pools_of_a_recording() -> None:
    found = sized(recording(runners={"replicas": 5, "cpus": 2}))
    assert pools(found) == {"head": (1, 1), "runner": (5, 5)}
    runner = found.pool("runner")
    assert runner is not None and (runner.num_cpus, runner.cpu, runner.num_gpus) == (2, 2.0, 0)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {"head": (1, 1), "data": (2, 2), "learner": (1, 1)}),
        ({"learners": {"replicas": 3}}, {"head": (1, 1), "data": (2, 2), "learner": (3, 3)}),
        ({"pipeline": {"dataWorkers": {"replicas": 0}}}, {"head": (1, 1), "learner": (1, 1)}),
        (
            {
                "pipeline": {"dataWorkers": {"replicas": 0}},
                "evaluation": {"interval": 1, "parallelToTraining": True},
            },
            {"head": (1, 1), "data": (1, 1), "learner": (1, 1)},
        ),
        (PLAYING, {"head": (1, 1), "learner": (1, 1)}),
        ({"evaluation": {"runners": 0}}, {"head": (1, 1), "data": (2, 2), "learner": (1, 1)}),
        ({"evaluation": {"runners": 3}}, {"head": (1, 1), "data": (5, 5), "learner": (1, 1)}),
        (
            {"evaluation": {"runners": 3}, "pipeline": {"dataWorkers": {"replicas": 2, "cpus": 2}}},
            {"head": (1, 1), "data": (4, 4), "learner": (1, 1)},
        ),
        (
            {"pipeline": {"dataWorkers": {"minReplicas": 4, "maxReplicas": 8}}, "evaluation": {"runners": 1}},
            {"head": (1, 1), "data": (5, 9), "learner": (1, 1)},
        ),
    ],
)
def test_pools_of_a_training(spec: dict[str, Any], expected: dict[str, tuple[int, int]]) -> None:
    assert pools(sized(training(**spec))) == expected


def test_logical_cpus_are_rounded_up_and_do_not_follow_what_the_pod_requests() -> None:
    given = {"resources": {"head": {"cpu": 0.1}, "dataWorker": {"cpu": 0.1}, "learner": {"cpu": 0.1}}}
    found = sized(training(pipeline={"dataWorkers": {"cpus": 1.5}}, learners={"cpus": 3}, cluster=given))
    assert [(pool.cpu, pool.num_cpus) for pool in found.pools] == [(0.1, 0), (0.1, 2), (0.1, 3)]


def test_a_small_run_fits_a_small_node() -> None:
    found = sized(training())
    assert sum(pool.memory_bytes * pool.num_pods for pool in found.pools) < 8 * GI
    head = found.head
    assert 0 < head.cpu < 1 and head.num_cpus == 0


def test_the_head_grows_with_the_other_pods() -> None:
    few, many = sized(recording()).head, sized(recording(runners={"replicas": 200})).head
    assert many.memory_bytes - few.memory_bytes == pytest.approx(199 * 16 * MI, abs=256 * MI)
    assert many.cpu > few.cpu


def test_memory_follows_the_data_where_their_size_is_known() -> None:
    small, unknown, large = sized(training()), sized(training(), {}), sized(training(), LARGE)
    for pool in ("data", "learner"):
        sizes_of = [found.pool(pool).memory_bytes for found in (small, unknown, large)]  # type: ignore[union-attr, arg-type]
        assert sizes_of[0] < sizes_of[1] == sizes_of[2], "a window at most, however large the data"
        assert "not known" in unknown.pool(pool).reasons["objectStoreMemory"]  # type: ignore[union-attr, arg-type]


def test_what_is_played_takes_four_times_its_bound() -> None:
    alone = sized(training(**PLAYING)).pool("learner")
    assert alone is not None
    beside = {**PLAYING, "input": [{**PLAYING["input"][0], "weight": 1}, {"path": "s3://b/c", "weight": 1}]}
    both = sized(training(**beside)).pool("learner")
    assert both is not None
    assert 4 * GI < alone.memory_bytes < 6 * GI
    assert alone.memory_bytes < both.memory_bytes
    expert = {"train": {"algorithm": "SAC", "stop": {"timesteps": 5}, "sampler": {"capacityBytes": "2Gi"}}}
    with_default = {"train": {"algorithm": "SAC", "stop": {"timesteps": 5}}}
    large, small = (sized(recording(policy=policy)).pool("runner") for policy in (expert, with_default))
    assert large is not None and small is not None
    assert large.memory_bytes - small.memory_bytes == pytest.approx(4 * (2 * GI - 256 * MI), abs=256 * MI)


def test_a_window_is_bounded_by_steps_as_well_as_by_bytes() -> None:
    wide = {"OfflineRecording/cartpole": ResolvedInput(path="x", bytes=100 * GI, timesteps=1_000_000)}
    by_bytes = sized(training(), wide).pool("learner")
    by_steps = sized(training(pipeline={"windowSteps": 1000}), wide).pool("learner")
    assert by_bytes is not None and by_steps is not None
    assert by_steps.memory_bytes < by_bytes.memory_bytes


def test_memory_follows_what_data_take_in_memory_and_not_what_compression_leaves_of_them() -> None:
    frames = {
        "OfflineRecording/cartpole": ResolvedInput(
            path="x", bytes=100 * MI, memory_bytes=8 * GI, timesteps=300_000
        )
    }
    found = sized(training(), frames)
    learner, data = found.pool("learner"), found.pool("data")
    assert learner is not None and data is not None
    assert learner.object_store_bytes == GI, "a full window, by spec.pipeline.windowBytes"
    assert learner.memory_bytes > 2 * GI
    assert data.object_store_bytes == GI, "two windows over two workers"
    unknown = sized(training(), {}).pool("data")
    assert unknown is not None and data.memory_bytes == unknown.memory_bytes


def test_sources_that_are_mixed_have_a_window_each() -> None:
    both = LARGE | {"OfflineRecording/other": ResolvedInput(path="y", bytes=500 * GI, timesteps=10**8)}
    refs = [{"recordingRef": {"name": "cartpole"}}, {"recordingRef": {"name": "other"}}]
    joined = sized(training(input=refs), both).pool("learner")
    mixed = sized(training(input=[ref | {"weight": 0.5} for ref in refs]), both).pool("learner")
    assert joined is not None and mixed is not None
    assert mixed.object_store_bytes == 2 * joined.object_store_bytes


def test_data_that_shall_be_resident_get_the_memory_for_it() -> None:
    data = {"OfflineRecording/cartpole": ResolvedInput(path="x", bytes=3 * GI, timesteps=10**8)}
    streaming, resident = (
        sized(training(pipeline={"residency": residency}), data).pool("learner")
        for residency in ("Streaming", "Resident")
    )
    assert streaming is not None and resident is not None
    # The runtime keeps data resident that take at most a quarter of the container's memory.
    assert resident.memory_bytes // 4 >= 2 * 3 * GI > streaming.memory_bytes // 4


def test_gpus_bring_cpus_and_host_memory_to_the_learner_alone() -> None:
    found = sized(training(learners={"gpus": 2}))
    learner, without = found.pool("learner"), sized(training()).pool("learner")
    assert learner is not None and without is not None
    assert (learner.num_gpus, learner.num_cpus) == (2, 8)
    assert learner.memory_bytes - without.memory_bytes >= 6 * GI
    assert [pool.num_gpus for pool in found.pools] == [0, 0, 2]


def test_what_is_given_wins_and_says_where_it_stands() -> None:
    given = {"memory": "1Gi", "cpu": 0.25, "ephemeralStorage": "3Gi", "sharedMemory": "256Mi"}
    pool = sized(training(cluster={"resources": {"dataWorker": given}})).pool("data")
    assert pool is not None
    assert (pool.memory_bytes, pool.cpu, pool.ephemeral_storage_bytes, pool.shared_memory_bytes) == (
        GI,
        0.25,
        3 * GI,
        256 * MI,
    )
    assert pool.object_store_bytes < pool.shared_memory_bytes
    for field in given:
        assert pool.reasons[field] == f"set by spec.cluster.resources.dataWorker.{field}"


def test_the_object_store_shrinks_to_fit_memory_that_was_given() -> None:
    pool = sized(training(cluster={"resources": {"learner": {"memory": "1Gi"}}}), LARGE).pool("learner")
    assert pool is not None
    assert pool.object_store_bytes < pool.shared_memory_bytes <= pool.memory_bytes // 2


@pytest.mark.parametrize("resource", [recording(), training(), training(learners={"gpus": 1})])
@pytest.mark.parametrize("inputs", [{}, SMALL, LARGE])
def test_numbers_are_consistent_and_each_has_its_reason(
    resource: Resource, inputs: dict[str, ResolvedInput]
) -> None:
    found = sized(resource, inputs)
    for pool in found.pools:
        assert pool.object_store_bytes < pool.shared_memory_bytes < pool.memory_bytes
        assert pool.spill_bytes < pool.ephemeral_storage_bytes
    status = found.to_status()["pools"]
    assert list(status) == [pool.pool for pool in found.pools]
    for fields in status.values():
        assert set(fields) >= {"pods", "cpu", "numCpus", "memory", "sharedMemory", "ephemeralStorage"}
        assert all(entry["reason"] and entry["value"] not in ("", None) for entry in fields.values())
    assert json.loads(json.dumps(status)) == status


def test_the_sum_in_the_reason_is_the_memory() -> None:
    pool = sized(recording(policy={"train": {"stop": {"iterations": 3}}})).pool("runner")
    assert pool is not None
    parts = [part.split(" ")[0] for part in pool.reasons["memory"].split(" + ")]
    units = {"Mi": MI, "Gi": GI}
    total = sum(int(part[:-2]) * units[part[-2:]] for part in parts)
    assert pool.memory_bytes == round_up(total, 128 * MI)


@pytest.mark.parametrize(
    ("count", "text"),
    [(2 * GI, "2Gi"), (1536 * MI, "1536Mi"), (1000, "1000"), (0, "0Gi"), (MI + 1, "1048577")],
)
def test_bytes_as_kubernetes_writes_them(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("cpus", "text"), [(1.0, "1"), (0.5, "500m"), (0.0001, "1m"), (2.25, "2250m"), (0.52, "520m")]
)
def test_cpus_as_kubernetes_writes_them(cpus: float, text: str) -> None:
    assert format_cpus(cpus) == text
