"""Small resources for the operator's tests, and access to them in a namespace."""

from __future__ import annotations

from typing import Any

from api_server import ApiServer, Object, RefusalError, collection, wait_for

VERSION = "hindcast.dev/v1alpha1"


def make_recording(name: str = "walks", **spec: Any) -> Object:
    """Return a small recording."""
    defaults = {
        "environment": {"id": "CartPole-v1"},
        "policy": {"random": {}},
        "duration": {"episodes": 10},
        "output": {"path": f"s3://bucket/{name}"},
    }
    return {
        "apiVersion": VERSION,
        "kind": "OfflineRecording",
        "metadata": {"name": name},
        "spec": defaults | spec,
    }


def make_training(name: str = "clone", **spec: Any) -> Object:
    """Return a small training on the recording `walks`."""
    defaults = {
        "algorithm": "BC",
        "input": [{"recordingRef": {"name": "walks"}}],
        "stop": {"epochs": 1},
        "checkpoint": {"path": "s3://bucket/runs"},
    }
    return {
        "apiVersion": VERSION,
        "kind": "OfflineTraining",
        "metadata": {"name": name},
        "spec": defaults | spec,
    }


class TeamNamespace:
    """The resources and objects of a namespace."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    def apply(self, document: Object) -> Object:
        """Apply a resource like `kubectl apply --server-side`."""
        manifest = document | {"metadata": document["metadata"] | {"namespace": self.namespace}}
        return self.api.apply(manifest, "user")

    def delete(self, document: Object, policy: str = "Background") -> None:
        """Delete a resource."""
        path = f"{self._path(document)}/{document['metadata']['name']}"
        self.api.request("DELETE", path, {"propagationPolicy": policy})

    def get(self, document: Object) -> Object | None:
        """Get a resource, or None if it is gone."""
        try:
            return self.api.request("GET", f"{self._path(document)}/{document['metadata']['name']}")
        except RefusalError as error:
            if error.status == 404:
                return None
            raise

    def status(self, document: Object) -> Object:
        """Get `.status`; empty if it is not set yet."""
        resource = self.get(document)
        return (resource or {}).get("status") or {}

    def wait_for_state(self, document: Object, state: str, seconds: float = 60.0) -> Object:
        """Wait until the resource is in a state, and return it."""
        wait_for(
            lambda: self.status(document).get("state") == state, f"{state}: {document['metadata']}", seconds
        )
        resource = self.get(document)
        assert resource is not None
        return resource

    def find_condition(self, document: Object, type_: str) -> tuple[str, str] | None:
        """Get status and reason of a condition, or None."""
        conditions = self.status(document).get("conditions") or ()
        return next(((c["status"], c["reason"]) for c in conditions if c["type"] == type_), None)

    def wait_for_condition(
        self, document: Object, type_: str, status: str, reason: str, seconds: float = 60.0
    ) -> None:
        """Wait until a condition has a status and a reason."""
        wait_for(
            lambda: self.find_condition(document, type_) == (status, reason),
            f"{type_} is {status}: {reason}",
            seconds,
        )

    def names(self, plural: str, version: str = "v1") -> set[str]:
        """Return the names of all objects of a kind."""
        response = self.api.request("GET", collection(version, plural, self.namespace))
        return {item["metadata"]["name"] for item in response["items"]}

    def ray_job_names(self) -> set[str]:
        """Return the names of all RayJobs."""
        return self.names("rayjobs", "ray.io/v1")

    def wait_for_ray_jobs(self, *names: str) -> None:
        """Wait until these are all RayJobs."""
        wait_for(lambda: self.ray_job_names() == set(names), f"the RayJobs are {names}")

    def delete_ray_job(self, name: str) -> None:
        self.api.delete(f"{collection('ray.io/v1', 'rayjobs', self.namespace)}/{name}")

    def event_reasons(self, document: Object) -> list[str]:
        """Return the reasons of the events on a resource, oldest first."""
        events = self.api.request("GET", collection("v1", "events", self.namespace))["items"]
        own_events = [e for e in events if e["involvedObject"]["name"] == document["metadata"]["name"]]
        return [event["reason"] for event in sorted(own_events, key=lambda event: event["eventTime"] or "")]

    def wait_for_event(self, document: Object, reason: str) -> None:
        """Wait for an event on a resource. Events are posted after the status is written."""
        wait_for(lambda: reason in self.event_reasons(document), f"the event {reason}")

    def _path(self, document: Object) -> str:
        return collection(VERSION, f"{document['kind'].lower()}s", self.namespace)
