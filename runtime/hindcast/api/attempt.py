"""The two halves of an attempt's ConfigMap: what the operator passes in, and what the attempt reports.

The operator writes `resource.yaml`, `attempt.json` and `intent`; the runtime writes `report.json`, and nothing else.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

from hindcast.api.base import MachineRecord, Positive, ShortText
from hindcast.api.status import CheckpointStatus, OutputStatus, ProgressStatus, Timestamp

RESOURCE_KEY: Final = "resource.yaml"
"""The resource as the attempt executes it: platform defaults merged, paths absolute."""
ATTEMPT_KEY: Final = "attempt.json"
"""The `Attempt`."""
INTENT_KEY: Final = "intent"
"""The operator's request to a running attempt: empty or `CHECKPOINT`."""
REPORT_KEY: Final = "report.json"
"""The latest `Report`; missing before the first one."""

CHECKPOINT: Final = "checkpoint"
"""The request to save a checkpoint and stop, with outcome Suspended."""

POOL_LABEL: Final = "hindcast.dev/pool"
"""Ray node label, and pod label, of the pools."""
Pool = Literal["head", "data", "runner", "learner"]

MAX_REPORT_INTERVAL_SECONDS: Final = 30
"""An attempt reports at least this often."""
MIN_REPORT_INTERVAL_SECONDS: Final = 10
"""An attempt reports changes at most this often, but its outcome immediately."""

AttemptState = Literal["Succeeded", "Failed", "Lost", "Suspended"]
"""`Failed` is permanent: another attempt would end the same way. After `Lost` another attempt may succeed."""

AttemptReason = Literal[
    "Succeeded",
    "AlreadyFinished",
    "Suspended",
    "InvalidSpec",
    "InvalidData",
    "OutputConflict",
    "UserCodeFailed",
    "NoCudaDevice",
    "InternalError",
    "StorageUnavailable",
    "StorageFailed",
    "OutOfMemory",
    "WorkerLost",
    "Terminated",
]
"""The reason for an attempt's end. The last five are Lost: storage did not answer, storage refused a request, a process
was killed for memory, a worker or node was lost, the driver was terminated."""

UNCOUNTED_REASONS: Final = frozenset({"StorageUnavailable", "NodeUnreachable", "Disrupted", "GpusReleased"})
"""An attempt that was lost for one of these reasons, which the run does not cause, does not count as a retry. All
but the first are the operator's own reasons."""


class ResolvedInput(OutputStatus):
    """An input from another resource: a recording's dataset, or the path of a training's best checkpoint."""


class Attempt(MachineRecord):
    """An attempt of a run, and its inputs."""

    revision: Positive
    """The spec's revision."""
    number: Positive
    """Number of the attempt in the revision, from 1."""
    ray_job_name: ShortText
    """Name of the RayJob and of the ConfigMap."""
    namespace: ShortText
    """Namespace of the RayJob and the ConfigMap."""
    uid: Annotated[str, Field(max_length=253)] = ""
    """uid of the resource; an earlier resource of its name has another uid. Empty if the RayJob is only rendered."""
    spec_hash: ShortText
    """Hash of the run-defining fields."""
    inputs: dict[ShortText, ResolvedInput] = {}
    """Inputs from the resources that this one refers to, by `Kind/name`."""
    learner_peak_bytes: Positive | None = None
    """Maximum memory of a learner's process in earlier attempts of the revision, by which the pods are sized."""


class AttemptOutcome(MachineRecord):
    """The end of an attempt."""

    state: AttemptState | ShortText
    """Success or failure, and whether another attempt may succeed; a newer runtime may have other words."""
    reason: AttemptReason | ShortText
    """The reason, in one word; a newer runtime may have others."""
    message: Annotated[str, Field(max_length=500)]
    """One sentence for people: what happened, where (file:line of the user's code), what to do. No secrets."""
    pool: Pool | ShortText | None = None
    """The pool in which it happened, if known. After an OutOfMemory, raise the memory of this pool."""


class Report(MachineRecord):
    """The report of an attempt."""

    number: Positive
    """Number of the report, from 1."""
    report_time: Timestamp
    """When the report was written, by the driver's clock (UTC)."""
    last_progress_time: Timestamp
    """When the attempt last made progress, by the driver's clock."""
    stage: ShortText | None = None
    """Current stage: `Starting`, `Training the expert`, `Recording`, `Training`."""
    progress: ProgressStatus | None = None
    """Progress of the run."""
    output: OutputStatus | None = None
    """The dataset of a recording, once it is complete."""
    checkpoint: CheckpointStatus | None = None
    """The latest checkpoint of a training."""
    note: Annotated[str, Field(max_length=500)] | None = None
    """The latest note for the user."""
    outcome: AttemptOutcome | None = None
    """The end of the attempt; unset while it is running."""
