"""How large the pools are. Every figure is a sum or a product of measured and given ones, and says so.

What a process takes was measured with Ray 2.60 and torch 2.13 (resident bytes, shared pages counted once).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic.alias_generators import to_camel

from hindcast.api import OfflineRecording, OfflineTraining, Resource, parse_bytes
from hindcast.api.attempt import Input, Pool
from hindcast.api.cluster import PodResources
from hindcast_operator.manifests.quantities import GI, MI, as_bytes, round_up
from hindcast_operator.manifests.sizes import PoolSize, Sizes
from hindcast_operator.manifests.volume import DataVolume, data_volume

NODE: Final = 256 * MI
"""Ray's daemons on a pod (raylet, agents, log monitor: 210 MiB)."""
HEAD: Final = 768 * MI
"""Ray's daemons on the head (GCS and dashboard besides: 650 MiB)."""
PROCESS: Final = 512 * MI
"""A Python process with torch, Ray and Hindcast in it (370 MiB)."""
CUDA: Final = 3 * GI
"""Host memory of a process with a GPU: its libraries, context and pinned buffers."""
ENVIRONMENT: Final = 32 * MI
"""One environment of a runner."""
ROOM: Final = 256 * MI
"""For what is not counted: allocators, caches, other threads."""
LEAST_OBJECT_STORE: Final = 128 * MI
"""Ray takes no less than 75 MiB."""
SHARED_MEMORY_BESIDE: Final = 64 * MI
"""Of /dev/shm, for what is not Ray's object store (NCCL, torch)."""
SCRATCH: Final = 1 * GI
"""Disk for logs and temporary files."""
RESIDENT_LIMIT: Final = 2 * GI
"""Data up to this size are given the memory to stay resident on a learner without a GPU."""
RESIDENT_SHARE: Final = 4
"""Data are resident where they take at most a fourth of the container's memory (`pipeline/residency.py`)."""

Part = tuple[int, str]


@dataclass(frozen=True)
class _Need:
    """What a pool's pods need, before figures that were given for them."""

    pool: Pool
    pods: Part
    cpu: tuple[float, str]
    num_cpus: Part
    memory: tuple[Part, ...]
    gpus: Part = (0, "CPUs only")
    max_pods: int = 0
    least_memory: Part = (0, "")
    object_store: Part = (LEAST_OBJECT_STORE, "nothing large passes through it")
    spill: int = 1 * GI


def sizes(resource: Resource, inputs: Mapping[str, Input]) -> Sizes:
    """The pools of an attempt, each number with its reason.

    Args:
        resource: `effective`.
        inputs: what the resources that this one refers to give, by `Kind/name`. Where the size of the data is
            not known, a full window is assumed, and the reasons say so.
    """
    needs = _recording(resource) if isinstance(resource, OfflineRecording) else _training(resource, inputs)
    workers = sum(max(need.pods[0], need.max_pods) for need in needs)
    return Sizes(tuple(_sized(need, resource) for need in (_head(workers), *needs)))


def resources_field(pool: Pool) -> str:
    """The pool's field in `spec.cluster.resources` and `podOverrides`, in Python's spelling."""
    return "data_worker" if pool == "data" else pool


# -- what each pool needs -----------------------------------------------------------------------------------


def _head(workers: int) -> _Need:
    return _Need(
        pool="head",
        pods=(1, "supervises; no work lands on it"),
        cpu=(round(0.5 + 0.02 * workers, 2), f"0.5 + 0.02 for each other pod ({workers})"),
        num_cpus=(0, "no task may land on the head"),
        memory=(
            (HEAD, "Ray's daemons"),
            (2 * PROCESS, "driver, mailbox and job supervisor"),
            (16 * MI * workers, f"at 16Mi for each other pod ({workers})"),
        ),
    )


