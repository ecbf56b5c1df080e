"""Requirements of each pool's pods, computed from measured and configured numbers, each with its reason.

The memory of processes was measured with Ray 2.60 and torch 2.13 (resident bytes, shared pages counted once).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hindcast.api import OfflineRecording, OfflineTraining, Resource, parse_bytes
from hindcast.api.attempt import Pool, ResolvedInput
from hindcast.api.input import Sampler
from hindcast.api.options import live_algorithms
from hindcast_operator.manifests.data_size import DataSize, compute_data_size
from hindcast_operator.manifests.quantities import GI, MI, format_bytes, round_up

NODE_BYTES: Final = 256 * MI
"""Ray's daemons on a pod (raylet, agents, log monitor: 210 MiB measured)."""
HEAD_BYTES: Final = 768 * MI
"""Ray's daemons on the head (with GCS and dashboard: 650 MiB measured)."""
PROCESS_BYTES: Final = 512 * MI
"""A Python process with torch, Ray and Hindcast (370 MiB measured)."""
CUDA_BYTES: Final = 3 * GI
"""Host memory of a process with a GPU, for its libraries, context and pinned buffers (assumed)."""
ENVIRONMENT_BYTES: Final = 32 * MI
"""One environment of a runner (assumed: a small simulator)."""
MIN_OBJECT_STORE_BYTES: Final = 128 * MI
"""Minimum size of Ray's object store; Ray accepts no less than 75 MiB."""
PEAK_FACTOR: Final = 1.25
"""A learner gets this multiple of its measured peak: the measurement is as old as the last result before its end."""
RESIDENT_LIMIT_BYTES: Final = 2 * GI
"""Learners without a GPU get enough memory to keep data of up to this size resident."""
RESIDENT_FACTOR: Final = 4
"""Data are resident if they take at most a fourth of the container's memory (`pipeline/residency.py`)."""

Amount = tuple[int, str]
"""A number, and the reason for it."""


@dataclass(frozen=True)
class Requirements:
    """The requirements of a pool's pods, before values that `spec.cluster.resources` sets.

    Tuples are a number and the reason for it.

    Attributes:
        pods: number of pods; in an autoscaled pool, the minimum.
        cpu: CPUs that a pod requests.
        num_cpus: CPUs that Ray schedules on a pod.
        memory: what needs memory in a pod, in bytes, without /dev/shm and headroom; the requirement is the sum.
        gpus: GPUs of a pod.
        max_pods: maximum number of pods of an autoscaled pool; counts only if it exceeds the number of pods.
        min_memory: minimum of a pod's whole memory in bytes, with /dev/shm and headroom.
        object_store: bytes of Ray's object store in a pod.
        spill_bytes: disk of a pod for objects that do not fit into the object store.
        cache_bytes: disk of a pod for `pipeline.diskCache`, if its processes read data.
    """

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
    cache_bytes: int = 0


def compute_requirements(
    resource: Resource, inputs: Mapping[str, ResolvedInput], learner_peak_bytes: int | None = None
) -> tuple[Requirements, ...]:
    """Return the requirements of the head, then of the other pools; see `compute_sizes`."""
    worker_requirements = (
        _recording_requirements(resource)
        if isinstance(resource, OfflineRecording)
        else _training_requirements(resource, inputs, learner_peak_bytes)
    )
    num_workers = sum(max(need.pods[0], need.max_pods) for need in worker_requirements)
    return _head_requirements(num_workers), *worker_requirements


def _head_requirements(num_workers: int) -> Requirements:
    """Return the requirements of the head. `num_workers` is the maximum number of other pods."""
    return Requirements(
        pool="head",
        pods=(1, "supervises only; no work is scheduled on it"),
        cpu=(round(0.5 + 0.02 * num_workers, 2), f"0.5 + 0.02 for each other pod ({num_workers})"),
        num_cpus=(0, "no task may be scheduled on the head"),
        memory=(
            (HEAD_BYTES, "Ray's daemons"),
            (2 * PROCESS_BYTES, "driver, mailbox and job supervisor"),
            (16 * MI * num_workers, f"at 16Mi for each other pod ({num_workers})"),
        ),
    )


def _recording_requirements(resource: OfflineRecording) -> tuple[Requirements, ...]:
    runners = resource.spec.runners
    train = resource.spec.policy.train
    expert_memory: tuple[Amount, ...] = ((GI, "training of the expert"),) if train else ()
    if train and train.algorithm in live_algorithms():
        expert_memory += _sampler_memory(train.sampler or Sampler())
    num_envs = runners.envs_per_runner
    return (
        Requirements(
            pool="runner",
            pods=(runners.replicas, "spec.runners.replicas"),
            cpu=(runners.cpus, "spec.runners.cpus"),
            num_cpus=(math.ceil(runners.cpus), "spec.runners.cpus, rounded up: one runner a pod"),
            memory=(
                (NODE_BYTES, "Ray's daemons"),
                (2 * PROCESS_BYTES, "a runner, and the coordinator on one of the pods"),
                *expert_memory,
                (
                    ENVIRONMENT_BYTES * num_envs,
                    f"at {format_bytes(ENVIRONMENT_BYTES)} for each environment ({num_envs})",
                ),
                (256 * MI, "episodes being written"),
            ),
        ),
    )


