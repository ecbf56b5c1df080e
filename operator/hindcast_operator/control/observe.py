"""The facts of one resource, from the cache and from what watches do not report."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pydantic import ValidationError

from hindcast.api import Resource, validate_resource
from hindcast.api.attempt import ResolvedInput
from hindcast.api.run_policy import RunPolicy
from hindcast.errors import SpecError
from hindcast_operator.control import cache, kinds
from hindcast_operator.control.api import Api
from hindcast_operator.control.cache import Cache, Child, Key
from hindcast_operator.control.startup import Startup, Startups, is_starting, ownership, read_events
from hindcast_operator.facts import (
    AttemptFacts,
    ConfigMapFacts,
    Facts,
    KubeRay,
    ObjectFacts,
    PodFacts,
    RayClusterFacts,
    RayJobFacts,
    ReferenceFacts,
)
from hindcast_operator.planning import read_status, watched_children

_PARSED: Final = 256
_DELETION_SECONDS: Final = 30.0
"""A deleted pod stays on a node that does not answer, and no watch reports anything more of it."""
_ENDED: Final = frozenset({"Complete", "Failed"})

Checked = tuple[Resource | None, tuple[str, ...]]


class Observer:
    """Takes the facts of a resource at one moment."""

    def __init__(self, api: Api, known: Cache, startups: Startups) -> None:
        self._api = api
        self._cache = known
        self._startups = startups
        self._parsed: dict[Key, tuple[Any, Checked]] = {}
        self.kuberay: KubeRay = "NotInstalled"
        """Whether the API server knows RayJobs."""

    async def observe(self, key: Key) -> Facts | None:
        """What there is of a resource; None where it is gone. Raises ApiError."""
        found = self._cache.resources.get(key)
        if found is None:
            return None
        now = datetime.now(UTC)
        resource, problems = self._check(found)
        await self._refresh_reports(found)
        by_attempt = self._by_attempt(found, resource)
        attempts = {child: await self._attempt(found, child, by_attempt[child], now) for child in by_attempt}
        return Facts(
            kind=key.kind,
            namespace=key.namespace,
            name=key.name,
            uid=found.uid,
            generation=found.generation,
            resource=resource,
            problems=problems,
            status=found.status,
            deleting=found.is_deleting,
            kuberay=self.kuberay,
            attempts=attempts,
            references=tuple(self._reference(key, to) for to in cache.references(key, found.body["spec"])),
            now=now,
            suspend=found.body["spec"].get("suspend") is True,
            run_policy=_run_policy(found.body["spec"]),
        )

    def _check(self, found: cache.Resource) -> Checked:
        """The resource as models, or what is wrong with it. Cached by generation."""
        stamp = (found.uid, found.generation, found.body["metadata"]["labels"])
        known = self._parsed.pop(found.key, None)
        if known is None or known[0] != stamp:
            known = stamp, _validated(found.body)
        self._parsed[found.key] = known  # as the last one: the first one is the one not asked for the longest
        if len(self._parsed) > _PARSED:
            del self._parsed[next(iter(self._parsed))]
        return known[1]

    async def _refresh_reports(self, found: cache.Resource) -> None:
        """Watches are not ordered: the outcome was written before the RayJob ended, so read it now."""
        for job in list(self._cache.children(found.key)):
            if not isinstance(job.facts, RayJobFacts) or job.facts.deployment_status not in _ENDED:
                continue
            config_map = self._cache.child(kinds.CONFIG_MAP, job.key.namespace, job.key.name)
            if config_map is None or _has_outcome(config_map) or not _is_current(found, job.attempt):
                continue
            raw = await self._api.get(kinds.CONFIG_MAP, job.key.namespace, job.key.name)
            if raw is not None:
                self._cache.put(kinds.CONFIG_MAP, raw)

    def _by_attempt(self, found: cache.Resource, resource: Resource | None) -> dict[str, list[Child]]:
        """The objects of each attempt of this resource and of the next attempt, by the attempt's name."""
        watched = watched_children(found.key.kind, found.key.name, resource, read_status(found.status))
        by_attempt: dict[str, list[Child]] = {}
        for child in self._cache.children(found.key):
            by_attempt.setdefault(child.attempt, []).append(child)
        counting = {
            name: children
            for name, children in by_attempt.items()
            if name in watched or not _foreign(children, found.uid)
        }
        return {name: [] for name in watched} | counting

    async def _attempt(
        self, found: cache.Resource, name: str, children: list[Child], now: datetime
    ) -> AttemptFacts:
        startup = self._startups[found.uid][name]
        await self._check_blocker(found, startup)
        attempt = _attempt(name, children, startup)
        if not is_starting(attempt):
            return attempt
        if startup.should_read_events():
            await read_events(self._api, found.key.namespace, attempt, startup, now)
        pods = tuple(replace(pod, mount_failure=startup.mount_failures.get(pod.name)) for pod in attempt.pods)
        return replace(attempt, submitter_failure=startup.submitter_failure, pods=pods)

    async def _check_blocker(self, found: cache.Resource, startup: Startup) -> None:
        """Objects of others are not watched: check now and then whether it still has the name."""
        if startup.blocker is None or startup.is_backing_off():
            return
        kind, name = startup.blocker
        blocker = await self._api.get(kind, found.key.namespace, name)
        if blocker is not None and ownership(blocker, found) == "foreign":
            startup.record_failure(startup.conflict, startup.refusal)
        else:
            startup.record_success()

    def recheck_seconds(self, facts: Facts) -> float | None:
        """In how many seconds something may be found that no watch reports; None: nothing."""
        loop = asyncio.get_running_loop()
        times = []
        for child, attempt in facts.attempts.items():
            startup = self._startups[facts.uid][child]
            if startup.next_creation:
                times.append(startup.next_creation)
            if is_starting(attempt):
                times.append(startup.next_events)
            if any(pod.deleting for pod in attempt.pods):
                times.append(loop.time() + _DELETION_SECONDS)
        return max(min(times) - loop.time(), 1.0) if times else None

    def _reference(self, own: Key, to: Key) -> ReferenceFacts:
        found = self._cache.resources.get(to)
        if found is None or found.is_deleting:
            return ReferenceFacts(to.kind, to.name, "Missing")
        if not _has_begun(found) and own in cache.references(to, found.body["spec"]):
            return ReferenceFacts(to.kind, to.name, "Circular")
        state = _state(found)
        return ReferenceFacts(to.kind, to.name, state, _input(found) if state == "Complete" else None)