def _recording(resource: OfflineRecording) -> tuple[_Need, ...]:
    runners = resource.spec.runners
    expert: tuple[Part, ...] = ((GI, "training of the expert"),) if resource.spec.policy.train else ()
    envs = runners.envs_per_runner
    return (
        _Need(
            pool="runner",
            pods=(runners.replicas, "spec.runners.replicas"),
            cpu=(runners.cpus, "spec.runners.cpus"),
            num_cpus=(math.ceil(runners.cpus), "spec.runners.cpus, rounded up: one runner a pod"),
            memory=(
                (NODE, "Ray's daemons"),
                (2 * PROCESS, "a runner, and the coordinator on one of the pods"),
                *expert,
                (ENVIRONMENT * envs, f"at {as_bytes(ENVIRONMENT)} for each environment ({envs})"),
                (256 * MI, "episodes that are being written"),
            ),
        ),
    )


def _training(resource: OfflineTraining, inputs: Mapping[str, Input]) -> tuple[_Need, ...]:
    volume = data_volume(resource.spec, inputs)
    data = _data(resource, volume)
    return (*data, _learner(resource, volume))


def evaluation_runners(resource: OfflineTraining) -> int:
    """Runners that evaluate in the data pool; none where the learner's process evaluates."""
    evaluation = resource.spec.evaluation
    if evaluation is None:
        return 0
    return max(evaluation.runners, int(evaluation.parallel_to_training))


def _data(resource: OfflineTraining, volume: DataVolume) -> tuple[_Need, ...]:
    workers = resource.spec.pipeline.data_workers
    fewest, most = workers.interval
    cpus, runners = math.ceil(workers.cpus), evaluation_runners(resource)
    evaluating = math.ceil(runners / cpus)
    if most + evaluating == 0:
        return ()
    named = "replicas" if fewest == most else "minReplicas and maxReplicas"
    extra = f", and {evaluating} for evaluation.runners {runners}" if evaluating else ""
    in_flight = round_up(2 * volume.window / max(fewest, 1), MI) if most else 0
    play = PROCESS + ENVIRONMENT * _envs(resource) if runners else 0
    return (
        _Need(
            pool="data",
            pods=(fewest + evaluating, f"{fewest} by spec.pipeline.dataWorkers.{named}{extra}"),
            max_pods=most + evaluating,
            cpu=(workers.cpus, "spec.pipeline.dataWorkers.cpus"),
            num_cpus=(cpus, "spec.pipeline.dataWorkers.cpus, rounded up: one worker a pod"),
            gpus=(math.ceil(workers.gpus), "spec.pipeline.dataWorkers.gpus"),
            memory=(
                (NODE, "Ray's daemons"),
                (max(PROCESS + 3 * volume.unit, cpus * play), _data_process(cpus if runners else 0)),
                *_cuda(math.ceil(workers.gpus)),
            ),
            object_store=_object_store(in_flight, f"this and the next window, over {fewest} workers", volume),
            spill=max(GI, in_flight),
        ),
    )


def _data_process(runners: int) -> str:
    worker = "a worker with a unit as read, decoded and pre-learned"
    return f"{worker}, or evaluation runners ({runners})" if runners else worker


def _envs(resource: OfflineTraining) -> int:
    evaluation = resource.spec.evaluation
    if evaluation is None:
        return 0
    duration = evaluation.duration if isinstance(evaluation.duration, int) else 8
    return evaluation.envs_per_runner or min(duration, 8)


def _learner(resource: OfflineTraining, volume: DataVolume) -> _Need:
    learners, pipeline = resource.spec.learners, resource.spec.pipeline
    gpus = math.ceil(learners.gpus)
    cpus, why = _learner_cpus(learners.cpus, gpus)
    fed = pipeline.data_workers.interval[1] > 0
    return _Need(
        pool="learner",
        pods=(learners.replicas, "spec.learners.replicas"),
        cpu=(cpus, why),
        num_cpus=(math.ceil(cpus), f"{why}, rounded up: one learner a pod"),
        gpus=(gpus, "spec.learners.gpus"),
        memory=(
            (NODE, "Ray's daemons"),
            (2 * PROCESS, "a learner, and the coordinator on one of the pods"),
            *_cuda(gpus),
            (round_up(2 * volume.window, MI), "this and the next window"),
        ),
        least_memory=_resident(resource, volume) if not gpus else (0, ""),
        object_store=_object_store(
            round_up(volume.window, MI) if fed else 0, "the window that data workers sent", volume
        ),
        spill=max(GI, volume.window),
    )


