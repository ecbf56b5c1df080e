"""Sizes of the pools: their growth with the data, values set in the spec, and a reason for each number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hindcast.api import Resource
from hindcast.api.attempt import ResolvedInput
from hindcast_operator.manifests import PoolSize, Sizes, compute_sizes, effective_resource
from hindcast_operator.manifests.quantities import GI, MI, format_bytes, format_cpus, round_up
from manifest_examples import DEFAULTS, SMALL_INPUTS, recording, training

LARGE_INPUTS = {"OfflineRecording/cartpole": ResolvedInput(path="s3://b/c", bytes=500 * GI, timesteps=10**8)}


SAMPLER_SPEC: dict[str, Any] = {
    "algorithm": "DQN",
    "config": {},
    "environment": {"id": "CartPole-v1"},
    "input": [{"sampler": {"capacityBytes": "1Gi", "envsPerRunner": 2}}],
    "stop": {"updates": 5},
}


def compute_effective_sizes(resource: Resource, inputs: dict[str, ResolvedInput] = SMALL_INPUTS) -> Sizes:
    return compute_sizes(effective_resource(resource, DEFAULTS), inputs)


def compute_pool(pool: str, resource: Resource, inputs: dict[str, ResolvedInput] = SMALL_INPUTS) -> PoolSize:
    size = compute_effective_sizes(resource, inputs).pool(pool)  # type: ignore[arg-type]
    assert size is not None
    return size


def make_inputs(**fields: Any) -> dict[str, ResolvedInput]:
    """Return the input `OfflineRecording/cartpole` with these sizes."""
    return {"OfflineRecording/cartpole": ResolvedInput(path="s3://b/c", **fields)}


def pod_counts(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Return pool -> initial and maximum number of pods."""
    return {pool.pool: (pool.num_pods, pool.max_pods) for pool in sizes.pools}


def test_recording_has_head_and_runner_pool() -> None:
    resource = recording(runners={"replicas": 5, "cpus": 2})
    assert pod_counts(compute_effective_sizes(resource)) == {"head": (1, 1), "runner": (5, 5)}
    runner = compute_pool("runner", resource)
    assert (runner.num_cpus, runner.cpu, runner.num_gpus) == (2, 2.0, 0)


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
        (SAMPLER_SPEC, {"head": (1, 1), "learner": (1, 1)}),
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
def test_training_pools_follow_replicas_and_evaluation_runners(
    spec: dict[str, Any], expected: dict[str, tuple[int, int]]
) -> None:
    assert pod_counts(compute_effective_sizes(training(**spec))) == expected


def test_logical_cpus_are_rounded_up_and_independent_of_requests() -> None:
    cluster = {"resources": {"head": {"cpu": 0.1}, "dataWorker": {"cpu": 0.1}, "learner": {"cpu": 0.1}}}
    sizes = compute_effective_sizes(
        training(pipeline={"dataWorkers": {"cpus": 1.5}}, learners={"cpus": 3}, cluster=cluster)
    )
    assert [(pool.cpu, pool.num_cpus) for pool in sizes.pools] == [(0.1, 0), (0.1, 2), (0.1, 3)]


def test_small_training_needs_less_than_8_gib() -> None:
    sizes = compute_effective_sizes(training())
    assert sum(pool.memory_bytes * pool.num_pods for pool in sizes.pools) < 8 * GI
    head = sizes.head
    assert 0 < head.cpu < 1 and head.num_cpus == 0


def test_head_grows_with_number_of_pods() -> None:
    small_head, large_head = (
        compute_effective_sizes(recording()).head,
        compute_effective_sizes(recording(runners={"replicas": 200})).head,
    )
    assert large_head.memory_bytes - small_head.memory_bytes == pytest.approx(199 * 16 * MI, abs=256 * MI)
    assert large_head.cpu > small_head.cpu


def test_memory_depends_on_known_data_size() -> None:
    for pool in ("data", "learner"):
        small, unknown, large = (
            compute_pool(pool, training(), inputs) for inputs in (SMALL_INPUTS, {}, LARGE_INPUTS)
        )
        assert small.memory_bytes < unknown.memory_bytes
        index_bytes = 256 * MI if pool == "learner" else 0  # of 64,000 units, rounded up
        difference = large.memory_bytes - unknown.memory_bytes
        assert 0 <= difference <= index_bytes, "larger data need only one window"
        assert "not known" in unknown.reasons["objectStoreMemory"]


