"""From the cache to the facts of one resource."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

from hindcast.api import Resource, validate_resource
from hindcast.api.attempt import Input
from hindcast.errors import SpecError
from hindcast_operator.control import cache, kinds, probe
from hindcast_operator.control.api import Api
from hindcast_operator.control.cache import Cache, Child, Key
from hindcast_operator.control.notes import Note, Notes
from hindcast_operator.control.ownership import whose
from hindcast_operator.facts import (
    AttemptFacts,
    ConfigMapFacts,
    Facts,
    KubeRay,
    PodFacts,
    RayClusterFacts,
    RayJobFacts,
    ReferenceFacts,
)
from hindcast_operator.planning import read_status, watched_children

_PARSED: Final = 256
_LEAVING_SECONDS: Final = 30.0
"""A pod on a node that does not answer stays, and nothing more is heard of it."""
_ENDED: Final = frozenset({"Complete", "Failed"})

Checked = tuple[Resource | None, tuple[str, ...]]


class Observer:
    """Takes the facts of a resource at one moment."""

    def __init__(self, api: Api, known: Cache, notes: Notes) -> None:
        self._api = api
        self._cache = known
        self._notes = notes
        self._parsed: OrderedDict[Key, tuple[Any, Checked]] = OrderedDict()
        self.kuberay: KubeRay = "NotInstalled"
        """Whether the API server knows RayJobs."""

    async def facts(self, key: Key) -> Facts | None:
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
            created=found.created,
            resource=resource,
            problems=problems,
            status=found.status,
            deleting=found.deleting,
            kuberay=self.kuberay,
            attempts=attempts,
            references=tuple(self._reference(to) for to in cache.references(key, found.body["spec"])),
            now=now,
        )

    def _check(self, found: cache.Resource) -> Checked:
        """The resource as models, or what is wrong with it. Remembered, as it changes seldom."""
        stamp = (found.uid, found.generation, found.body["metadata"]["labels"])
        known = self._parsed.get(found.key)
        if known is not None and known[0] == stamp:
            self._parsed.move_to_end(found.key)
            return known[1]
        checked: Checked
        try:
            checked = validate_resource(found.body), ()
        except SpecError as error:
            checked = None, tuple(str(error).splitlines())
        self._parsed[found.key] = (stamp, checked)
        if len(self._parsed) > _PARSED:
            self._parsed.popitem(last=False)
        return checked

    async def _refresh_reports(self, found: cache.Resource) -> None:
        """Two watches have no order: the outcome was written before the RayJob ended, so look for it now."""
        for job in list(self._cache.children(found.key)):
            if not isinstance(job.facts, RayJobFacts) or job.facts.deployment_status not in _ENDED:
                continue
            config_map = self._cache.child(kinds.CONFIG_MAP, job.place.namespace, job.place.name)
            if config_map is None or _has_outcome(config_map) or not _is_current(found, job.attempt):
                continue
            raw = await self._api.get(kinds.CONFIG_MAP, job.place.namespace, job.place.name)
            if raw is not None:
                self._cache.put(kinds.CONFIG_MAP, raw)

    def _by_attempt(self, found: cache.Resource, resource: Resource | None) -> dict[str, list[Child]]:
        """The objects of each attempt that counts, of the next one too, by the attempt's name."""
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
        note = self._notes.get(found.uid, name)
        await self._check_blocker(found, note)
        attempt = _attempt(name, children, note)
        if not probe.starts(attempt):
            return attempt
        if note.probe_is_due():
            await probe.read_events(self._api, found.key.namespace, attempt, note, now)
        pods = tuple(replace(pod, mount_failure=note.mount_failures.get(pod.name)) for pod in attempt.pods)
        return replace(attempt, submitter_failure=note.submitter_failure, pods=pods)

    async def _check_blocker(self, found: cache.Resource, note: Note) -> None:
        """Someone else's object is not watched: see now and then whether it still has the name."""
        blocker = note.blocker_to_check()
        if blocker is None:
            return
        kind, name = blocker
        there = await self._api.get(kind, found.key.namespace, name)
        if there is not None and whose(there, found) == "foreign":
            note.failed(note.conflict, note.refusal)
        else:
            note.succeeded()

    def look_again(self, facts: Facts) -> float | None:
        """In how many seconds something may be found that no watch tells; None: nothing."""
        notes = [self._notes.get(facts.uid, child) for child in facts.attempts]
        wishes = [note.next_try for note in notes if note.next_try]
        loop = asyncio.get_running_loop()
        wishes += [
            loop.time() + _LEAVING_SECONDS
            for attempt in facts.attempts.values()
            if any(pod.deleting for pod in attempt.pods)
        ]
        wishes += [
            note.next_probe
            for note, attempt in zip(notes, facts.attempts.values(), strict=True)
            if probe.starts(attempt)
        ]
        return max(min(wishes) - loop.time(), 1.0) if wishes else None

    def _reference(self, to: Key) -> ReferenceFacts:
        found = self._cache.resources.get(to)
        if found is None or found.deleting:
            return ReferenceFacts(to.kind, to.name, "Missing")
        state = _state(found)
        return ReferenceFacts(to.kind, to.name, state, _input(found) if state == "Complete" else None)


def _attempt(name: str, children: list[Child], note: Note) -> AttemptFacts:
    facts = [child.facts for child in children]
    return AttemptFacts(
        child=name,
        config_map=next((f for f in facts if isinstance(f, ConfigMapFacts)), None),
        ray_job=next((f for f in facts if isinstance(f, RayJobFacts)), None),
        ray_cluster=next((f for f in facts if isinstance(f, RayClusterFacts)), None),
        pods=tuple(sorted((f for f in facts if isinstance(f, PodFacts)), key=lambda pod: pod.name)),
        conflict=note.conflict,
        refusal=note.refusal,
    )


def _foreign(children: list[Child], uid: str) -> bool:
    """Whether an attempt's objects belong to another resource, such as an earlier one of the same name."""
    owners = [c.facts.owner_uid for c in children if isinstance(c.facts, RayJobFacts | ConfigMapFacts)]
    return bool(owners) and uid not in owners


def _has_outcome(child: Child) -> bool:
    facts = child.facts
    return isinstance(facts, ConfigMapFacts) and facts.report is not None and facts.report.outcome is not None


def _is_current(found: cache.Resource, attempt: str) -> bool:
    runs = found.status.get("runs") or [{}]
    return runs[0].get("child") == attempt and not runs[0].get("outcome")


def _state(found: cache.Resource) -> Literal["Unfinished", "Complete", "Failed"]:
    """What a resource that others refer to has come to, in the revision that its spec asks for."""
    runs = found.status.get("runs") or [{}]
    if runs[0].get("revision") != found.body["spec"].get("revision", 1):
        return "Unfinished"
    true = {c.get("type") for c in found.status.get("conditions") or () if c.get("status") == "True"}
    return "Complete" if "Complete" in true else "Failed" if "Failed" in true else "Unfinished"


def _input(found: cache.Resource) -> Input | None:
    status: Mapping[str, Any] = found.status
    if found.key.kind == kinds.TRAINING.name:
        checkpoint = status.get("checkpoint") or {}
        path = checkpoint.get("best") or checkpoint.get("path")
        return Input(path=path) if path else None
    output = status.get("output") or {}
    given = {name: output[name] for name in ("episodes", "timesteps", "bytes", "digest") if name in output}
    return Input(path=output["path"], **given) if "path" in output else None