def _training_requirements(
    resource: OfflineTraining, inputs: Mapping[str, ResolvedInput], learner_peak_bytes: int | None
) -> tuple[Requirements, ...]:
    size = compute_data_size(resource.spec, inputs)
    data = _data_requirements(resource, size)
    return (*data, _learner_requirements(resource, size, learner_peak_bytes))


def num_evaluation_runners(resource: OfflineTraining) -> int:
    """Return the number of evaluation runners in the data pool; 0 if a learner's process evaluates, or nothing does."""
    evaluation = resource.spec.evaluation_in_environment
    return 0 if evaluation is None else evaluation.num_runners


def _data_requirements(resource: OfflineTraining, size: DataSize) -> tuple[Requirements, ...]:
    workers = resource.spec.pipeline.data_workers
    min_workers, max_workers = workers.interval if resource.spec.recorded_inputs else (0, 0)
    num_cpus, num_runners = math.ceil(workers.cpus), num_evaluation_runners(resource)
    num_evaluation_pods = math.ceil(num_runners / num_cpus)
    if max_workers + num_evaluation_pods == 0:
        return ()
    field_names = "replicas" if min_workers == max_workers else "minReplicas and maxReplicas"
    extra = f", and {num_evaluation_pods} for evaluation.runners {num_runners}" if num_evaluation_pods else ""
    in_flight_bytes = round_up(2 * size.window_bytes / max(min_workers, 1), MI) if max_workers else 0
    evaluation_bytes = (
        PROCESS_BYTES + ENVIRONMENT_BYTES * _num_evaluation_envs(resource) if num_runners else 0
    )
    return (
        Requirements(
            pool="data",
            pods=(
                min_workers + num_evaluation_pods,
                f"{min_workers} by spec.pipeline.dataWorkers.{field_names}{extra}",
            ),
            max_pods=max_workers + num_evaluation_pods,
            cpu=(workers.cpus, "spec.pipeline.dataWorkers.cpus"),
            num_cpus=(num_cpus, "spec.pipeline.dataWorkers.cpus, rounded up: one worker a pod"),
            gpus=(math.ceil(workers.gpus), "spec.pipeline.dataWorkers.gpus"),
            memory=(
                (NODE_BYTES, "Ray's daemons"),
                (
                    max(PROCESS_BYTES + 5 * size.unit_bytes, num_cpus * evaluation_bytes),
                    _data_process_reason(num_cpus if num_runners else 0),
                ),
                *_cuda_memory(math.ceil(workers.gpus)),
            ),
            object_store=_object_store(
                in_flight_bytes, f"this and the next window, over {min_workers} workers", size
            ),
            spill_bytes=max(GI, in_flight_bytes),
            cache_bytes=parse_bytes(resource.spec.pipeline.disk_cache or "0") if max_workers else 0,
        ),
    )


def _data_process_reason(num_runners: int) -> str:
    worker_reason = "a worker with two units, read and decoded; the pre-learner has processed one of them"
    return f"{worker_reason}, or evaluation runners ({num_runners})" if num_runners else worker_reason


def _num_evaluation_envs(resource: OfflineTraining) -> int:
    """Return the number of environments of each evaluation runner."""
    evaluation = resource.spec.evaluation_in_environment
    if evaluation is None:
        return 0
    duration = evaluation.duration if isinstance(evaluation.duration, int) else 8
    return evaluation.envs_per_runner or min(duration, 8)


