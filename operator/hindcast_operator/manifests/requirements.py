"""What the pods of each pool require: sums and products of measured and given numbers, each with its origin.

What a process takes was measured with Ray 2.60 and torch 2.13 (resident bytes, shared pages counted once).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hindcast.api import OfflineRecording, OfflineTraining, Resource, parse_bytes
from hindcast.api.attempt import Pool, ResolvedInput
from hindcast.api.input import Sampler
from hindcast.api.options import live_algorithms
from hindcast_operator.manifests.data_size import DataSize, data_size
from hindcast_operator.manifests.quantities import GI, MI, format_bytes, round_up

NODE: Final = 256 * MI
"""Ray's daemons on a pod (raylet, agents, log monitor: 210 MiB)."""
HEAD: Final = 768 * MI
"""Ray's daemons on the head (with GCS and dashboard: 650 MiB)."""
PROCESS: Final = 512 * MI
"""A Python process with torch, Ray and Hindcast in it (370 MiB)."""
CUDA: Final = 3 * GI
"""Host memory of a process with a GPU, for its libraries, context and pinned buffers (assumed)."""
ENVIRONMENT: Final = 32 * MI
"""One environment of a runner (assumed: a small simulator)."""
MIN_OBJECT_STORE_BYTES: Final = 128 * MI
"""Ray takes no less than 75 MiB."""
RESIDENT_LIMIT: Final = 2 * GI
"""Data up to this size are given the memory to stay resident on a learner without a GPU."""
RESIDENT_SHARE: Final = 4
"""Data are resident where they take at most a fourth of the container's memory (`pipeline/residency.py`)."""

Amount = tuple[int, str]
"""A number, and the reason for it."""


@dataclass(frozen=True)
class Requirements:
    """What a pool's pods require, before values that the resource sets."""

    pool: Pool
    pods: Amount
    cpu: tuple[float, str]
    num_cpus: Amount
    memory: tuple[Amount, ...]
    gpus: Amount = (0, "CPUs only")
    max_pods: int = 0
    min_memory: Amount = (0, "")
    object_store: Amount = (MIN_OBJECT_STORE_BYTES, "nothing large passes through it")
    spill_bytes: int = 1 * GI


def requirements(resource: Resource, inputs: Mapping[str, ResolvedInput]) -> tuple[Requirements, ...]:
    """Of the head, then of the other pools."""
    found = _recording(resource) if isinstance(resource, OfflineRecording) else _training(resource, inputs)
    return _head(sum(max(need.pods[0], need.max_pods) for need in found)), *found


def _head(workers: int) -> Requirements:
    return Requirements(
        pool="head",
        pods=(1, "supervises only; no work is scheduled on it"),
        cpu=(round(0.5 + 0.02 * workers, 2), f"0.5 + 0.02 for each other pod ({workers})"),
        num_cpus=(0, "no task may be scheduled on the head"),
        memory=(
            (HEAD, "Ray's daemons"),
            (2 * PROCESS, "driver, mailbox and job supervisor"),
            (16 * MI * workers, f"at 16Mi for each other pod ({workers})"),
        ),
    )


def _recording(resource: OfflineRecording) -> tuple[Requirements, ...]:
    runners = resource.spec.runners
    train = resource.spec.policy.train
    expert: tuple[Amount, ...] = ((GI, "training of the expert"),) if train else ()
    if train and train.algorithm in live_algorithms():
        expert += _played(train.sampler or Sampler())
    envs = runners.envs_per_runner
    return (
        Requirements(
            pool="runner",
            pods=(runners.replicas, "spec.runners.replicas"),
            cpu=(runners.cpus, "spec.runners.cpus"),
            num_cpus=(math.ceil(runners.cpus), "spec.runners.cpus, rounded up: one runner a pod"),
            memory=(
                (NODE, "Ray's daemons"),
                (2 * PROCESS, "a runner, and the coordinator on one of the pods"),
                *expert,
                (ENVIRONMENT * envs, f"at {format_bytes(ENVIRONMENT)} for each environment ({envs})"),
                (256 * MI, "episodes being written"),
            ),
        ),
    )


def _training(resource: OfflineTraining, inputs: Mapping[str, ResolvedInput]) -> tuple[Requirements, ...]:
    size = data_size(resource.spec, inputs)
    data = _data(resource, size)
    return (*data, _learner(resource, size))


def num_evaluation_runners(resource: OfflineTraining) -> int:
    """Runners that evaluate in the data pool; none where the learner's process evaluates."""
    evaluation = resource.spec.evaluation_in_environment
    if evaluation is None:
        return 0
    return max(evaluation.runners, int(evaluation.parallel_to_training))


