"""A test plays KubeRay and the runs in a namespace: RayJobs come up, report and end, as the script says."""

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
Script = Callable[[str], Outcome | None]

SUCCESS: Outcome = {"state": "Succeeded", "reason": "Succeeded", "message": "Recorded 10 episodes"}
SUSPENDED: Outcome = {"state": "Suspended", "reason": "Suspended", "message": "Stopped after the checkpoint"}


def runs_on(_: str) -> Outcome | None:
    """A script: no attempt ends by itself."""
    return None


def succeeds(_: str) -> Outcome | None:
    """A script: every attempt succeeds at once."""
    return SUCCESS


class FakeKubeRay:
    """Takes up RayJobs. Each attempt reports, and ends with what `script(child)` says, or when it is asked to."""

    def __init__(self, api: ApiServer, namespace: str, script: Script = succeeds) -> None:
        self._api = api
        self._namespace = namespace
        self.script = script
        self.seen: dict[str, set[str]] = {}
        """uids of the RayJobs, by name: more than one is a double run."""
        self._beats: dict[str, int] = {}
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    @contextmanager
    def playing(self) -> Iterator[FakeKubeRay]:
        """Play in the background."""
        thread = threading.Thread(target=self._play, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(20)
        if self._failure is not None:
            raise self._failure

    def step(self) -> None:
        """Bring every RayJob one step on."""
        for job in self._list("ray.io/v1", "rayjobs"):
            name = job["metadata"]["name"]
            self.seen.setdefault(name, set()).add(job["metadata"]["uid"])
            if "deletionTimestamp" in job["metadata"] or job.get("spec", {}).get("suspend"):
                continue
            try:
                self._bring_on(job, name)
            except RefusalError as refused:
                if refused.status not in {404, 409}:  # it was deleted meanwhile
                    raise

    def set_status(self, child: str, **status: Any) -> None:
        """Patch a RayJob's status, as KubeRay does."""
        path = f"{collection('ray.io/v1', 'rayjobs', self._namespace)}/{child}/status"
        self._api.request("PATCH", path, {"status": status}, "application/merge-patch+json")

    def report(self, child: str, **said: Any) -> None:
        """Write a report into an attempt's ConfigMap, as its driver does."""
        beat = self._beats[child] = self._beats.get(child, 0) + 1
        now = stamp()
        content = {"number": beat, "reportTime": now, "lastProgressTime": now, "stage": "Recording"} | said
        path = f"{collection('v1', 'configmaps', self._namespace)}/{child}"
        self._api.request(
            "PATCH", path, {"data": {"report.json": json.dumps(content)}}, "application/merge-patch+json"
        )

    def _play(self) -> None:
        try:
            while not self._stop.wait(0.05):
                self.step()
        except BaseException as failure:
            self._failure = failure

    def _bring_on(self, job: Object, name: str) -> None:
        state = job.get("status", {}).get("jobDeploymentStatus", "")
        if state == "":
            self.set_status(name, jobDeploymentStatus="Initializing", jobStatus="", startTime=stamp())
        elif state == "Initializing":
            self.set_status(name, jobDeploymentStatus="Running", jobStatus="RUNNING")
            self.report(name, progress={"episodes": 3, "summary": "3/10 episodes"})
        elif state == "Running" and (outcome := self._outcome(name)):
            self.report(name, outcome=outcome, **_results(outcome))
            ended = {"Succeeded": "SUCCEEDED", "Suspended": "SUCCEEDED"}.get(outcome["state"], "FAILED")
            deployed = "Complete" if ended == "SUCCEEDED" else "Failed"
            self.set_status(name, jobDeploymentStatus=deployed, jobStatus=ended, endTime=stamp())

    def _outcome(self, name: str) -> Outcome | None:
        path = f"{collection('v1', 'configmaps', self._namespace)}/{name}"
        asked = self._api.request("GET", path)["data"].get("intent") == "checkpoint"
        return SUSPENDED if asked else self.script(name)

    def _list(self, version: str, plural: str) -> list[Object]:
        try:
            found = self._api.request("GET", collection(version, plural, self._namespace))
        except RefusalError as refused:
            if refused.status == 404:
                return []
            raise
        return list(found["items"])


def _results(outcome: Outcome) -> Object:
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


def stamp() -> str:
    """Now, as the API server writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


PlayKubeRay = Callable[..., FakeKubeRay]
