"""Verdicts that end live attempts: live reads, the breaker, the clock without steps, and reports of others."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from control_cluster import CHILD, KEY, START, FakeCluster

from hindcast_operator.control import kinds
from hindcast_operator.control.api import ApiError
from hindcast_operator.control.lease import LeaderLease, LeaseOptions
from hindcast_operator.control.verdicts import VerdictBreaker
from hindcast_operator.times import SteadyClock


def run_in_cluster(test: Any, **run_policy: Any) -> None:
    async def body() -> None:
        cluster = FakeCluster(**run_policy)
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


def test_progress_at_rest_is_written_every_thirty_seconds() -> None:
    async def test(cluster: FakeCluster) -> None:
        cluster.now += timedelta(minutes=6)
        write_times = []
        for number in range(2, 14):
            cluster.now += timedelta(seconds=10)
            cluster.beat(number, progress={"iteration": number})
            await cluster.reconcile()
            if cluster.status["progress"]["iteration"] == number:
                write_times.append(number)
        assert write_times == [2, 5, 8, 11]
        cluster.beat(14, outcome={"state": "Succeeded", "reason": "Succeeded", "message": "done"})
        await cluster.reconcile()
        assert cluster.status["state"] == "Succeeded", "all other changes are written immediately"

    run_in_cluster(test)


@pytest.mark.parametrize("missing", [["Role", "RoleBinding"], ["ServiceAccount"]])
def test_deleted_access_of_silent_attempt_is_restored(missing: list[str]) -> None:
    """Regression: nobody restored a deleted Role, and the next report ended the run."""

    async def test(cluster: FakeCluster) -> None:
        for kind in missing:
            del cluster.objects[kind, "clone-training"]
        cluster.now += timedelta(seconds=61)
        await cluster.reconcile()
        assert {f"create {kind}" for kind in missing} <= set(cluster.calls)
        assert "create RayJob" not in cluster.calls and "apply-configmap" not in cluster.calls
        cluster.calls.clear()
        await cluster.reconcile()
        assert not [call for call in cluster.calls if call.startswith("create")]

    run_in_cluster(test)


@pytest.mark.parametrize("account", [None, "team"])
def test_attempt_waits_for_token_of_restored_service_account(account: str | None) -> None:
    """Regression: the pods' token of the deleted ServiceAccount is refused until it is renewed."""

    async def test(cluster: FakeCluster) -> None:
        name = account or "clone-training"
        created = START + timedelta(seconds=30)
        cluster.objects.pop(("ServiceAccount", name), None)
        metadata = {"creationTimestamp": created.isoformat().replace("+00:00", "Z")}
        cluster.write(kinds.SERVICE_ACCOUNT, name, metadata=metadata)
        binding = cluster.objects["RoleBinding", "clone-training"]
        binding["subjects"][0]["name"] = name
        for seconds in (61, 301, 880):
            cluster.now = START + timedelta(seconds=seconds)
            await cluster.reconcile()
            assert cluster.status["state"] == "Running"
            conditions = {entry["type"]: entry["reason"] for entry in cluster.status["conditions"]}
            assert conditions["ClusterReady"] == "TokenOutdated"
        cluster.now = created + timedelta(minutes=15, seconds=1)
        await cluster.reconcile()
        assert cluster.status["runs"][0]["reason"] == "NoHeartbeat"

    run_in_cluster(test, stallTimeoutSeconds=60)


def test_refused_deadlines_are_reported_once() -> None:
    """Regression: with each report the change was tried and logged again."""

    async def test(cluster: FakeCluster) -> None:
        cluster.refusal = ApiError(403, "Forbidden", "admission webhook denied the request")
        spec = cluster.objects["OfflineTraining", "clone"]["spec"]
        for seconds, num_tries in ((7200, 1), (9000, 2)):
            edit = {"runPolicy": {"activeDeadlineSeconds": seconds}}
            generation = {"generation": 1 + num_tries}
            cluster.put(kinds.TRAINING, "clone", metadata=generation, spec=spec | edit)
            for number in range(3):
                cluster.beat(10 * num_tries + number)
                await cluster.reconcile()
            assert cluster.calls.count("set-deadlines") == num_tries
            assert cluster.events.count("DeadlinesRefused") == num_tries
        assert cluster.status["state"] == "Running"

    run_in_cluster(test)


