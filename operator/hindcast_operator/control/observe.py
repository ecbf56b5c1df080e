"""Observation of one resource: facts from the cache, and from objects that no watch reports."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pydantic import ValidationError

from hindcast.api import Resource, validate_resource
from hindcast.api.attempt import MAX_REPORT_INTERVAL_SECONDS, ResolvedInput
from hindcast.api.run_policy import RunPolicy
from hindcast.errors import SpecError
from hindcast_operator import names
from hindcast_operator.control import cache, kinds
from hindcast_operator.control.api import Api
from hindcast_operator.control.cache import Cache, Child, Key
from hindcast_operator.control.reads import refresh, resync
from hindcast_operator.control.startup import Startup, Startups, classify_owner, is_starting, read_events
from hindcast_operator.facts import (
    AttemptFacts,
    ConfigMapFacts,
    Facts,
    ObjectFacts,
    PodFacts,
    RayClusterFacts,
    RayJobFacts,
    ReferenceFacts,
)
from hindcast_operator.planning import read_status, watched_children
from hindcast_operator.times import parse_optional_time

_DELETION_CHECK_SECONDS: Final = 30.0
"""Interval between checks of a pod that is being deleted. On a node that does not answer, the pod stays, and the watch
reports no further change."""
_FINAL_STATUSES: Final = frozenset({"Complete", "Failed"})
_SILENCE_SECONDS: Final = 2.0 * MAX_REPORT_INTERVAL_SECONDS
"""After this time without a report, the objects through which the attempt reports are read."""
_TOKEN_RENEWAL_TIME: Final = timedelta(minutes=15)
"""Time after which pods have a token of a ServiceAccount that was created again. The kubelet renews a token of ten
minutes after eight, and writes it into the pod up to two minutes later."""


class Observer:
    """Collects the facts about a resource at one moment."""

    def __init__(
        self, api: Api, cluster_cache: Cache, startups: Startups, clock: Callable[[], datetime]
    ) -> None:
        self._api = api
        self._clock = clock
        self._cache = cluster_cache
        self._startups = startups
        self.namespaces_with_kuberay: set[str | None] = set()
        """The namespaces (None: the whole cluster) in which RayJobs are served, and the existing ones cached."""
        self.forbidden_kinds: dict[str | None, Mapping[str, str]] = {}
        """Namespace (None: the whole cluster) -> kinds that may not be watched there -> the API server's message."""

    def has_kuberay(self, namespace: str) -> bool:
        """Return True if the API server serves RayJobs, and those of the namespace are in the cache."""
        return not self.namespaces_with_kuberay.isdisjoint({None, namespace})

    async def observe(self, key: Key) -> Facts | None:
        """Return the facts about a resource, or None if it is gone. Raises ApiError."""
        snapshot = self._cache.resources.get(key)
        if snapshot is None:
            return None
        now = self._clock()
        resource, problems = _validate_body(snapshot.body)
        await self._refresh_reports(snapshot)
        children_by_attempt = self._children_by_attempt(snapshot, resource)
        startups = self._startups[snapshot.uid]
        for name in startups.keys() - children_by_attempt.keys():
            del startups[name]
        attempts = {
            name: await self._observe_attempt(snapshot, name, children_by_attempt[name], now)
            for name in children_by_attempt
        }
        return Facts(
            kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            uid=snapshot.uid,
            generation=snapshot.generation,
            resource=resource,
            problems=problems,
            status=snapshot.status,
            is_deleting=snapshot.is_deleting,
            has_kuberay=self.has_kuberay(key.namespace),
            forbidden_kinds=self.forbidden_kinds.get(None, {}) or self.forbidden_kinds.get(key.namespace, {}),
            attempts=attempts,
            references=tuple(
                self._reference_facts(key, target)
                for target in cache.find_references(key, snapshot.body["spec"])
            ),
            now=now,
            suspend=snapshot.body["spec"].get("suspend") is True,
            run_policy=_parse_run_policy(snapshot.body["spec"]),
        )

    async def _refresh_reports(self, snapshot: cache.Resource) -> None:
        """Read the latest attempt's final report if its RayJob has ended and the cache does not have the report yet."""
        # An attempt writes its outcome before its RayJob ends, but the watch of RayJobs may report its change first.
        for job in list(self._cache.children(snapshot.key)):
            if not isinstance(job.facts, RayJobFacts) or job.facts.deployment_status not in _FINAL_STATUSES:
                continue
            config_map = self._cache.child(kinds.CONFIG_MAP, job.key.namespace, job.key.name)
            if (
                config_map is None
                or _has_outcome(config_map)
                or not _is_running_attempt(snapshot.status, job.attempt)
            ):
                continue
            await refresh(self._api, self._cache, kinds.CONFIG_MAP, job.key.namespace, job.key.name)

    async def read_live(self, facts: Facts) -> None:
        """Read the objects of a resource's attempts from the API server into the cache.

        A verdict that ends an attempt is made again afterwards: the watches may be late.
        """
        key = Key(facts.kind, facts.namespace, facts.name)
        # Without KubeRay, the API server answers 404 for the whole kind.
        read_kinds = (kinds.RAY_JOB, kinds.CONFIG_MAP) if facts.has_kuberay else (kinds.CONFIG_MAP,)
        for name in facts.attempts:
            for kind in read_kinds:
                await refresh(self._api, self._cache, kind, key.namespace, name)
        await resync(self._api, self._cache, kinds.POD, key.namespace, owner=key)

    def _children_by_attempt(
        self, snapshot: cache.Resource, resource: Resource | None
    ) -> dict[str, list[Child]]:
        """Return attempt's name -> its objects, for the latest and the next attempt and for earlier ones with objects.

        Objects of another resource are included only if they have the name of the latest or the next attempt.
        """
        watched_names = watched_children(
            snapshot.key.kind, snapshot.key.name, resource, read_status(snapshot.status)
        )
        children_by_attempt: dict[str, list[Child]] = {}
        for child in self._cache.children(snapshot.key):
            children_by_attempt.setdefault(child.attempt, []).append(child)
        relevant_children = {
            name: children
            for name, children in children_by_attempt.items()
            if name in watched_names or not _is_foreign(children, snapshot.uid)
        }
        return {name: [] for name in watched_names} | relevant_children

    async def _observe_attempt(
        self, snapshot: cache.Resource, name: str, children: list[Child], now: datetime
    ) -> AttemptFacts:
        startup = self._startups[snapshot.uid][name]
        await self._check_blocker(snapshot, startup)
        attempt = _attempt_facts(name, children, startup)
        if is_starting(attempt):
            if startup.should_read_events():
                await read_events(self._api, snapshot.key.namespace, attempt, startup, now)
            pods = tuple(
                replace(pod, mount_failure=startup.mount_failures.get(pod.name)) for pod in attempt.pods
            )
            attempt = replace(attempt, submitter_failure=startup.submitter_failure, pods=pods)
        startup.pulse.update(attempt, now)
        await self._check_access(snapshot, attempt, startup, now)
        return replace(
            attempt,
            has_access=startup.has_access,
            token_renewal_time=startup.token_renewal_time,
            beat_seen_at=startup.pulse.beat_seen_at,
            progress_seen_at=startup.pulse.progress_seen_at,
        )

    async def _check_access(
        self, snapshot: cache.Resource, attempt: AttemptFacts, startup: Startup, now: datetime
    ) -> None:
        """Record in `startup` whether an attempt that has fallen silent may still report."""
        name = attempt.child_name
        beat_seen_at, read_at = startup.pulse.beat_seen_at, startup.access_read_at
        # A finished run keeps its last report, and sends no more.
        is_silent = (
            beat_seen_at is not None
            and (now - beat_seen_at).total_seconds() >= _SILENCE_SECONDS
            and _is_running_attempt(snapshot.status, name)
        )
        if not is_silent:
            startup.has_access, startup.token_renewal_time = True, None
            return
        if read_at is not None and (now - read_at).total_seconds() < _SILENCE_SECONDS:
            return
        startup.access_read_at = now
        namespace, account = snapshot.key.namespace, names.account_name(snapshot.key.kind, snapshot.key.name)
        role = await self._api.get(kinds.ROLE, namespace, account)
        binding = await self._api.get(kinds.ROLE_BINDING, namespace, account)
        rules, subjects = (role or {}).get("rules") or (), (binding or {}).get("subjects") or ()
        may_report = any(name in (rule.get("resourceNames") or ()) for rule in rules)
        for subject in subjects:
            pod_account = await self._api.get(kinds.SERVICE_ACCOUNT, namespace, subject["name"])
            # The operator restores only its own ServiceAccount, not one that the user or the platform named.
            may_report &= pod_account is not None or subject["name"] != account
            creation_time = parse_optional_time(
                (pod_account or {}).get("metadata", {}).get("creationTimestamp")
            )
            if creation_time and attempt.ray_job and creation_time > attempt.ray_job.created_at:
                startup.token_renewal_time = creation_time + _TOKEN_RENEWAL_TIME
        startup.has_access = may_report and bool(subjects)

    async def _check_blocker(self, snapshot: cache.Resource, startup: Startup) -> None:
        """Record in `startup` whether a foreign object still has a name that the attempt needs."""
        # Objects of other owners are not watched.
        if startup.blocker is None or startup.is_backing_off():
            return
        kind, name = startup.blocker
        blocker = await self._api.get(kind, snapshot.key.namespace, name)
        if blocker is not None and classify_owner(blocker, snapshot) == "foreign":
            startup.record_failure(startup.problem)  # postpones the next check
        else:
            startup.record_success()

    def recheck_seconds(self, facts: Facts) -> float | None:
        """Return after how many seconds to look for changes that no watch reports; None if watches report all."""
        loop = asyncio.get_running_loop()
        due_times = []
        for name, attempt in facts.attempts.items():
            startup = self._startups[facts.uid][name]
            if startup.next_creation_time:
                due_times.append(startup.next_creation_time)
            if is_starting(attempt):
                due_times.append(startup.next_events_time)
            if attempt.beat_seen_at is not None and _is_running_attempt(facts.status, name):
                silence = (facts.now - attempt.beat_seen_at).total_seconds()
                due_times.append(loop.time() + max(_SILENCE_SECONDS - silence, _SILENCE_SECONDS / 2))
            if any(pod.is_deleting for pod in attempt.pods):
                due_times.append(loop.time() + _DELETION_CHECK_SECONDS)
        return max(min(due_times) - loop.time(), 1.0) if due_times else None

    def _reference_facts(self, key: Key, target: Key) -> ReferenceFacts:
        snapshot = self._cache.resources.get(target)
        if snapshot is None or snapshot.is_deleting:
            return ReferenceFacts(target.kind, target.name, "Missing")
        if ring := self._find_ring(key, target):
            return ReferenceFacts(target.kind, target.name, "Circular", ring=ring)
        state = _reference_state(snapshot)
        if state != "Complete":
            return ReferenceFacts(target.kind, target.name, state)
        provided_input = _provided_input(snapshot)
        # An attempt without its input would fail for good.
        state = "Complete" if provided_input else "Unfinished"
        return ReferenceFacts(target.kind, target.name, state, provided_input)

    def _find_ring(self, start: Key, target: Key) -> tuple[str, ...]:
        """Return `Kind/name` of the resources that wait for each other, from `start` over `target` back to `start`.

        Empty if there is no such ring. A resource that has started waits for no other.
        """
        referrers = {target: start}
        queue = deque([target])
        while queue and start not in referrers:
            key = queue.popleft()
            snapshot = self._cache.resources.get(key)
            if snapshot is None or snapshot.is_deleting or _has_started(snapshot):
                continue
            for reference in cache.find_references(key, snapshot.body["spec"]):
                if reference not in referrers:
                    referrers[reference] = key
                    queue.append(reference)
        ring = [start] if start in referrers else []
        while ring and (ring[-1] != start or len(ring) == 1):
            ring.append(referrers[ring[-1]])
        return tuple(f"{key.kind}/{key.name}" for key in reversed(ring))


