"""The cluster for tests: kubectl where users type it, requests where tests look, and waits that describe a failure."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from api_server import ApiServer, RefusalError, collection, plural

Object = dict[str, Any]


class KubeError(AssertionError):
    """kubectl or helm refused; its message is the API server's."""


def run(
    *command: str, stdin: str | None = None, timeout: float = 120, variables: dict[str, str] | None = None
) -> str:
    """Run a command, with more environment variables; its standard output.

    Raises:
        KubeError: it failed, with its standard error.
    """
    environment = {**os.environ, **(variables or {})}
    process = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )
    if process.returncode:
        raise KubeError(f"{' '.join(command)}: {process.stderr.strip()}")
    return process.stdout


LONG_SECONDS = 600.0
"""Seconds for work to be done: enough for a busy machine, since only a failure waits so long."""

VERSIONS = {
    "configmaps": "v1",
    "events": "v1",
    "jobs": "batch/v1",
    "pods": "v1",
    "serviceaccounts": "v1",
    "offlinerecordings": "hindcast.dev/v1alpha1",
    "offlinetrainings": "hindcast.dev/v1alpha1",
    "rayclusters": "ray.io/v1",
    "rayjobs": "ray.io/v1",
}


@cache
def api() -> ApiServer:
    """The cluster's API server. A kubectl for every look would take a processor of its own."""
    return ApiServer.from_kubeconfig(os.environ["KUBECONFIG"])


class Kube:
    """One namespace of the cluster that KUBECONFIG names."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        """kubectl in the namespace."""
        return run("kubectl", "--namespace", self.namespace, *arguments, stdin=stdin, timeout=timeout)

    def apply(self, *objects: Object) -> None:
        """Apply objects as a user does: in one file."""
        self.kubectl("apply", "--filename", "-", stdin="\n---\n".join(map(json.dumps, objects)))

    def get(self, kind: str, name: str) -> Object | None:
        """An object, or None."""
        try:
            return api().request("GET", f"{self._path(plural(kind))}/{name}")
        except RefusalError as refused:
            if refused.status == 404:
                return None
            raise

    def list(self, kinds: str, selector: str = "") -> list[Object]:
        """Objects of a kind, which is given in the plural."""
        return list(api().request("GET", self._path(kinds), labelSelector=selector)["items"])

    def delete(self, kind: str, name: str, *arguments: str) -> None:
        """Delete an object that may be gone."""
        self.kubectl("delete", kind, name, "--ignore-not-found", *arguments)

    def patch(self, kind: str, name: str, **spec: Any) -> None:
        """Merge fields into the spec."""
        self.kubectl("patch", kind, name, "--type", "merge", "--patch", json.dumps({"spec": spec}))

    def status(self, kind: str, name: str) -> Object:
        """The status of a resource."""
        resource = self.get(kind, name)
        return resource["status"] if resource else {}

    def _path(self, kinds: str) -> str:
        return collection(VERSIONS[kinds], kinds, self.namespace)

    def pods(self, pool: str, name: str | None = None) -> list[Object]:
        """Pods of a pool, of one resource or of all."""
        selector = f"hindcast.dev/pool={pool}"
        return self.list("pods", selector + (f",hindcast.dev/name={name}" if name else ""))

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of the events on a resource, oldest first."""
        events = [event for event in self.list("events") if event["involvedObject"]["name"] == name]
        events.sort(key=lambda event: event["metadata"]["creationTimestamp"])
        return [(event["reason"], event.get("message", "")) for event in events]

    def wait(self, description: str, check: Callable[[], Any], seconds: float = LONG_SECONDS) -> Any:
        """The first truthy value of `check`; fails with `what`, and what the namespace looks like."""
        deadline = time.monotonic() + seconds
        while not (value := check()):
            if time.monotonic() > deadline:
                raise KubeError(f"after {seconds:g} s still not: {description}\n{self.describe()}")
            time.sleep(0.25)
        return value

    def wait_for_state(self, kind: str, name: str, *states: str, seconds: float = LONG_SECONDS) -> Object:
        """The status of a resource once it is in one of the states.

        Fails early where it has ended otherwise.
        """

        def check() -> Object | None:
            status = self.status(kind, name)
            state = status.get("state")
            if state in ("Succeeded", "Failed") and state not in states:
                raise KubeError(f"{kind}/{name} is {state}: {status.get('message')}\n{self.describe()}")
            return status if state in states else None

        return self.wait(f"{kind}/{name} in {' or '.join(states)}", check, seconds)

    def wait_for_message(
        self, name: str, word: str, kind: str = "OfflineTraining", seconds: float = 60
    ) -> None:
        """Wait until a word is in a condition's message and in an event."""

        def check() -> bool:
            conditions = self.status(kind, name).get("conditions", [])
            condition_messages = [condition["message"] for condition in conditions]
            event_messages = [message for _, message in self.events(name)]
            return all(any(word in text for text in texts) for texts in (condition_messages, event_messages))

        self.wait(f"{word!r} in a condition and an event of {name}", check, seconds)

    def episodes(self, recording: str) -> int:
        """Return the number of episodes that a recording has reported."""
        return int(self.status("OfflineRecording", recording).get("progress", {}).get("episodes", 0))

    def wait_for_iteration(self, name: str, iteration: int) -> int:
        """Wait until the training reports this iteration or a later one, and return it."""

        def check() -> int | None:
            iteration_now = self.status("OfflineTraining", name).get("progress", {}).get("iteration", 0)
            return iteration_now if iteration_now >= iteration else None

        return int(self.wait(f"iteration {iteration} of {name}", check))

    def describe(self) -> str:
        """Describe the namespace for people: resources, pods, events, logs of drivers."""
        outputs = []
        for arguments in (
            ("get", "orec,otr", "--output", "yaml"),
            ("get", "rayjobs,rayclusters,jobs,pods", "--output", "wide"),
            ("get", "events", "--sort-by", ".metadata.creationTimestamp"),
            ("logs", "--selector", "hindcast.dev/pool=head", "--all-containers", "--tail", "40"),
            ("logs", "--selector", "hindcast.dev/pool=submitter", "--tail", "60"),
        ):
            try:
                outputs.append(f"$ kubectl {' '.join(arguments)}\n{self.kubectl(*arguments)}")
            except KubeError as error:
                outputs.append(str(error))
        return "\n".join(outputs)


def find_condition(status: Object, kind: str) -> Object:
    """Return a condition of a status, or {}."""
    return next((entry for entry in status.get("conditions", []) if entry["type"] == kind), {})


def parse_documents(text: str) -> list[Object]:
    """The objects of a YAML text."""
    return [document for document in YAML(typ="safe", pure=True).load_all(text) if document]


def load_documents(path: Path) -> list[Object]:
    """The objects of a YAML file."""
    return parse_documents(path.read_text())
