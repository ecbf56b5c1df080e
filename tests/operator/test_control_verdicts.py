"""Verdicts that end live attempts: live reads, the breaker, the clock without steps, and reports of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hindcast_operator.control import kinds
from hindcast_operator.control.api import ApiError
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.kinds import ObjectKind
from hindcast_operator.control.lease import LeaderLease, LeaseOptions
from hindcast_operator.control.reconciler import Reconciler
from hindcast_operator.control.verdicts import VerdictBreaker
from hindcast_operator.control.work_queue import WorkQueue
from hindcast_operator.defaults import Defaults
from hindcast_operator.times import SteadyClock

START = datetime(2026, 11, 21, 6, tzinfo=UTC)
KEY = Key("OfflineTraining", "team", "clone")
CHILD = "clone-t1-1"
TIMESTAMP = "2026-11-21T06:00:00Z"


class FakeCluster:
    """An API server with one training and its first attempt; a cache that only sees what `deliver` brings."""

    def __init__(self) -> None:
        self.now = START
        self.version = 100
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.events: list[str] = []
        self.calls: list[str] = []
        self.broken_kinds: set[str] = set()
        self.cache = Cache()
        self.queue: WorkQueue[Key] = WorkQueue()
        self.reconciler = Reconciler(self, self.cache, self.queue, Defaults(), clock=lambda: self.now)  # type: ignore[arg-type]
        self.reconciler.observer.kuberay = "Ready"
        spec = {"algorithm": "BC", "input": [{"path": "s3://b/x"}], "stop": {"iterations": 1}}
        self.put(kinds.TRAINING, "clone", spec=spec | {"checkpoint": {"path": "s3://b/runs"}}, status={})

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
            "uid": f"uid-{kind.name}-{name}",
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

    async def reconcile(self) -> None:
        await self.reconciler._reconcile(KEY)

    @property
    def status(self) -> dict[str, Any]:
        return self.objects["OfflineTraining", "clone"]["status"]

    # -- the API server ----------------------------------------------------------------------------------------
    async def get(self, kind: ObjectKind, namespace: str, name: str) -> dict[str, Any] | None:
        self.calls.append(f"get {kind.name}")
        return self.objects.get((kind.name, name))

    async def list_all(self, kind: ObjectKind, *_: Any) -> AsyncIterator[dict[str, Any]]:
        self.calls.append(f"list {kind.name}")
        for name_of_kind, name in list(self.objects):
            if name_of_kind == kind.name:
                yield self.objects[name_of_kind, name]

    async def create(self, kind: ObjectKind, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
        if kind.name in self.broken_kinds:
            raise ApiError(500, "InternalError", "failed calling webhook mrayjob.kb.io: connection refused")
        if kind is kinds.EVENT:
            self.events.append(manifest["reason"])
            return manifest
        self.calls.append(f"create {kind.name}")
        if (kind.name, manifest["metadata"]["name"]) in self.objects:
            raise ApiError(409, "AlreadyExists", "exists")
        fields = {name: value for name, value in manifest.items() if name not in ("kind", "apiVersion")}
        return self.write(kind, manifest["metadata"]["name"], **fields)

    async def apply(
        self, operation: str, kind: ObjectKind, namespace: str, name: str, manifest: Any, **_: Any
    ) -> dict[str, Any]:
        self.calls.append(operation)
        return self.write(
            kind, name, **{field: manifest[field] for field in ("status",) if field in manifest}
        )

    async def delete(self, kind: ObjectKind, namespace: str, name: str, uid: str) -> None:
        self.calls.append(f"delete {kind.name}")
        del self.objects[kind.name, name]


def run_in_cluster(test: Any) -> None:
    async def body() -> None:
        cluster = FakeCluster()
        await cluster.start_run()
        cluster.calls.clear()
        cluster.events.clear()
        await test(cluster)

    asyncio.run(body())


def test_verdict_on_late_watch_is_dropped_after_live_read() -> None:
    """Regression: an attempt whose reports the watch had not delivered was deleted without a look at them."""

    async def test(cluster: FakeCluster) -> None:
        cluster.now += timedelta(minutes=31)
        cluster.beat(2, deliver=False)
        await cluster.reconcile()
        assert {"get RayJob", "get ConfigMap", "list Pod"} <= set(cluster.calls)
        assert not [call for call in cluster.calls if call.startswith("delete")]
        assert cluster.status["state"] == "Running"

    run_in_cluster(test)


def test_silent_attempt_is_deleted_after_live_read() -> None:
    async def test(cluster: FakeCluster) -> None:
        cluster.now += timedelta(minutes=31)
        await cluster.reconcile()
        assert cluster.calls.index("get RayJob") < cluster.calls.index("delete RayJob")
        assert cluster.status["runs"][0]["reason"] == "NoHeartbeat"

    run_in_cluster(test)


def test_deleted_access_of_silent_attempt_is_restored() -> None:
    """Regression: nobody restored a deleted Role, and the next report ended the run."""

    async def test(cluster: FakeCluster) -> None:
        for kind in (kinds.ROLE, kinds.ROLE_BINDING):
            del cluster.objects[kind.name, "clone-training"]
        cluster.now += timedelta(seconds=61)
        await cluster.reconcile()
        assert {"create Role", "create RoleBinding"} <= set(cluster.calls)
        assert "create RayJob" not in cluster.calls and "apply-configmap" not in cluster.calls
        cluster.calls.clear()
        await cluster.reconcile()
        assert not [call for call in cluster.calls if call.startswith("create")]

    run_in_cluster(test)


@pytest.mark.parametrize("name", ["a", "zzz"])
def test_report_in_config_map_of_another_name_does_not_count(name: str) -> None:
    """Regression: a ConfigMap with the run's labels and owner made it Succeeded, with an output of its choice."""

    async def test(cluster: FakeCluster) -> None:
        metadata = cluster.objects["ConfigMap", CHILD]["metadata"]
        forged = {field: metadata[field] for field in ("labels", "ownerReferences")}
        cluster.write(kinds.CONFIG_MAP, name, metadata=forged)
        cluster.beat(9, name, outcome={"state": "Succeeded", "reason": "Succeeded", "message": "trust me"})
        await cluster.reconcile()
        assert cluster.status["state"] == "Running"

    run_in_cluster(test)


