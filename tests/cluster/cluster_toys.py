"""An attempt without a cluster: a recording channel, and the folder that the operator would mount."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hindcast.api import OfflineRecording, OfflineTraining, spec_hash
from hindcast.api.attempt import Attempt, Report, ResolvedInput
from hindcast.cluster.channel import ReportRefused


class RecordingChannel:
    """A channel that stores reports.

    Attributes:
        reports: accepted reports, in order.
        intent: intent to return.
        refused_after: number of reports after which reports are refused; None to accept all.
        on_report: called with each accepted report.
    """

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.intent = ""
        self.refused_after: int | None = None
        self.on_report: Callable[[Report], None] = lambda report: None

    def send(self, report: Report) -> str:
        if self.refused_after is not None and len(self.reports) >= self.refused_after:
            raise ReportRefused("refused by the test")
        self.reports.append(report)
        self.on_report(report)
        return self.intent

    @property
    def last_report(self) -> Report:
        return self.reports[-1]


def make_attempt(
    resource: OfflineRecording | OfflineTraining,
    number: int = 1,
    inputs: dict[str, ResolvedInput] | None = None,
) -> Attempt:
    return Attempt(
        revision=resource.spec.revision,
        number=number,
        ray_job_name=f"{resource.metadata.name}-r{resource.spec.revision}-{number}",
        namespace="tests",
        uid="4f1c",
        spec_hash=spec_hash(resource),
        inputs=inputs or {},
    )


def mount_attempt(
    folder: Path,
    resource: OfflineRecording | OfflineTraining,
    number: int = 1,
    inputs: dict[str, ResolvedInput] | None = None,
) -> Path:
    """Write the two documents of an attempt to a folder, as the operator mounts them; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = resource.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True)
    (folder / "resource.yaml").write_text(text)  # JSON is YAML
    (folder / "attempt.json").write_text(
        make_attempt(resource, number, inputs).model_dump_json(by_alias=True)
    )
    return folder