def _learner_cpus(given: float | None, gpus: int) -> tuple[float, str]:
    if given is not None:
        return given, "spec.learners.cpus"
    if gpus:
        return 4.0 * gpus, "4 for each GPU, which gather and copy its batches"
    return 1.0, "1 without a GPU"


def _resident(resource: OfflineTraining, volume: DataVolume) -> Part:
    """Memory with which the data stay resident, where they shall."""
    pipeline = resource.spec.pipeline
    if pipeline.residency == "Streaming" or volume.total is None:
        return 0, ""
    if pipeline.resident_budget is not None:
        budget = min(parse_bytes(pipeline.resident_budget), volume.total)
        return NODE + 2 * PROCESS + 2 * budget, "twice spec.pipeline.residentBudget, while data are loaded"
    if pipeline.residency == "Auto" and volume.total > RESIDENT_LIMIT:
        return 0, ""
    return RESIDENT_SHARE * volume.total, "four times all data, which then stay resident"


def _cuda(gpus: int) -> tuple[Part, ...]:
    return ((CUDA * gpus, f"of host memory at {as_bytes(CUDA)} for each GPU"),) if gpus else ()


def _object_store(wanted: int, what: str, volume: DataVolume) -> Part:
    if wanted <= LEAST_OBJECT_STORE:
        return LEAST_OBJECT_STORE, f"the least; {what}: {as_bytes(wanted)}"
    return wanted, f"{what}; {volume.reason}"


# -- with what was given ------------------------------------------------------------------------------------


def _sized(need: _Need, resource: Resource) -> PoolSize:
    name = resources_field(need.pool)
    own: PodResources = getattr(resource.spec.cluster.resources, name)
    memory = parse_bytes(own.memory) if own.memory else None
    shm, object_store = _shared_memory(need.object_store[0], own.shared_memory, memory)
    computed, why_memory = _memory(need, shm)
    storage = SCRATCH + need.spill if own.ephemeral_storage is None else parse_bytes(own.ephemeral_storage)
    spill = max(storage - SCRATCH, storage // 2)
    reasons = {
        "pods": need.pods[1],
        "cpu": need.cpu[1],
        "numCpus": need.num_cpus[1],
        "gpus": need.gpus[1],
        "memory": why_memory,
        "sharedMemory": f"the object store, and {as_bytes(shm - object_store)} for NCCL and torch",
        "objectStoreMemory": need.object_store[1],
        "ephemeralStorage": f"{as_bytes(storage - spill)} for logs + {as_bytes(spill)} for spilled objects",
    }
    if object_store != need.object_store[0]:
        reasons["objectStoreMemory"] = "what /dev/shm has room for"
    given = own.model_dump(by_alias=True, exclude_none=True)
    return PoolSize(
        pool=need.pool,
        pods=need.pods[0],
        max_pods=max(need.pods[0], need.max_pods),
        cpu=own.cpu or need.cpu[0],
        num_cpus=need.num_cpus[0],
        gpus=need.gpus[0],
        memory=memory or computed,
        shared_memory=shm,
        object_store=object_store,
        ephemeral_storage=storage,
        spill=spill,
        reasons=reasons
        | {field: f"given (spec.cluster.resources.{to_camel(name)}.{field})" for field in given},
    )


def _memory(need: _Need, shm: int) -> Part:
    parts = [part for part in (*need.memory, (shm, "/dev/shm"), (ROOM, "room")) if part[0]]
    total = sum(size for size, _ in parts)
    least, why = need.least_memory
    if least > total:
        return round_up(least, 128 * MI), why
    return round_up(total, 128 * MI), " + ".join(f"{as_bytes(size)} {what}" for size, what in parts)


def _shared_memory(object_store: int, given: str | None, memory: int | None) -> tuple[int, int]:
    """Bytes of /dev/shm and of the object store in it; at most half of a pod's memory that was given."""
    if given is not None:
        shm = parse_bytes(given)
        return shm, max(shm - SHARED_MEMORY_BESIDE, shm // 2)
    if memory is not None:
        room = memory // 2 - SHARED_MEMORY_BESIDE
        object_store = min(object_store, max(room, LEAST_OBJECT_STORE))
    return object_store + SHARED_MEMORY_BESIDE, object_store