@pytest.mark.parametrize("is_valid", [True, False])
def test_deleted_config_map_of_edited_run_is_restored_without_resource(is_valid: bool) -> None:
    async def test(cluster: FakeCluster) -> None:
        spec = cluster.objects["OfflineTraining", "clone"]["spec"]
        edit = {"algorithm": "CQL"} if is_valid else {"stop": {"iterations": "many"}}
        cluster.put(kinds.TRAINING, "clone", metadata={"generation": 2}, spec=spec | edit)
        del cluster.objects["ConfigMap", CHILD]
        cluster.catch_up()
        await cluster.reconcile()
        assert set(cluster.objects["ConfigMap", CHILD]["data"]) == {"attempt.json", "intent"}
        assert "create RayJob" not in cluster.calls
        assert cluster.status["state"] == "Running"

    run_in_cluster(test)


def test_finished_run_is_not_observed_again() -> None:
    """Regression: the report of a finished run was awaited, with two reads of its access per minute."""

    async def test(cluster: FakeCluster) -> None:
        cluster.beat(2, outcome={"state": "Succeeded", "reason": "Succeeded", "message": "done"})
        cluster.put(
            kinds.RAY_JOB, CHILD, status={"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
        )
        await cluster.reconcile()
        assert cluster.status["state"] == "Succeeded"
        cluster.calls.clear()
        cluster.now += timedelta(minutes=31)
        observer = cluster.reconciler.observer
        facts = await observer.observe(KEY)
        assert facts is not None
        assert observer.recheck_seconds(facts) is None
        assert cluster.calls == []

    run_in_cluster(test)


def test_lost_run_is_cleaned_up_when_kuberay_is_uninstalled() -> None:
    """Regression: each reconciliation failed at the read of a RayJob, a kind that was not served any more."""

    async def test(cluster: FakeCluster) -> None:
        cluster.beat(2, outcome={"state": "Lost", "reason": "WorkerLost", "message": "The node is gone."})
        cluster.broken_kinds = {"ConfigMap"}
        with pytest.raises(ApiError):
            await cluster.reconcile()
        assert cluster.status["state"] == "Retrying"
        cluster.broken_kinds = set()
        cluster.uninstall_kuberay()
        cluster.now += timedelta(minutes=5)
        await cluster.reconcile()
        assert ("ConfigMap", CHILD) not in cluster.objects
        await cluster.reconcile()
        assert cluster.status["conditions"][0]["reason"] == "KubeRayNotInstalled"

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


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        (
            ["spec.rayClusterSpec.headGroupSpec.template.spec.tolerationz"],
            "correct spec.cluster.podOverrides",
        ),
        (["spec.submitterPodTemplate.spec.tolerationz"], "correct spec.cluster.podOverrides"),
        (["spec.preRunningDeadlineSeconds"], "upgrade KubeRay and its CRDs to 1.5"),
        (
            ["spec.submitterPodTemplate.spec.x", "spec.preRunningDeadlineSeconds"],
            "upgrade KubeRay and its CRDs to 1.5",
        ),
    ],
)
def test_unknown_field_of_ray_job_is_explained(fields: list[str], cause: str) -> None:
    """Regression: a typo in podOverrides was reported as an old KubeRay."""

    async def reconcile() -> str:
        cluster = FakeCluster()
        text = ", ".join(f'unknown field "{field}"' for field in fields)
        cluster.refusal = ApiError(400, "BadRequest", f"RayJob in version v1: strict decoding error: {text}")
        await cluster.reconcile()
        await cluster.reconcile()
        return str(cluster.status["message"])

    message = asyncio.run(reconcile())
    assert cause in message and fields[0] in message


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
    assert [breaker.allows("team", attempt) for attempt in range(12)] == [True] * 10 + [False] * 2
    seconds = 599.0
    assert not breaker.allows("team", 12)
    seconds = 601.0
    assert breaker.allows("team", 12)


