"""One reconciliation of a resource with a fake API server."""

from __future__ import annotations

import asyncio
from typing import Any

from hindcast_operator.control import kinds
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.kinds import ObjectKind
from hindcast_operator.control.reconciler import Reconciler
from hindcast_operator.control.work_queue import WorkQueue
from hindcast_operator.defaults import Defaults

WALKS = Key("OfflineRecording", "team", "walks")
INVALID_RESOURCE: dict[str, Any] = {
    "apiVersion": "hindcast.dev/v1alpha1",
    "kind": "OfflineRecording",
    "metadata": {
        "name": "walks",
        "namespace": "team",
        "uid": "u1",
        "resourceVersion": "5",
        "generation": 1,
        "creationTimestamp": "2026-11-21T06:00:00Z",
    },
    "spec": {"environment": {"id": "Walk-v0"}},
    "status": {"observedGeneration": -1},
}


class ForgetfulCache(Cache):
    """A cache that loses the resource while its status is written, as when a watch is restarted at that time."""

    def put(self, kind: ObjectKind, raw: dict[str, Any]) -> set[Key]:
        affected_keys = super().put(kind, raw)
        if "state" in raw["status"]:
            self.resources.clear()
        return affected_keys


class FakeApi:
    """Accepts every write, and records the events."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    async def write_status(self, *args: Any) -> dict[str, Any]:
        metadata = {**INVALID_RESOURCE["metadata"], "resourceVersion": "6"}
        return {**INVALID_RESOURCE, "metadata": metadata, "status": args[-1]}

    async def create(self, kind: ObjectKind, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
        self.events.append(manifest)
        return manifest


def test_event_is_posted_after_resource_leaves_cache() -> None:
    async def reconcile() -> list[dict[str, Any]]:
        cache, api = ForgetfulCache(), FakeApi()
        cache.put(kinds.RECORDING, INVALID_RESOURCE)
        reconciler = Reconciler(api, cache, WorkQueue[Key](), Defaults())  # type: ignore[arg-type]
        await reconciler._reconcile(WALKS)
        assert not cache.resources
        return api.events

    events = asyncio.run(reconcile())
    assert [event["regarding"]["uid"] for event in events] == ["u1"]