def _learner_requirements(
    resource: OfflineTraining, size: DataSize, learner_peak_bytes: int | None
) -> Requirements:
    learners, pipeline = resource.spec.learners, resource.spec.pipeline
    num_gpus = math.ceil(learners.gpus)
    num_processes = max(1, num_gpus)
    cpus, cpu_reason = _learner_cpus(learners.cpus, num_gpus)
    has_data_workers = pipeline.data_workers.interval[1] > 0 and bool(resource.spec.recorded_inputs)
    sampler = resource.spec.sampler
    memory = (
        (NODE_BYTES, "Ray's daemons"),
        (
            (1 + num_processes) * PROCESS_BYTES,
            f"a learner{' for each GPU' if num_gpus > 1 else ''}, and the coordinator on one of the pods",
        ),
        *_cuda_memory(num_gpus),
        (round_up(2 * size.window_bytes, MI), "this and the next window"),
        (round_up(num_processes * size.index_bytes, MI), "the index of the data"),
        *_held_out_memory(resource, size),
        *(_sampler_memory(sampler) if sampler else ()),
    )
    minima = [_measured_memory(learner_peak_bytes, num_processes, sum(amount for amount, _ in memory))]
    if not num_gpus:
        minima.append(_resident_memory(resource, size))
    return Requirements(
        pool="learner",
        pods=(learners.replicas, "spec.learners.replicas"),
        cpu=(cpus, cpu_reason),
        num_cpus=(math.ceil(cpus), f"{cpu_reason}, rounded up: one learner a pod"),
        gpus=(num_gpus, "spec.learners.gpus"),
        memory=memory,
        min_memory=max(minima),
        object_store=_object_store(
            round_up(size.window_bytes, MI) if has_data_workers else 0,
            "the window that data workers have sent",
            size,
        ),
        spill_bytes=max(GI, size.window_bytes),
        cache_bytes=0 if has_data_workers else parse_bytes(pipeline.disk_cache or "0"),
    )


def _held_out_memory(resource: OfflineTraining, size: DataSize) -> tuple[Amount, ...]:
    """Return the memory of the held-out episodes, which is twice their size: losses and estimates each keep a copy.

    Episodes of a dataset of their own are assumed to be as large as all data, and all data of unknown size as a window.
    """
    offline = resource.spec.offline
    if offline is None:
        return ()
    fraction = offline.held_out or 1.0
    total_bytes = (
        2 * size.window_bytes if size.total_bytes is None else 2 * math.ceil(fraction * size.total_bytes)
    )
    return ((round_up(total_bytes, MI), "twice the episodes of evaluation.offline"),)


def _sampler_memory(sampler: Sampler) -> tuple[Amount, ...]:
    """Return the memory of the sampler: its timesteps as played and as drawn, and two copies for a checkpoint."""
    num_envs = sampler.envs_per_runner
    return (
        (round_up(4 * parse_bytes(sampler.capacity_bytes), MI), "four times the sampler's capacityBytes"),
        (
            ENVIRONMENT_BYTES * num_envs,
            f"at {format_bytes(ENVIRONMENT_BYTES)} for each environment of the sampler ({num_envs})",
        ),
    )


def _learner_cpus(num_cpus: float | None, num_gpus: int) -> tuple[float, str]:
    if num_cpus is not None:
        return num_cpus, "spec.learners.cpus"
    if num_gpus:
        return 4.0 * num_gpus, "4 for each GPU, to gather and copy its batches"
    return 1.0, "1 without a GPU"


def _resident_memory(resource: OfflineTraining, size: DataSize) -> Amount:
    """Return a pod's memory in bytes that keeps the data resident.

    0 if the data are streamed, of unknown size, or too large.
    """
    pipeline = resource.spec.pipeline
    if pipeline.residency == "Streaming" or size.total_bytes is None:
        return 0, ""
    if pipeline.resident_budget is not None:
        budget = min(parse_bytes(pipeline.resident_budget), size.total_bytes)
        return (
            NODE_BYTES + 2 * PROCESS_BYTES + 2 * budget,
            "twice spec.pipeline.residentBudget, while data are loaded",
        )
    if pipeline.residency == "Auto" and size.total_bytes > RESIDENT_LIMIT_BYTES:
        return 0, ""
    return RESIDENT_FACTOR * size.total_bytes, "four times all data, so that they stay resident"


def _measured_memory(peak_bytes: int | None, num_processes: int, estimated_bytes: int) -> Amount:
    """Return a pod's memory in bytes by what earlier attempts have measured, at most twice the estimate; else 0.

    It counts if it exceeds the estimate: a lower one would take away what data that grow within an attempt need.
    """
    if peak_bytes is None:
        return 0, ""
    measured_bytes = NODE_BYTES + PROCESS_BYTES + num_processes * math.ceil(PEAK_FACTOR * peak_bytes)
    reason = f"{PEAK_FACTOR} times the {format_bytes(round_up(peak_bytes, MI))} that a learner took in earlier attempts"
    if measured_bytes > 2 * estimated_bytes:
        return 2 * estimated_bytes, f"{reason}, but at most twice the estimate"
    return measured_bytes, f"{reason}, and Ray's daemons and the coordinator"


def _cuda_memory(num_gpus: int) -> tuple[Amount, ...]:
    return (
        ((CUDA_BYTES * num_gpus, f"of host memory at {format_bytes(CUDA_BYTES)} for each GPU"),)
        if num_gpus
        else ()
    )


def _object_store(num_bytes: int, description: str, size: DataSize) -> Amount:
    if num_bytes <= MIN_OBJECT_STORE_BYTES:
        return MIN_OBJECT_STORE_BYTES, f"the minimum; {description}: {format_bytes(num_bytes)}"
    return num_bytes, f"{description}; {size.reason}"