def test_sampler_memory_is_four_times_its_capacity() -> None:
    sampler_pool = compute_pool("learner", training(**SAMPLER_SPEC))
    mixed_input = [{**SAMPLER_SPEC["input"][0], "weight": 1}, {"path": "s3://b/c", "weight": 1}]
    mixed_pool = compute_pool("learner", training(**SAMPLER_SPEC | {"input": mixed_input}))
    assert 4 * GI < sampler_pool.memory_bytes < 6 * GI
    assert sampler_pool.memory_bytes < mixed_pool.memory_bytes
    expert = {"train": {"algorithm": "SAC", "stop": {"timesteps": 5}, "sampler": {"capacityBytes": "2Gi"}}}
    with_default = {"train": {"algorithm": "SAC", "stop": {"timesteps": 5}}}
    large, small = (compute_pool("runner", recording(policy=policy)) for policy in (expert, with_default))
    assert large.memory_bytes - small.memory_bytes == pytest.approx(4 * (2 * GI - 256 * MI), abs=256 * MI)


def test_window_is_limited_by_steps_and_bytes() -> None:
    inputs = make_inputs(bytes=100 * GI, timesteps=1_000_000)
    by_bytes = compute_pool("learner", training(), inputs)
    by_steps = compute_pool("learner", training(pipeline={"windowSteps": 1000}), inputs)
    assert by_steps.memory_bytes < by_bytes.memory_bytes


def test_memory_depends_on_uncompressed_data_size() -> None:
    inputs = make_inputs(bytes=100 * MI, memory_bytes=8 * GI, timesteps=300_000)
    learner, data = (compute_pool(pool, training(), inputs) for pool in ("learner", "data"))
    assert learner.object_store_bytes == GI, "a full window of spec.pipeline.windowBytes"
    assert learner.memory_bytes > 2 * GI
    assert data.object_store_bytes == GI, "two windows over two workers"
    assert data.memory_bytes == compute_pool("data", training(), {}).memory_bytes


def test_weighted_sources_share_one_window() -> None:
    inputs = LARGE_INPUTS | {"OfflineRecording/other": LARGE_INPUTS["OfflineRecording/cartpole"]}
    refs = [{"recordingRef": {"name": "cartpole"}}, {"recordingRef": {"name": "other"}}]
    unweighted_pool = compute_pool("learner", training(input=refs), inputs)
    weighted_pool = compute_pool("learner", training(input=[ref | {"weight": 0.5} for ref in refs]), inputs)
    assert weighted_pool.object_store_bytes == unweighted_pool.object_store_bytes


def test_resident_data_get_enough_memory() -> None:
    inputs = make_inputs(bytes=3 * GI, timesteps=10**8)
    streaming, resident = (
        compute_pool("learner", training(pipeline={"residency": residency}), inputs)
        for residency in ("Streaming", "Resident")
    )
    # The runtime keeps data resident that take at most a quarter of the container's memory: 3 GiB on storage count as
    # 6 GiB in memory.
    assert resident.memory_bytes // 4 >= 2 * 3 * GI > streaming.memory_bytes // 4


def test_gpus_add_cpus_and_host_memory_to_learner_only() -> None:
    resource = training(learners={"gpus": 2})
    learner, cpu_learner = compute_pool("learner", resource), compute_pool("learner", training())
    assert (learner.num_gpus, learner.num_cpus) == (2, 8)
    assert learner.memory_bytes - cpu_learner.memory_bytes >= 6 * GI
    assert [pool.num_gpus for pool in compute_effective_sizes(resource).pools] == [0, 0, 2]


def test_sizes_in_spec_override_computed_ones_and_name_their_field() -> None:
    resources = {"memory": "1Gi", "cpu": 0.25, "ephemeralStorage": "3Gi", "sharedMemory": "256Mi"}
    pool = compute_pool("data", training(cluster={"resources": {"dataWorker": resources}}))
    assert (pool.memory_bytes, pool.cpu) == (GI, 0.25)
    assert (pool.ephemeral_storage_bytes, pool.shared_memory_bytes) == (3 * GI, 256 * MI)
    assert pool.object_store_bytes < pool.shared_memory_bytes
    for field in resources:
        assert pool.reasons[field] == f"set by spec.cluster.resources.dataWorker.{field}"


