"""The status of a resource. Written by the operator only; the same for both kinds."""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hindcast.api.base import FreeForm, MachineRecord, NonNegative, Positive, ShortText, Text
from hindcast.api.lists import ListMap

Timestamp = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Message = Annotated[str, Field(max_length=32768)]


def _drop_non_finite(metrics: Any) -> Any:
    """Leave out NaN and infinite metrics, which JSON cannot represent; the run continues."""
    if not isinstance(metrics, dict):
        return metrics
    return {
        name: value for name, value in metrics.items() if not isinstance(value, float) or math.isfinite(value)
    }


class Condition(MachineRecord):
    """A condition, as in Kubernetes."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Ready, Reconciling, Stalled, Suspended, DataReady, ClusterReady, SpecDrift, ChangeWaiting, Complete, Failed …"""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition is true."""
    reason: Annotated[str, Field(max_length=1024)]
    """One word, for programs."""
    message: Message
    """A sentence for people: what happened and what to do."""
    last_transition_time: Timestamp
    """When `status` last changed."""
    observed_generation: NonNegative | None = None
    """The generation that the condition describes."""


class ProgressStatus(MachineRecord):
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
    metrics: Annotated[dict[ShortText, float], Field(max_length=64), BeforeValidator(_drop_non_finite)] = {}
    """Latest metrics, if finite: loss, episodeReturnMean, estimatedReturn, validationLoss, timestepsPerSecond …"""
    last_report_time: Timestamp | None = None
    """When the run last reported."""
    summary: Annotated[str, Field(max_length=64)] | None = None
    """`done/total`, for the printer column."""
    verdict: Text | None = None
    """Result of the latest offline evaluation: whether the policy is better than the recorded one."""
    episode_return: Annotated[str, Field(max_length=32)] | None = None
    """Latest mean episode return, for the printer column."""
    saved_amount: NonNegative | None = None
    """What a lost attempt of a recording leaves: iterations in the expert's checkpoint, then timesteps in committed
    files."""


class OutputStatus(MachineRecord):
    """The recorded dataset."""

    path: Text
    """Folder of the dataset, as an absolute path or URI."""
    episodes: NonNegative | None = None
    """Number of its episodes."""
    timesteps: NonNegative | None = None
    """Number of its timesteps."""
    bytes: NonNegative | None = None
    """Size of its files in bytes."""
    memory_bytes: NonNegative | None = None
    """Size of its timesteps in memory, in bytes."""
    digest: ShortText | None = None
    """Digest of its manifest."""


class CheckpointStatus(MachineRecord):
    """The run's checkpoints."""

    path: Text
    """The latest checkpoint."""
    iteration: NonNegative | None = None
    """Iteration of the latest checkpoint."""
    save_time: Timestamp | None = None
    """When the latest checkpoint was saved."""
    best_path: Text | None = None
    """The best checkpoint."""
    best_episode_return_mean: float | None = None
    """Mean episode return of the best checkpoint, if it was measured."""
    best_estimated_return: float | None = None
    """Estimated return of the best checkpoint, if an estimate selected it."""


class RunStatus(MachineRecord):
    """One attempt."""

    revision: NonNegative
    """The spec's revision."""
    attempt: NonNegative
    """Number of the attempt in the revision, from 1."""
    ray_job_name: ShortText
    """Name of its RayJob."""
    ray_job_uid: Annotated[ShortText | None, Field(alias="rayJobUID")] = None
    """uid of its RayJob, once the operator has seen it."""
    spec_hash: ShortText
    """Hash of the run-defining fields."""
    course_hash: ShortText | None = None
    """Hash of the run-defining fields except `stop` and `evaluation`, which may change during a run."""
    image: Text | None = None
    """Its image."""
    inputs: FreeForm = {}
    """Inputs from the resources that it refers to, by `Kind/name`, and the platform `defaults` that it used."""
    initial_learners: Positive | None = None
    """Number of learners when the revision started, or in its earliest attempt in this status. Only for information:
    the run folder determines the global batch."""
    operational_fields: FreeForm = {}
    """The operational fields that it was created with, by path, with digests for lists and mappings; empty once it has
    ended."""
    retries: NonNegative = 0
    """Number of earlier attempts of the revision that were lost. 0 once this attempt has progressed beyond them."""
    initial_amount: NonNegative | None = None
    """What earlier attempts had achieved when it was created: the iteration of the checkpoint, or the `savedAmount` of
    a recording."""
    active_seconds: NonNegative = 0
    """Seconds for which earlier attempts of the revision had nodes, or waited for them outside a queue."""
    start_time: Timestamp | None = None
    """When it was created."""
    admission_time: Timestamp | None = None
    """When it left the queue, or was created if it was not queued; unset while it is queued."""
    first_report_time: Timestamp | None = None
    """When its first report was seen."""
    disruption_time: Timestamp | None = None
    """When one of its pods last had to leave its node."""
    stop_requested_time: Timestamp | None = None
    """When it was asked to save a checkpoint and stop."""
    end_time: Timestamp | None = None
    """When it ended."""
    outcome: ShortText | None = None
    """Succeeded, Failed, Lost, Suspended, Preempted, Superseded; unset while it is running."""
    reason: Message | None = None
    """The reason for the outcome, in one word."""
    message: Message | None = None
    """The reason for the outcome, in a sentence."""


class Status(MachineRecord):
    """The observed state."""

    observed_generation: int = -1
    """The generation that this status describes; -1 until the operator has seen the resource."""
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