def _validate_body(body: dict[str, Any]) -> tuple[Resource | None, tuple[str, ...]]:
    """Return the resource as a model and no problems, or None and the problems of its spec.

    This takes 0.3 ms, less than a cache of the models would be worth.
    """
    try:
        return validate_resource(body), ()
    except SpecError as error:
        return None, tuple(map(str, error.problems))


def _parse_run_policy(spec: Mapping[str, Any]) -> RunPolicy:
    try:
        return RunPolicy.model_validate(spec.get("runPolicy") or {}, by_alias=True, by_name=False)
    except ValidationError:
        return RunPolicy()


def _attempt_facts(name: str, children: list[Child], startup: Startup) -> AttemptFacts:
    facts = [child.facts for child in children]
    return AttemptFacts(
        child_name=name,
        # By name too: anybody who may create ConfigMaps could give another one the labels and the owner.
        config_map=next((f for f in facts if isinstance(f, ConfigMapFacts) and f.name == name), None),
        ray_job=next((f for f in facts if isinstance(f, RayJobFacts) and f.name == name), None),
        ray_cluster=next((f for f in facts if isinstance(f, RayClusterFacts)), None),
        pods=tuple(sorted((f for f in facts if isinstance(f, PodFacts)), key=lambda pod: pod.name)),
        creation_problem=startup.problem,
    )