def test_disk_cache_belongs_to_the_pool_that_reads() -> None:
    def storage(**pipeline: Any) -> list[int]:
        sizes = compute_effective_sizes(training(pipeline=pipeline))
        return [pool.ephemeral_storage_bytes for pool in sizes.workers]

    data, learner = storage()
    assert storage(diskCache="7Gi") == [data + 7 * GI, learner]
    assert storage(diskCache="7Gi", dataWorkers={"replicas": 0}) == [learner + 7 * GI]
    pool = compute_pool("data", training(pipeline={"diskCache": "7Gi"}))
    assert pool.reasons["ephemeralStorage"].endswith("for spilled objects + 7Gi for pipeline.diskCache")


def test_object_store_shrinks_to_fit_memory_of_spec() -> None:
    resource = training(cluster={"resources": {"learner": {"memory": "1Gi"}}})
    pool = compute_pool("learner", resource, LARGE_INPUTS)
    assert pool.object_store_bytes < pool.shared_memory_bytes <= pool.memory_bytes // 2


@pytest.mark.parametrize("resource", [recording(), training(), training(learners={"gpus": 1})])
@pytest.mark.parametrize("inputs", [{}, SMALL_INPUTS, LARGE_INPUTS])
def test_sizes_are_consistent_and_have_reasons(resource: Resource, inputs: dict[str, ResolvedInput]) -> None:
    sizes = compute_effective_sizes(resource, inputs)
    for pool in sizes.pools:
        assert pool.object_store_bytes < pool.shared_memory_bytes < pool.memory_bytes
        assert pool.spill_bytes < pool.ephemeral_storage_bytes
    status = sizes.to_status()["pools"]
    assert list(status) == [pool.pool for pool in sizes.pools]
    for fields in status.values():
        assert set(fields) >= {"pods", "cpu", "numCpus", "memory", "sharedMemory", "ephemeralStorage"}
        assert all(entry["reason"] and entry["value"] not in ("", None) for entry in fields.values())
    assert json.loads(json.dumps(status)) == status


def test_measured_peak_raises_memory_of_learners_to_at_most_twice_the_estimate() -> None:
    resource = effective_resource(training(learners={"gpus": 2}), DEFAULTS)

    def learner(peak_bytes: int | None) -> PoolSize:
        size = compute_sizes(resource, SMALL_INPUTS, peak_bytes).pool("learner")
        assert size is not None
        return size

    estimate = learner(None)
    assert learner(GI) == estimate
    size = learner(5 * GI)
    assert size.memory_bytes == round_up(int(2 * 1.25 * 5 * GI) + 768 * MI, 128 * MI)
    assert size.reasons["memory"].startswith("1.25 times the 5Gi that a learner took in earlier attempts")
    assert estimate.memory_bytes < learner(100 * GI).memory_bytes < 2 * estimate.memory_bytes
    assert learner(100 * GI).reasons["memory"].endswith("but at most twice the estimate")


def test_index_of_many_episodes_needs_memory() -> None:
    inputs = [make_inputs(bytes=500 * GI, timesteps=10**8, episodes=count) for count in (10**3, 10**7)]
    sizes = [compute_pool("learner", training(), entry).memory_bytes for entry in inputs]
    assert sizes[1] - sizes[0] == pytest.approx(36 * 10**7, abs=128 * MI)


def test_memory_equals_sum_in_its_reason() -> None:
    pool = compute_pool("runner", recording(policy={"train": {"stop": {"iterations": 3}}}))
    amounts = [amount.split(" ")[0] for amount in pool.reasons["memory"].split(" + ")]
    units = {"Mi": MI, "Gi": GI}
    total = sum(int(amount[:-2]) * units[amount[-2:]] for amount in amounts)
    assert pool.memory_bytes == round_up(total, 128 * MI)


@pytest.mark.parametrize(
    ("count", "text"),
    [(2 * GI, "2Gi"), (1536 * MI, "1536Mi"), (1000, "1000"), (0, "0Gi"), (MI + 1, "1048577")],
)
def test_format_bytes_uses_kubernetes_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("cpus", "text"), [(1.0, "1"), (0.5, "500m"), (0.0001, "1m"), (2.25, "2250m"), (0.52, "520m")]
)
def test_format_cpus_uses_kubernetes_units(cpus: float, text: str) -> None:
    assert format_cpus(cpus) == text
