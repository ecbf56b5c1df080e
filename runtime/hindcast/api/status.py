"""The status of a resource. Written by the operator only; the same for both kinds."""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hindcast.api.base import FreeForm, Model, NonNegative, Positive, ShortText, Text
from hindcast.api.lists import ListMap

Timestamp = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Message = Annotated[str, Field(max_length=32768)]


def _finite_ones(metrics: Any) -> Any:
    """Leave out NaN and infinite metrics, which JSON cannot represent; the run continues."""
    if not isinstance(metrics, dict):
        return metrics
    return {k: v for k, v in metrics.items() if not isinstance(v, float) or math.isfinite(v)}


class Condition(Model):
    """A condition, as in Kubernetes."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Ready, Reconciling, Stalled, Suspended, DataReady, ClusterReady, SpecDrift, ChangeWaiting, Complete, Failed …"""
    status: Literal["True", "False", "Unknown"]
    """Whether it is true."""
    reason: Annotated[str, Field(max_length=1024)]
    """One word, for programs."""
    message: Message
    """A sentence for people: what happened and what to do."""
    last_transition_time: Timestamp
    """When `status` last changed."""
    observed_generation: NonNegative | None = None
    """The generation that it describes."""


class ProgressStatus(Model):
    """Progress of the run."""

    iteration: NonNegative | None = None
    """Training iterations done."""
    timesteps: NonNegative | None = None
    """Timesteps recorded or trained on."""
    episodes: NonNegative | None = None
    """Episodes recorded."""
    percentage: Annotated[float, Field(ge=0, le=100)] | None = None
    """Completed share, in percent."""
    estimated_remaining_seconds: NonNegative | None = None
    """Estimated seconds left."""
    metrics: Annotated[dict[ShortText, float], Field(max_length=64), BeforeValidator(_finite_ones)] = {}
    """Latest metrics, finite ones: loss, episodeReturnMean, estimatedReturn, validationLoss, timestepsPerSecond …"""
    last_report_time: Timestamp | None = None
    """When the run last reported."""
    summary: Annotated[str, Field(max_length=64)] | None = None
    """`done/total`, for the printer column."""
    verdict: Text | None = None
    """Latest sentence of an offline evaluation: whether the policy is better than the one that was recorded."""
    episode_return: Annotated[str, Field(max_length=32)] | None = None
    """Latest mean episode return, for the printer column."""


class OutputStatus(Model):
    """The recorded dataset."""

    path: Text
    """Its folder, resolved."""
    episodes: NonNegative | None = None
    """Episodes in it."""
    timesteps: NonNegative | None = None
    """Timesteps in it."""
    bytes: NonNegative | None = None
    """Bytes in it."""
    memory_bytes: NonNegative | None = None
    """Bytes of its timesteps in memory."""
    digest: ShortText | None = None
    """Digest of its manifest."""


class CheckpointStatus(Model):
    """The run's checkpoints."""

    path: Text
    """The latest one."""
    iteration: NonNegative | None = None
    """Its iteration."""
    save_time: Timestamp | None = None
    """When it was saved."""
    best_path: Text | None = None
    """The best one."""
    best_episode_return_mean: float | None = None
    """Its mean episode return, where that was measured."""
    best_estimated_return: float | None = None
    """Its estimated return, where it was chosen by an estimate."""


class RunStatus(Model):
    """One attempt."""

    revision: NonNegative
    """The spec's revision."""
    attempt: NonNegative
    """Number of the attempt in the revision, from 1."""
    ray_job_name: ShortText
    """Name of its RayJob."""
    ray_job_uid: Annotated[ShortText | None, Field(alias="rayJobUID")] = None
    """uid of its RayJob, once it was seen."""
    spec_hash: ShortText
    """Hash of the run-defining fields."""
    course_hash: ShortText | None = None
    """Hash of the run-defining fields except `stop` and `evaluation`, which may change during a run."""
    image: Text | None = None
    """Its image."""
    inputs: FreeForm = {}
    """Inputs from the resources that it refers to, by `Kind/name`, and the platform `defaults` that it used."""
    initial_learners: Positive | None = None
    """Learners when the revision started, as far as this status goes back. Information only: nothing reads it, the
    global batch is fixed in the run folder."""
    operational_fields: FreeForm = {}
    """The operational fields that it was created with, by path, until it ends; digests of lists and mappings."""
    retries: NonNegative = 0
    """Attempts of the revision that were lost before it. 0 once it has saved a checkpoint."""
    active_seconds: NonNegative = 0
    """Seconds for which earlier attempts of the revision had nodes, or waited for them outside a queue."""
    start_time: Timestamp | None = None
    """When it was created."""
    admission_time: Timestamp | None = None
    """When it was admitted: its creation, or the end of its queueing; unset while it is queued."""
    first_report_time: Timestamp | None = None
    """When its first report was seen."""
    stop_requested_time: Timestamp | None = None
    """When it was asked to save a checkpoint and stop."""
    end_time: Timestamp | None = None
    """When it ended."""
    outcome: ShortText | None = None
    """Succeeded, Failed, Lost, Suspended, Preempted, Superseded; unset while it is running."""
    reason: Message | None = None
    """Why, in one word."""
    message: Message | None = None
    """Why, in a sentence."""


class Status(Model):
    """The observed state."""

    observed_generation: int = -1
    """The generation that this describes; -1 until the operator has seen the resource."""
    state: ShortText | None = None
    """One word, for people."""
    message: Message | None = None
    """One sentence for people: why it is in this state, what to do next."""
    conditions: Annotated[list[Condition], Field(max_length=32), ListMap("type")] = []
    """The conditions."""
    ray_job_name: ShortText | None = None
    """Name of the current attempt's RayJob."""
    progress: ProgressStatus | None = None
    """Progress of the run."""
    output: OutputStatus | None = None
    """The recorded dataset."""
    checkpoint: CheckpointStatus | None = None
    """The run's checkpoints."""
    resolved: FreeForm = {}
    """Sizes that were chosen, each with its reason."""
    runs: Annotated[list[RunStatus], Field(max_length=32), ListMap("revision", "attempt")] = []
    """The latest attempts, newest first."""