def _validated(body: dict[str, Any]) -> Checked:
    try:
        return validate_resource(body), ()
    except SpecError as error:
        return None, tuple(str(error).splitlines())


def _run_policy(spec: Mapping[str, Any]) -> RunPolicy:
    try:
        return RunPolicy.model_validate(spec.get("runPolicy") or {}, by_alias=True, by_name=False)
    except ValidationError:
        return RunPolicy()


def _attempt(name: str, children: list[Child], startup: Startup) -> AttemptFacts:
    facts = [child.facts for child in children]
    return AttemptFacts(
        child=name,
        config_map=next((f for f in facts if isinstance(f, ConfigMapFacts)), None),
        ray_job=next((f for f in facts if isinstance(f, RayJobFacts)), None),
        ray_cluster=next((f for f in facts if isinstance(f, RayClusterFacts)), None),
        pods=tuple(sorted((f for f in facts if isinstance(f, PodFacts)), key=lambda pod: pod.name)),
        conflict=startup.conflict,
        refusal=startup.refusal,
    )


def _foreign(children: list[Child], uid: str) -> bool:
    """Whether an attempt's objects belong to another resource, such as an earlier one of the same name."""
    owners = [c.facts.owner_uid for c in children if isinstance(c.facts, ObjectFacts)]
    return bool(owners) and uid not in owners


def _has_outcome(child: Child) -> bool:
    facts = child.facts
    return isinstance(facts, ConfigMapFacts) and facts.report is not None and facts.report.outcome is not None


def _is_current(found: cache.Resource, attempt: str) -> bool:
    runs = found.status.get("runs") or [{}]
    return runs[0].get("rayJobName") == attempt and not runs[0].get("outcome")


def _has_begun(found: cache.Resource) -> bool:
    """Whether there is an attempt of the revision that its spec asks for."""
    runs = found.status.get("runs") or [{}]
    return bool(runs[0].get("revision") == found.body["spec"].get("revision", 1))


def _state(found: cache.Resource) -> Literal["Unfinished", "Complete", "Failed"]:
    """The state of a resource that others refer to, in the revision that its spec asks for."""
    if not _has_begun(found):
        return "Unfinished"
    true = {c.get("type") for c in found.status.get("conditions") or () if c.get("status") == "True"}
    return "Complete" if "Complete" in true else "Failed" if "Failed" in true else "Unfinished"


def _input(found: cache.Resource) -> ResolvedInput | None:
    status: Mapping[str, Any] = found.status
    if found.key.kind == kinds.TRAINING.name:
        checkpoint = status.get("checkpoint") or {}
        path = checkpoint.get("bestPath") or checkpoint.get("path")
        return ResolvedInput(path=path) if path else None
    output = status.get("output") or {}
    names = ("episodes", "timesteps", "bytes", "memoryBytes", "digest")
    given = {name: output[name] for name in names if name in output}
    return ResolvedInput(path=output["path"], **given) if "path" in output else None
