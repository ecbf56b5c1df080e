"""A hostile namespace, with bad objects and an API server that fails there: other namespaces do not notice it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, Final

import pytest
import structlog.testing
from control_cluster import TIMESTAMP, FakeCluster

from hindcast_operator import names
from hindcast_operator.control import kinds, service
from hindcast_operator.control.api import ApiError
from hindcast_operator.control.cache import Key
from hindcast_operator.control.kinds import ObjectKind
from hindcast_operator.control.reconciler import run_workers

HOSTILE: Final = "hostile"
QUIET: Final = {f"clone-{number}": f"quiet-{number}" for number in range(4)}
"""Name of each ordinary training -> its namespace."""
SPEC: Final = {
    "algorithm": "BC",
    "input": [{"path": "s3://b/x"}],
    "stop": {"iterations": 1},
    "checkpoint": {"path": "s3://b/runs"},
}
FAILURES: Final[dict[str, Exception | None]] = {
    "revoked": ApiError(403, "Forbidden", "the Role was revoked"),
    "deleted": ApiError(404, "NotFound", "the namespace is being deleted"),
    "odd": KeyError("metadata"),
    "silent": None,
}
"""How the API server fails in the hostile namespace; None: it does not answer."""


class SharedCluster(FakeCluster):
    """A fake cluster with ordinary namespaces, and a hostile one if `failure` names one of `FAILURES`."""

    def __init__(self, seed: int, failure: str | None) -> None:
        self.random = random.Random(seed)
        self.failure = failure
        self.turns: list[Key] = []
        self.num_attacks = 0
        super().__init__()

    def start_operator(self, clock: Callable[[], datetime]) -> None:
        super().start_operator(clock)
        observer = self.reconciler.observer
        observe = observer.observe

        async def count(key: Key) -> Any:
            self.turns.append(key)
            return await observe(key)

        observer.observe = count  # type: ignore[method-assign]

    def attack(self, count: int) -> None:
        """Deliver changes of the hostile namespace: any JSON as resources, statuses, labels and reports."""
        for _ in range(count):
            self.num_attacks += 1
            kind = self.random.choice(
                [kinds.TRAINING, kinds.RECORDING, kinds.CONFIG_MAP, kinds.RAY_JOB, kinds.POD]
            )
            owner = f"x-{self.random.randrange(300)}"
            labels = {
                names.KIND_LABEL: "OfflineTraining",
                names.NAME_LABEL: self.random.choice([owner, *QUIET]),
            }
            labels |= {names.REVISION_LABEL: "1", names.ATTEMPT_LABEL: self.random.choice(["1", "2", "x"])}
            name = owner if kind in kinds.RESOURCE_KINDS else f"{labels[names.NAME_LABEL]}-t1-1"
            raw = {
                "metadata": {
                    "name": name,
                    "namespace": HOSTILE,
                    "uid": f"uid-{self.num_attacks}",
                    "resourceVersion": str(self.num_attacks),
                    "generation": self.num_attacks,
                    "creationTimestamp": TIMESTAMP,
                    "labels": labels,
                },
                "spec": self.random.choice([SPEC, SPEC | {"input": self._junk()}, self._junk()]),
                "status": self.random.choice([{}, {"runs": self._junk()}, self._junk()]),
                "data": {"report.json": json.dumps(self._junk())},
            }
            for key in self.cache.put(kind, raw):
                self.queue.add(key)

    def _junk(self) -> Any:
        leaf = self.random.choice([None, True, -1, 1e300, "", "x" * 99, [], {}])
        return self.random.choice([leaf, [leaf, leaf], {"number": leaf, "stage": leaf}, [{"name": leaf}]])

    def change(self, name: str, generation: int, suspend: bool) -> Key:
        """Change an ordinary training, and return its key."""
        metadata = {"namespace": QUIET[name], "generation": generation}
        self.write(kinds.TRAINING, name, metadata=metadata, spec=SPEC | {"suspend": suspend})
        for key in self.cache.put(kinds.TRAINING, self.objects["OfflineTraining", name]):
            self.queue.add(key)
        return Key("OfflineTraining", QUIET[name], name)

    def status_of(self, name: str) -> dict[str, Any]:
        """Return the status of an ordinary training."""
        return dict(self.objects["OfflineTraining", name].get("status") or {})

    # -- the API server ----------------------------------------------------------------------------------------
    async def _enter(self, namespace: str | None) -> None:
        if namespace == HOSTILE and self.failure is not None:
            if (error := FAILURES[self.failure]) is not None:
                raise error
            await asyncio.Event().wait()

    async def get(self, kind: ObjectKind, namespace: str, name: str) -> dict[str, Any] | None:
        await self._enter(namespace)
        return await super().get(kind, namespace, name)

    async def list_all(self, kind: ObjectKind, *arguments: Any) -> AsyncIterator[dict[str, Any]]:
        await self._enter(arguments[0])
        async for item in super().list_all(kind, *arguments):
            yield item

    async def create(self, kind: ObjectKind, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
        await self._enter(namespace)
        return await super().create(kind, namespace, manifest)

    async def write_status(
        self, kind: ObjectKind, namespace: str, name: str, version: int, status: dict[str, Any]
    ) -> dict[str, Any]:
        await self._enter(namespace)
        return await super().write_status(kind, namespace, name, version, status)


async def play(seed: int, failure: str | None) -> dict[str, Any]:
    """Change ordinary trainings in turn, and return their statuses. Each change is handled within a few turns."""
    cluster, choices = SharedCluster(seed, failure), random.Random(seed)
    workers = asyncio.create_task(run_workers(cluster.reconciler, service._NUM_WORKERS))
    if failure is not None:
        cluster.attack(200)
    for generation in range(2, 10):
        if failure is not None:
            cluster.attack(20)
        name = list(QUIET)[generation % len(QUIET)]
        num_turns = len(cluster.turns)
        key = cluster.change(name, generation, suspend=choices.random() < 0.5)
        for _ in range(100):
            await asyncio.sleep(0)
            assert not workers.done()
            if cluster.status_of(name).get("observedGeneration") == generation:
                break
        else:
            pytest.fail(
                f"{name} has waited while the hostile namespace had {len(cluster.turns) - num_turns} turns"
            )
        assert cluster.turns[num_turns:].index(key) <= len(QUIET)
    workers.cancel()
    await asyncio.wait((workers,))
    return {name: cluster.status_of(name) for name in QUIET}


@pytest.mark.parametrize("failure", FAILURES)
def test_hostile_namespace_delays_others_by_a_turn_each(failure: str) -> None:
    """Regression: while calls for one namespace were not answered, they kept all workers busy."""
    with structlog.testing.capture_logs():
        assert asyncio.run(play(1, failure)) == asyncio.run(play(1, None))
