"""A fake of KubeRay and the runs in a namespace: RayJobs start, report and end according to a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from api_server import ApiServer, RefusalError, collection

Object = dict[str, Any]
Outcome = dict[str, str]
"""State, reason and message of an attempt's end, as in a report."""
Script = Callable[[str], Outcome | None]
"""Returns the outcome of a running attempt by its name; None if the attempt continues."""

SUCCESS_OUTCOME: Outcome = {"state": "Succeeded", "reason": "Succeeded", "message": "Recorded 10 episodes"}
SUSPENDED_OUTCOME: Outcome = {
    "state": "Suspended",
    "reason": "Suspended",
    "message": "Stopped after the checkpoint",
}


def never_ends(_: str) -> Outcome | None:
    """Script in which no attempt ends by itself."""
    return None


def succeeds_at_once(_: str) -> Outcome | None:
    """Script in which every attempt succeeds immediately."""
    return SUCCESS_OUTCOME


class FakeKubeRay:
    """Processes RayJobs. Each attempt reports, and ends with the outcome `script(child)` or when asked to stop."""

    def __init__(self, api: ApiServer, namespace: str, script: Script = succeeds_at_once) -> None:
        self._api = api
        self._namespace = namespace
        self.script = script
        self.uids_by_name: dict[str, set[str]] = {}
        """Name of a RayJob -> uids of all RayJobs that had it: with more than one, an attempt has run twice."""
        self.last_statuses: dict[str, str] = {}
        """Name of a RayJob -> the deployment status at which it stays; "" if it is never processed."""
        self.first_report: Object = {"progress": {"episodes": 3, "summary": "3/10 episodes"}}
        """Further fields of an attempt's first report."""
        self._beats: dict[str, int] = {}
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    @contextmanager
    def run_in_background(self) -> Iterator[FakeKubeRay]:
        """Process RayJobs in a thread for the duration of the block. Raises the thread's exception at the end."""
        thread = threading.Thread(target=self._play, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(20)
        if self._failure is not None:
            raise self._failure

    def assert_each_ran_once(self, *children: str) -> None:
        """Check that these are all attempts, and that none has run twice."""
        assert {name: len(uids) for name, uids in self.uids_by_name.items()} == dict.fromkeys(children, 1)

    def advance_all(self) -> None:
        """Advance every RayJob to its next deployment status."""
        for job in self._list("ray.io/v1", "rayjobs"):
            name = job["metadata"]["name"]
            self.uids_by_name.setdefault(name, set()).add(job["metadata"]["uid"])
            if "deletionTimestamp" in job["metadata"] or job.get("spec", {}).get("suspend"):
                continue
            try:
                self._advance(job, name)
            except RefusalError as error:
                if error.status not in {404, 409}:  # the RayJob was deleted in the meantime
                    raise

    def set_status(self, child: str, **status: Any) -> None:
        """Patch a RayJob's status, as KubeRay does."""
        path = f"{collection('ray.io/v1', 'rayjobs', self._namespace)}/{child}/status"
        self._api.request("PATCH", path, {"status": status}, "application/merge-patch+json")

    def write_report(self, child: str, **fields: Any) -> None:
        """Write a report into an attempt's ConfigMap, as its driver does."""
        beat = self._beats[child] = self._beats.get(child, 0) + 1
        now = current_timestamp()
        content = {"number": beat, "reportTime": now, "lastProgressTime": now, "stage": "Recording"} | fields
        path = f"{collection('v1', 'configmaps', self._namespace)}/{child}"
        self._api.request(
            "PATCH", path, {"data": {"report.json": json.dumps(content)}}, "application/merge-patch+json"
        )

    def _play(self) -> None:
        try:
            while not self._stop.wait(0.05):
                self.advance_all()
        except BaseException as failure:
            self._failure = failure

    def _advance(self, job: Object, name: str) -> None:
        state = job.get("status", {}).get("jobDeploymentStatus", "")
        if state == self.last_statuses.get(name):
            return
        if state == "":
            self.set_status(
                name, jobDeploymentStatus="Initializing", jobStatus="", startTime=current_timestamp()
            )
        elif state == "Initializing":
            self.set_status(name, jobDeploymentStatus="Running", jobStatus="RUNNING")
            self.write_report(name, **self.first_report)
        elif state == "Running" and (outcome := self._find_outcome(name)):
            self.write_report(name, outcome=outcome, **_result_fields(outcome))
            job_status = {"Succeeded": "SUCCEEDED", "Suspended": "SUCCEEDED"}.get(outcome["state"], "FAILED")
            deployment_status = "Complete" if job_status == "SUCCEEDED" else "Failed"
            self.set_status(
                name, jobDeploymentStatus=deployment_status, jobStatus=job_status, endTime=current_timestamp()
            )

    def _find_outcome(self, name: str) -> Outcome | None:
        path = f"{collection('v1', 'configmaps', self._namespace)}/{name}"
        should_stop = self._api.request("GET", path)["data"].get("intent") == "checkpoint"
        return SUSPENDED_OUTCOME if should_stop else self.script(name)

    def _list(self, version: str, plural: str) -> list[Object]:
        try:
            response = self._api.request("GET", collection(version, plural, self._namespace))
        except RefusalError as error:
            if error.status == 404:
                return []
            raise
        return list(response["items"])


def _result_fields(outcome: Outcome) -> Object:
    if outcome["state"] != "Succeeded":
        return {}
    return {
        "progress": {"episodes": 10, "percentage": 100.0, "summary": "10/10 episodes"},
        "output": {
            "path": "s3://bucket/walks",
            "episodes": 10,
            "timesteps": 200,
            "bytes": 4000,
            "digest": "d1",
        },
    }


def current_timestamp() -> str:
    """Return the current time in the API server's format."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


PlayKubeRay = Callable[..., FakeKubeRay]