def test_silent_attempts_of_one_namespace_hold_no_verdict_in_another() -> None:
    """Regression: a tenant with short timeouts kept the hung runs of all others alive."""
    seconds, num_allowed = 0.0, 0
    breaker = VerdictBreaker(lambda: seconds)
    for minute in range(600):
        for index in range(12):
            seconds = minute * 60.0 + index * 5
            breaker.allows("noisy", (minute, index))
        num_allowed += breaker.allows("quiet", minute)
    assert num_allowed == 600


def test_silent_attempts_of_many_namespaces_hold_all_verdicts() -> None:
    breaker = VerdictBreaker(lambda: 0.0)
    assert [breaker.allows(f"team{index}", index) for index in range(12)] == [True] * 10 + [False] * 2
    assert not breaker.allows("team0", "next")


def test_attempt_whose_end_is_tried_again_counts_once() -> None:
    """Regression: one run whose status could not be written opened the breaker for all."""
    breaker = VerdictBreaker(lambda: 0.0)
    assert all(breaker.allows("team", "a") for _ in range(50))
    assert [breaker.allows("team", attempt) for attempt in range(10)] == [True] * 9 + [False]


@pytest.mark.parametrize("run_policy", [{}, {"backoffLimit": 0}])
def test_held_verdict_does_not_end_silent_attempt(run_policy: dict[str, Any]) -> None:
    """Regression: the breaker did not see verdicts on attempts without a retry left, and these are final."""

    async def test(cluster: FakeCluster) -> None:
        cluster.now += timedelta(minutes=31)
        cluster.reconciler._breaker.allows = lambda *_: False  # type: ignore[method-assign]
        await cluster.reconcile()
        assert cluster.status["state"] == "Running"
        assert not [call for call in cluster.calls if call.startswith("delete")]

    run_in_cluster(test, **run_policy)


def test_missed_start_deadline_does_not_count_as_silence() -> None:
    """Regression: runs that waited for nodes opened the breaker, and were ended although it held their verdicts."""

    async def reconcile() -> list[str]:
        cluster = FakeCluster(startDeadlineSeconds=60)
        await cluster.reconcile()
        cluster.now += timedelta(seconds=61)
        cluster.reconciler._breaker.allows = pytest.fail  # type: ignore[method-assign, assignment]
        await cluster.reconcile()
        return cluster.events

    assert "StartDeadlineExceeded" in asyncio.run(reconcile())


@pytest.mark.parametrize(("holder", "is_lost"), [("this", False), ("another", True)])
def test_renewal_after_lost_answer_renews_own_lease_only(holder: str, is_lost: bool) -> None:
    """Regression: an adopted Lease counted as renewed, although nothing had renewed it."""

    class Server:
        lease: dict[str, Any] | None = None
        num_renewals = 0

        async def get(self, *_: Any) -> dict[str, Any] | None:
            return self.lease

        async def call_once(
            self, method: str, path: str, body: dict[str, Any] | None, **_: Any
        ) -> dict[str, Any]:
            if method == "PUT":
                self.num_renewals += 1
                if self.num_renewals == 1:
                    raise ApiError(409, "Conflict", "the object has been modified")
            if body is not None:
                self.lease = json.loads(json.dumps(body))
            assert self.lease is not None
            return self.lease

    async def renew() -> Server:
        server = Server()
        lease = LeaderLease(server, LeaseOptions("n", "l"))  # type: ignore[arg-type]
        await lease.acquire()
        assert server.lease is not None
        server.lease["spec"] |= {
            "holderIdentity": lease.identity if holder == "this" else "another",
            "renewTime": "old",
        }
        await lease._renew()
        return server

    if is_lost:
        with pytest.raises(ApiError):
            asyncio.run(renew())
        return
    server = asyncio.run(renew())
    assert server.lease is not None
    assert server.lease["spec"]["renewTime"] != "old"
