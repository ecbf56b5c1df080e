"""The operator in a world in which the control plane fails in every way: a driver that lives is never given up."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from control_cluster import START, FakeCluster

from hindcast_operator.control import kinds
from hindcast_operator.control.act import RetryLater
from hindcast_operator.control.api import ApiError
from hindcast_operator.control.kinds import ObjectKind
from hindcast_operator.times import SteadyClock
from layers import repeats

STEP_SECONDS = 20.0
CREATED_BY_OPERATOR = (kinds.CONFIG_MAP, kinds.ROLE, kinds.ROLE_BINDING)


class StormyCluster(FakeCluster):
    """A fake cluster with KubeRay and a driver, in which time passes and the control plane misbehaves at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seconds = 0.0
        self.clock_error = timedelta()
        self.has_late_watches = self.has_broken_reads = self.is_driver_hung = False
        self.report_style = "plain"
        self.last_beat_seconds: float | None = None
        self.num_ends = 0
        super().__init__()

    def start_operator(self, clock: Callable[[], Any]) -> None:
        super().start_operator(
            SteadyClock(
                lambda: self.seconds, lambda: START + timedelta(seconds=self.seconds) + self.clock_error
            )
        )
        self.catch_up()

    # -- what goes wrong ---------------------------------------------------------------------------------------
    def disturb(self) -> None:
        draw = self.random.random()
        if draw < 0.03:
            kind = self.random.choice(CREATED_BY_OPERATOR)
            names = [name for name_of_kind, name in self.objects if name_of_kind == kind.name]
            for name in names:
                del self.objects[kind.name, name]
        elif draw < 0.05:
            self.clock_error += timedelta(minutes=self.random.choice([-45, -31, 31, 45]))
        elif draw < 0.08:
            self.has_late_watches = not self.has_late_watches
        elif draw < 0.10:
            self.has_broken_reads = not self.has_broken_reads
        elif draw < 0.12:
            self.broken_kinds ^= {"RayJob"}
        elif draw < 0.16:
            self.report_style = self.random.choice(["plain", "newer", "part", "unreadable"])
        elif draw < 0.18:
            self.start_operator(lambda: None)
        elif draw < 0.19:
            self.write(kinds.TRAINING, "clone", status=self.status | {"newerField": [1]})
        elif draw < 0.20:
            self._lose_node()

    def _lose_node(self) -> None:
        if ("Pod", "head") in self.objects:
            end_time = (START + timedelta(seconds=self.seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
            target = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByTaintManager",
                "lastTransitionTime": end_time,
            }
            self.put(kinds.POD, "head", status={"phase": "Failed", "conditions": [target]})
            self.last_beat_seconds = None
            end = {"jobDeploymentStatus": "Failed", "endTime": end_time}
            for (kind_name, name), raw in list(self.objects.items()):
                if kind_name == "RayJob":
                    self.put(kinds.RAY_JOB, name, status=raw["status"] | end)

    # -- KubeRay and the driver --------------------------------------------------------------------------------
    def play(self) -> None:
        self.seconds += STEP_SECONDS
        for (kind_name, name), raw in list(self.objects.items()):
            if kind_name == "RayJob" and not raw.get("status"):
                self.write(
                    kinds.RAY_JOB, name, status={"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}
                )
                labels = raw["metadata"]["labels"] | {"hindcast.dev/pool": "head"}
                ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                self.objects.pop(("Pod", "head"), None)
                self.write(kinds.POD, "head", metadata={"labels": labels}, spec={}, status=ready)
        self._beat()
        if not self.has_late_watches or self.random.random() < 0.05:
            self.catch_up()

    def _beat(self) -> None:
        job = self.live_job
        if job is None or self.objects["Pod", "head"]["status"]["phase"] != "Running":
            return
        role = self.objects.get(("Role", "clone-training"))
        may_report = role is not None and ("RoleBinding", "clone-training") in self.objects
        if not may_report or ("ConfigMap", job) not in self.objects:
            return
        number = self.version
        report: dict[str, Any] = {"number": number, "reportTime": "t", "lastProgressTime": f"p{number}"}
        report |= {
            "newer": {"stage": {"x": 1}, "field": 1},
            "part": {"stage": 7},
            "unreadable": {"number": "x"},
        }.get(self.report_style, {})
        self.write(kinds.CONFIG_MAP, job, data={"report.json": json.dumps(report)})
        self.last_beat_seconds = self.seconds

    @property
    def live_job(self) -> str | None:
        jobs = [name for kind_name, name in self.objects if kind_name == "RayJob"]
        assert len(jobs) <= 1, "two attempts live at once"
        return jobs[0] if jobs and self.objects["RayJob", jobs[0]].get("status") else None

    # -- the API server and the operator -----------------------------------------------------------------------
    async def get(self, kind: ObjectKind, namespace: str, name: str) -> dict[str, Any] | None:
        if self.has_broken_reads and self.random.random() < 0.5:
            raise ApiError(503, "ServiceUnavailable", "the API server is restarting")
        return await super().get(kind, namespace, name)

    async def delete(self, kind: ObjectKind, namespace: str, name: str, uid: str) -> None:
        assert "get RayJob" in self.calls, "a deletion without a live read"
        if self.uids.get((kind.name, name)) == uid:
            await super().delete(kind, namespace, name, uid)
            if kind is kinds.RAY_JOB:
                self.objects.pop(("Pod", "head"), None)
                self.last_beat_seconds = None

    async def turn(self) -> None:
        """Reconcile as often as a queue would, and check that no living driver is given up."""
        beat_before = self.last_beat_seconds
        for _ in range(6):
            self.calls.clear()
            try:
                await self.reconcile()
            except (ApiError, RetryLater):
                continue
        num_ends = sum(
            run.get("reason") != "Disrupted" and "outcome" in run for run in self.status.get("runs", ())
        )
        if beat_before is not None and self.seconds - beat_before < 300:
            assert num_ends == self.num_ends, f"a living driver was given up: {self.status['runs']}"
        self.num_ends = num_ends


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(repeats(3, soak=100)))
def test_living_driver_survives_any_failure_of_the_control_plane(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 steps of 20 s in a soak, 120 otherwise. A run that cannot be created says so within 60 s."""

    async def simulate() -> None:
        cluster = StormyCluster(seed)
        monkeypatch.setattr("hindcast_operator.control.startup._now", lambda: cluster.seconds)
        blocked_since = cluster.seconds
        for _ in range(repeats(120, soak=1000)):
            cluster.disturb()
            cluster.play()
            await cluster.turn()
            is_blocked = "RayJob" in cluster.broken_kinds and cluster.status.get("state") == "Pending"
            is_blocked = is_blocked and not (cluster.has_broken_reads or cluster.has_late_watches)
            blocked_since = blocked_since if is_blocked else cluster.seconds
            if cluster.seconds - blocked_since > 60:
                assert cluster.status["conditions"][0]["reason"] != "Accepted", "silent for more than 60 s"
        cluster.has_late_watches = cluster.has_broken_reads = False
        cluster.broken_kinds.clear()
        for _ in range(60):
            cluster.play()
            await cluster.turn()
        assert cluster.status["state"] == "Running"

    asyncio.run(simulate())
