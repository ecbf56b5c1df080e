"""A fake API server with one training, and the operator's parts on it, without a process or a network."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from hindcast_operator.control import kinds
from hindcast_operator.control.api import ApiError
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.kinds import ObjectKind
from hindcast_operator.control.reconciler import Reconciler
from hindcast_operator.control.work_queue import WorkQueue
from hindcast_operator.defaults import Defaults

START = datetime(2026, 11, 21, 6, tzinfo=UTC)
KEY = Key("OfflineTraining", "team", "clone")
CHILD = "clone-t1-1"
TIMESTAMP = "2026-11-21T06:00:00Z"


class FakeCluster:
    """An API server with one training and its first attempt; a cache that only sees what `deliver` brings."""

    def __init__(self, **run_policy: Any) -> None:
        self.now = START
        self.version = 100
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.events: list[str] = []
        self.calls: list[str] = []
        self.broken_kinds: set[str] = set()
        self.refusal: ApiError | None = None
        """The answer to the creation of a RayJob and to a change of its deadlines, if they are refused."""
        self.start_operator(lambda: self.now)
        spec = {"algorithm": "BC", "input": [{"path": "s3://b/x"}], "stop": {"iterations": 1}}
        spec |= {"checkpoint": {"path": "s3://b/runs"}, "runPolicy": run_policy}
        self.put(kinds.TRAINING, "clone", spec=spec, status={})

    def start_operator(self, clock: Callable[[], datetime]) -> None:
        self.cache = Cache()
        self.queue: WorkQueue[Key] = WorkQueue()
        self.reconciler = Reconciler(self, self.cache, self.queue, Defaults(), clock=clock)  # type: ignore[arg-type]
        self.reconciler.observer.namespaces_with_kuberay = {None}

    def catch_up(self) -> None:
        """Let the watches deliver all changes."""
        for kind in kinds.WATCHED_KINDS:
            for entry in self.cache.entries(kind):
                if self.uids.get((kind.name, entry.key.name)) != entry.uid:
                    self.cache.remove(kind, entry.key.namespace, entry.key.name, entry.uid)
            for name_of_kind, name in self.objects:
                if name_of_kind == kind.name:
                    self.deliver(kind, name)

    @property
    def uids(self) -> dict[tuple[str, str], str]:
        return {key: raw["metadata"]["uid"] for key, raw in self.objects.items()}

    def put(self, kind: ObjectKind, name: str, **fields: Any) -> None:
        """Change or create an object, and deliver it to the cache."""
        self.write(kind, name, **fields)
        self.deliver(kind, name)

    def write(self, kind: ObjectKind, name: str, **fields: Any) -> dict[str, Any]:
        self.version += 1
        raw = self.objects.get(
            (kind.name, name), {"metadata": {}, "kind": kind.name, "apiVersion": kind.api_version}
        )
        metadata = {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{self.version}",
            "creationTimestamp": TIMESTAMP,
        }
        metadata |= {"generation": 1} | raw["metadata"] | fields.pop("metadata", {})
        raw = raw | fields | {"metadata": metadata | {"resourceVersion": str(self.version)}}
        self.objects[kind.name, name] = raw
        return raw

    def deliver(self, kind: ObjectKind, name: str) -> None:
        self.cache.put(kind, self.objects[kind.name, name])

    def beat(self, number: int, name: str = CHILD, deliver: bool = True, **fields: Any) -> None:
        report = {"number": number, "reportTime": "t", "lastProgressTime": f"p{number}", **fields}
        self.write(kinds.CONFIG_MAP, name, data={"report.json": json.dumps(report)})
        if deliver:
            self.deliver(kinds.CONFIG_MAP, name)

    async def start_run(self) -> None:
        await self.reconcile()
        self.put(kinds.RAY_JOB, CHILD, status={"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"})
        labels = self.objects["RayJob", CHILD]["metadata"]["labels"] | {"hindcast.dev/pool": "head"}
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.put(kinds.POD, "head", metadata={"labels": labels}, spec={}, status=ready)
        self.beat(1)
        await self.reconcile()
        assert self.status["state"] == "Running"

    def uninstall_kuberay(self) -> None:
        """Remove the kind RayJob, with its objects and their pods."""
        self.objects = {key: raw for key, raw in self.objects.items() if key[0] not in ("RayJob", "Pod")}
        self.reconciler.observer.namespaces_with_kuberay = set()
        self.catch_up()

    async def reconcile(self) -> None:
        await self.reconciler._reconcile(KEY)

    @property
    def status(self) -> dict[str, Any]:
        return self.objects["OfflineTraining", "clone"]["status"]

    # -- the API server ----------------------------------------------------------------------------------------
    async def get(self, kind: ObjectKind, namespace: str, name: str) -> dict[str, Any] | None:
        self.calls.append(f"get {kind.name}")
        if kind is kinds.RAY_JOB and not self.reconciler.observer.has_kuberay(namespace):
            raise ApiError(404, "404", "404 page not found")
        return self.objects.get((kind.name, name))

    async def call(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    async def list_all(self, kind: ObjectKind, *_: Any) -> AsyncIterator[dict[str, Any]]:
        self.calls.append(f"list {kind.name}")
        for name_of_kind, name in list(self.objects):
            if name_of_kind == kind.name:
                yield self.objects[name_of_kind, name]

    async def create(self, kind: ObjectKind, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
        if kind.name in self.broken_kinds:
            raise ApiError(500, "InternalError", "failed calling webhook mrayjob.kb.io: connection refused")
        if kind is kinds.RAY_JOB and self.refusal is not None:
            raise self.refusal
        if kind is kinds.EVENT:
            self.events.append(manifest["reason"])
            return manifest
        self.calls.append(f"create {kind.name}")
        if (kind.name, manifest["metadata"]["name"]) in self.objects:
            raise ApiError(409, "AlreadyExists", "exists")
        fields = {name: value for name, value in manifest.items() if name not in ("kind", "apiVersion")}
        return self.write(kind, manifest["metadata"]["name"], **fields)

    async def merge(
        self, operation: str, kind: ObjectKind, namespace: str, name: str, patch: Any
    ) -> dict[str, Any]:
        self.calls.append(operation)
        if operation == "set-deadlines" and self.refusal is not None:
            raise self.refusal
        return self.write(kind, name)

    async def write_status(
        self, kind: ObjectKind, namespace: str, name: str, version: int, status: dict[str, Any]
    ) -> dict[str, Any]:
        self.calls.append("write-status")
        if str(version) != self.objects[kind.name, name]["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        return self.write(kind, name, status=status)

    async def delete(self, kind: ObjectKind, namespace: str, name: str, uid: str) -> None:
        self.calls.append(f"delete {kind.name}")
        if kind.name in self.broken_kinds:
            raise ApiError(500, "InternalError", "etcdserver: leader changed")
        del self.objects[kind.name, name]