def test_event_of_turn_with_failed_action_is_posted() -> None:
    async def test(cluster: FakeCluster) -> None:
        async def fail(*_: Any) -> None:
            raise ApiError(500, "InternalError", "etcdserver: leader changed")

        cluster.delete = fail  # type: ignore[method-assign]
        cluster.now += timedelta(minutes=31)
        with pytest.raises(ApiError):
            await cluster.reconcile()
        assert cluster.events == ["NoHeartbeat", "CleaningUp"]

    run_in_cluster(test)


def test_failing_webhook_is_named_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reconcile() -> dict[str, Any]:
        cluster = FakeCluster()
        cluster.broken_kinds = {"RayJob"}
        loop_time = [0.0]
        monkeypatch.setattr("hindcast_operator.control.startup._now", lambda: loop_time[0])
        while cluster.status.get("state") != "Pending" or "mrayjob" not in cluster.status["message"]:
            await cluster.reconcile()
            loop_time[0] += 1
            assert loop_time[0] < 20
        return cluster.status

    status = asyncio.run(reconcile())
    assert status["conditions"][0]["reason"] == "CreationFailing"


# -- clocks and breakers -------------------------------------------------------------------------------------
@pytest.mark.parametrize("step", [timedelta(minutes=31), timedelta(minutes=-31), timedelta(days=400)])
def test_steady_clock_passes_no_step_on(step: timedelta) -> None:
    seconds, offset = 0.0, timedelta()
    clock = SteadyClock(lambda: seconds, lambda: START + timedelta(seconds=seconds) + offset)
    assert clock() == START
    seconds, offset = 10.0, step
    assert abs((clock() - START).total_seconds() - 10) <= 0.101
    seconds = 1e10
    assert clock() == START + timedelta(seconds=seconds) + step


def test_many_silent_attempts_open_breaker() -> None:
    seconds = 0.0
    breaker = VerdictBreaker(lambda: seconds)
    assert [breaker.allows() for _ in range(12)] == [True] * 10 + [False] * 2
    seconds = 599.0
    assert not breaker.allows()
    seconds = 601.0
    assert breaker.allows()


@pytest.mark.parametrize(("holder", "is_lost"), [("this", False), ("another", True)])
def test_renewal_with_lost_answer_keeps_lease(holder: str, is_lost: bool) -> None:
    class Server:
        lease: dict[str, Any] | None = None

        async def get(self, *_: Any) -> dict[str, Any] | None:
            return self.lease

        async def call_once(self, method: str, path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
            if method == "PUT":
                raise ApiError(409, "Conflict", "the object has been modified")
            self.lease = json.loads(json.dumps(body))
            return body

    async def renew() -> None:
        server = Server()
        lease = LeaderLease(server, LeaseOptions("n", "l"))  # type: ignore[arg-type]
        await lease.acquire()
        assert server.lease is not None
        server.lease["spec"]["holderIdentity"] = lease.identity if holder == "this" else "another"
        await lease._renew()

    if is_lost:
        with pytest.raises(ApiError):
            asyncio.run(renew())
    else:
        asyncio.run(renew())
