"""Access to the cluster: kubectl for what users do, requests for what tests check, and waits that describe failures."""

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
    """A command failed, or a wait timed out. The message has the command's error or the namespace's state."""


def run(
    *command: str, stdin: str | None = None, timeout: float = 120, variables: dict[str, str] | None = None
) -> str:
    """Run a command and return its standard output.

    Args:
        *command: program and arguments.
        stdin: text for the command's standard input; None if the command reads none.
        timeout: seconds after which the command is killed.
        variables: additional environment variables.

    Raises:
        KubeError: the command failed. The message has the command's standard error.
    """
    environment = {**os.environ, **(variables or {})}
    process = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )
    if process.returncode:
        raise KubeError(f"{' '.join(command)}: {process.stderr.strip()}")
    return process.stdout


MAX_WAIT_SECONDS = 600.0
"""Default timeout of a wait. Only a failing test waits this long, so it is enough for a busy machine."""

API_VERSIONS = {
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
def connect_api() -> ApiServer:
    """Connect to the cluster's API server. Polling by kubectl processes would occupy a whole processor."""
    return ApiServer.from_kubeconfig(os.environ["KUBECONFIG"])


class Kube:
    """One namespace of the cluster that KUBECONFIG names."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 120) -> str:
        """Run kubectl in the namespace and return its output."""
        return run("kubectl", "--namespace", self.namespace, *arguments, stdin=stdin, timeout=timeout)

    def apply(self, *objects: Object) -> None:
        """Apply objects in one file, as a user does."""
        self.kubectl("apply", "--filename", "-", stdin="\n---\n".join(map(json.dumps, objects)))

    def get(self, kind: str, name: str) -> Object | None:
        """Return an object, or None if it does not exist."""
        try:
            return connect_api().request("GET", f"{self._path(plural(kind))}/{name}")
        except RefusalError as error:
            if error.status == 404:
                return None
            raise

    def list(self, plural_kind: str, selector: str = "") -> list[Object]:
        """Return the objects of a kind, such as `pods`, that match a label selector."""
        return list(connect_api().request("GET", self._path(plural_kind), labelSelector=selector)["items"])

    def delete(self, kind: str, name: str, *arguments: str) -> None:
        """Delete an object that may be gone."""
        self.kubectl("delete", kind, name, "--ignore-not-found", *arguments)

    def patch(self, kind: str, name: str, **spec: Any) -> None:
        """Merge fields into the spec."""
        self.kubectl("patch", kind, name, "--type", "merge", "--patch", json.dumps({"spec": spec}))

    def get_status(self, kind: str, name: str) -> Object:
        """Return the status of a resource, or {} if it does not exist."""
        resource = self.get(kind, name)
        return resource["status"] if resource else {}

    def _path(self, plural_kind: str) -> str:
        return collection(API_VERSIONS[plural_kind], plural_kind, self.namespace)

    def list_pods(self, pool: str, name: str | None = None) -> list[Object]:
        """Return the pods of a pool, of one resource or of all resources."""
        selector = f"hindcast.dev/pool={pool}"
        return self.list("pods", selector + (f",hindcast.dev/name={name}" if name else ""))

    def list_events(self, name: str) -> list[tuple[str, str]]:
        """Return reason and message of the events on a resource, oldest first."""
        events = [event for event in self.list("events") if event["involvedObject"]["name"] == name]
        events.sort(key=lambda event: event["metadata"]["creationTimestamp"])
        return [(event["reason"], event.get("message", "")) for event in events]

    def wait(self, description: str, check: Callable[[], Any], seconds: float = MAX_WAIT_SECONDS) -> Any:
        """Wait for the first truthy value of `check` and return it.

        Raises:
            KubeError: no value was truthy in time. The message has the description and the state of the namespace.
        """
        deadline = time.monotonic() + seconds
        while not (value := check()):
            if time.monotonic() > deadline:
                raise KubeError(f"after {seconds:g} s still not: {description}\n{self.describe()}")
            time.sleep(0.25)
        return value

    def wait_for_state(self, kind: str, name: str, *states: str, seconds: float = MAX_WAIT_SECONDS) -> Object:
        """Wait until a resource is in one of the states, and return its status.

        Raises:
            KubeError: the resource did not reach a state in time, or has ended in another state.
        """

        def check() -> Object | None:
            status = self.get_status(kind, name)
            state = status.get("state")
            if state in ("Succeeded", "Failed") and state not in states:
                raise KubeError(f"{kind}/{name} is {state}: {status.get('message')}\n{self.describe()}")
            return status if state in states else None

        return self.wait(f"{kind}/{name} in {' or '.join(states)}", check, seconds)

    def wait_for_message(
        self, name: str, word: str, kind: str = "OfflineTraining", seconds: float = 60
    ) -> None:
        """Wait until a word is in the message of a condition and in that of an event on the resource."""

        def check() -> bool:
            conditions = self.get_status(kind, name).get("conditions", [])
            condition_messages = [condition["message"] for condition in conditions]
            event_messages = [message for _, message in self.list_events(name)]
            return all(any(word in text for text in texts) for texts in (condition_messages, event_messages))

        self.wait(f"{word!r} in a condition and an event of {name}", check, seconds)

    def get_num_episodes(self, recording: str) -> int:
        """Return the number of episodes that a recording has reported; 0 before the first report."""
        return int(self.get_status("OfflineRecording", recording).get("progress", {}).get("episodes", 0))

    def wait_for_iteration(self, name: str, iteration: int) -> int:
        """Wait until the training reports this iteration or a later one, and return the reported one."""

        def check() -> int | None:
            current_iteration = (
                self.get_status("OfflineTraining", name).get("progress", {}).get("iteration", 0)
            )
            return current_iteration if current_iteration >= iteration else None

        return int(self.wait(f"iteration {iteration} of {name}", check))

    def describe(self) -> str:
        """Describe the namespace for an error message: resources, pods, events, logs of drivers."""
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


def find_condition(status: Object, type_: str) -> Object:
    """Return a condition of a status, or {} if the status does not have it."""
    return next((entry for entry in status.get("conditions", []) if entry["type"] == type_), {})


def parse_documents(text: str) -> list[Object]:
    """Return the objects in a YAML text."""
    return [document for document in YAML(typ="safe", pure=True).load_all(text) if document]


def load_documents(path: Path) -> list[Object]:
    """Return the objects in a YAML file."""
    return parse_documents(path.read_text())