def _is_foreign(children: list[Child], uid: str) -> bool:
    """Return True if an attempt's objects belong to another resource, such as an earlier one of the same name."""
    owners = [c.facts.owner_uid for c in children if isinstance(c.facts, ObjectFacts)]
    return bool(owners) and uid not in owners


def _has_outcome(child: Child) -> bool:
    facts = child.facts
    return isinstance(facts, ConfigMapFacts) and facts.report is not None and facts.report.outcome is not None


def _is_running_attempt(status: Mapping[str, Any], attempt: str) -> bool:
    """Return True if `attempt` is the resource's latest attempt, and the status does not record its end."""
    run = _latest_run(status)
    return run.get("rayJobName") == attempt and not run.get("outcome")


def _has_started(snapshot: cache.Resource) -> bool:
    """Return True if the latest attempt is of the spec's revision."""
    return bool(_latest_run(snapshot.status).get("revision") == snapshot.body["spec"].get("revision", 1))


def _latest_run(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entry of the latest attempt; empty if there is none."""
    return (status.get("runs") or [{}])[0]


def _reference_state(snapshot: cache.Resource) -> Literal["Unfinished", "Complete", "Failed"]:
    """Return the state of a resource that others refer to, in the revision of its spec."""
    if not _has_started(snapshot):
        return "Unfinished"
    true_types = {c.get("type") for c in snapshot.status.get("conditions") or () if c.get("status") == "True"}
    return "Complete" if "Complete" in true_types else "Failed" if "Failed" in true_types else "Unfinished"


def _provided_input(snapshot: cache.Resource) -> ResolvedInput | None:
    """Return the input that a complete resource provides to others; None if its status does not name it.

    This is the best checkpoint of a training, or else its latest one, and the dataset of a recording.
    """
    status: Mapping[str, Any] = snapshot.status
    if snapshot.key.kind == kinds.TRAINING.name:
        checkpoint = status.get("checkpoint") or {}
        path = checkpoint.get("bestPath") or checkpoint.get("path")
        return ResolvedInput(path=path) if path else None
    output = status.get("output") or {}
    field_names = ("episodes", "timesteps", "bytes", "memoryBytes", "digest")
    fields = {name: output[name] for name in field_names if name in output}
    return ResolvedInput(path=output["path"], **fields) if "path" in output else None