def _data(resource: OfflineTraining, size: DataSize) -> tuple[Requirements, ...]:
    workers = resource.spec.pipeline.data_workers
    fewest, most = workers.interval if resource.spec.recorded else (0, 0)
    cpus, runners = math.ceil(workers.cpus), num_evaluation_runners(resource)
    evaluating = math.ceil(runners / cpus)
    if most + evaluating == 0:
        return ()
    named = "replicas" if fewest == most else "minReplicas and maxReplicas"
    extra = f", and {evaluating} for evaluation.runners {runners}" if evaluating else ""
    in_flight = round_up(2 * size.window_bytes / max(fewest, 1), MI) if most else 0
    play = PROCESS + ENVIRONMENT * _envs(resource) if runners else 0
    return (
        Requirements(
            pool="data",
            pods=(fewest + evaluating, f"{fewest} by spec.pipeline.dataWorkers.{named}{extra}"),
            max_pods=most + evaluating,
            cpu=(workers.cpus, "spec.pipeline.dataWorkers.cpus"),
            num_cpus=(cpus, "spec.pipeline.dataWorkers.cpus, rounded up: one worker a pod"),
            gpus=(math.ceil(workers.gpus), "spec.pipeline.dataWorkers.gpus"),
            memory=(
                (NODE, "Ray's daemons"),
                (max(PROCESS + 5 * size.unit_bytes, cpus * play), _data_process(cpus if runners else 0)),
                *_cuda(math.ceil(workers.gpus)),
            ),
            object_store=_object_store(in_flight, f"this and the next window, over {fewest} workers", size),
            spill_bytes=max(GI, in_flight),
        ),
    )


def _data_process(runners: int) -> str:
    worker = "a worker with two units as read and decoded, one of them pre-learned"
    return f"{worker}, or evaluation runners ({runners})" if runners else worker


def _envs(resource: OfflineTraining) -> int:
    evaluation = resource.spec.evaluation_in_environment
    if evaluation is None:
        return 0
    duration = evaluation.duration if isinstance(evaluation.duration, int) else 8
    return evaluation.envs_per_runner or min(duration, 8)


def _learner(resource: OfflineTraining, size: DataSize) -> Requirements:
    learners, pipeline = resource.spec.learners, resource.spec.pipeline
    gpus = math.ceil(learners.gpus)
    cpus, why = _learner_cpus(learners.cpus, gpus)
    fed = pipeline.data_workers.interval[1] > 0 and bool(resource.spec.recorded)
    sampler = resource.spec.sampler
    return Requirements(
        pool="learner",
        pods=(learners.replicas, "spec.learners.replicas"),
        cpu=(cpus, why),
        num_cpus=(math.ceil(cpus), f"{why}, rounded up: one learner a pod"),
        gpus=(gpus, "spec.learners.gpus"),
        memory=(
            (NODE, "Ray's daemons"),
            (2 * PROCESS, "a learner, and the coordinator on one of the pods"),
            *_cuda(gpus),
            (round_up(2 * size.window_bytes, MI), "this and the next window"),
            *_held_out(resource, size),
            *(_played(sampler) if sampler else ()),
        ),
        min_memory=_resident(resource, size) if not gpus else (0, ""),
        object_store=_object_store(
            round_up(size.window_bytes, MI) if fed else 0, "the window that data workers have sent", size
        ),
        spill_bytes=max(GI, size.window_bytes),
    )


def _held_out(resource: OfflineTraining, size: DataSize) -> tuple[Amount, ...]:
    """Episodes that judge the policy: once as they are learnt from, once as estimates take them."""
    offline = resource.spec.offline
    if offline is None:
        return ()
    share = offline.held_out or 1.0
    total = 2 * size.window_bytes if size.total_bytes is None else 2 * math.ceil(share * size.total_bytes)
    return ((round_up(total, MI), "twice the episodes of evaluation.offline"),)


def _played(sampler: Sampler) -> tuple[Amount, ...]:
    """What is played and kept: as it came, as it is drawn from, and twice while a checkpoint is written."""
    envs = sampler.envs_per_runner
    return (
        (round_up(4 * parse_bytes(sampler.capacity_bytes), MI), "four times the sampler's capacityBytes"),
        (ENVIRONMENT * envs, f"at {format_bytes(ENVIRONMENT)} for each environment of the sampler ({envs})"),
    )


def _learner_cpus(given: float | None, gpus: int) -> tuple[float, str]:
    if given is not None:
        return given, "spec.learners.cpus"
    if gpus:
        return 4.0 * gpus, "4 for each GPU, to gather and copy its batches"
    return 1.0, "1 without a GPU"


def _resident(resource: OfflineTraining, size: DataSize) -> Amount:
    """Memory with which the data stay resident, where they should."""
    pipeline = resource.spec.pipeline
    if pipeline.residency == "Streaming" or size.total_bytes is None:
        return 0, ""
    if pipeline.resident_budget is not None:
        budget = min(parse_bytes(pipeline.resident_budget), size.total_bytes)
        return NODE + 2 * PROCESS + 2 * budget, "twice spec.pipeline.residentBudget, while data are loaded"
    if pipeline.residency == "Auto" and size.total_bytes > RESIDENT_LIMIT:
        return 0, ""
    return RESIDENT_SHARE * size.total_bytes, "four times all data, so that they stay resident"


def _cuda(gpus: int) -> tuple[Amount, ...]:
    return ((CUDA * gpus, f"of host memory at {format_bytes(CUDA)} for each GPU"),) if gpus else ()


def _object_store(wanted: int, what: str, size: DataSize) -> Amount:
    if wanted <= MIN_OBJECT_STORE_BYTES:
        return MIN_OBJECT_STORE_BYTES, f"the minimum; {what}: {format_bytes(wanted)}"
    return wanted, f"{what}; {size.reason}"
