"""One reconciliation of one resource: observe, plan, write the status, post the events, execute the actions."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from hindcast_operator.control import metrics
from hindcast_operator.control.act import Applier, RetryLater
from hindcast_operator.control.api import Api, ApiError
from hindcast_operator.control.cache import Cache, Key
from hindcast_operator.control.metrics import RunMeter
from hindcast_operator.control.observe import Observer
from hindcast_operator.control.startup import new_startups
from hindcast_operator.control.verdicts import HOLD_RECHECK_SECONDS, VerdictBreaker, ends_live_attempt
from hindcast_operator.control.work_queue import WorkQueue
from hindcast_operator.decision import Decision
from hindcast_operator.defaults import Defaults
from hindcast_operator.facts import Facts
from hindcast_operator.planning import plain_status, plan
from hindcast_operator.times import SteadyClock, parse_optional_time

log = structlog.get_logger()

_PROGRESS_WRITE_INTERVAL: Final = timedelta(seconds=30)
"""Minimum time between two status writes if only the progress changed, once the attempt has settled."""
_SETTLE_TIME: Final = timedelta(minutes=5)
"""Time after an attempt's first report in which the status follows every report."""
_PROGRESS_FIELDS: Final = frozenset({"progress", "checkpoint"})


class Reconciler:
    """Takes keys from the queue and reconciles their resources; several workers may run at a time."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        queue: WorkQueue[Key],
        defaults: Defaults,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """Create a reconciler. `clock` returns the time of day without steps; None: a `SteadyClock`."""
        clock = clock or SteadyClock()
        self._cache = cache
        self._queue = queue
        self._defaults = defaults
        self._startups = new_startups()
        self._meter = RunMeter()
        self._uids: dict[Key, str] = {}
        self._status_times: dict[Key, datetime] = {}
        self._applier = Applier(api, cache, self._startups, queue.add)
        self._breaker = VerdictBreaker()
        self.observer = Observer(api, cache, self._startups, clock)

    async def work(self) -> None:
        """Process keys of the queue until cancelled."""
        while True:
            key = await self._queue.get()
            start_time = time.monotonic()
            try:
                result = await self._try_reconcile(key)
            finally:
                self._queue.mark_done(key)
            metrics.RECONCILES.labels(key.kind, result).inc()
            metrics.RECONCILE_SECONDS.labels(key.kind).observe(time.monotonic() - start_time)

    async def _try_reconcile(self, key: Key) -> str:
        """Reconcile a resource, and schedule a retry if that fails. Return the result, a label of `RECONCILES`."""
        try:
            await self._reconcile(key)
        except RetryLater as reason:
            seconds = self._queue.retry(key)
            log.info("not yet possible; will retry", resource=key, why=str(reason), seconds=round(seconds, 1))
            return "waits"
        except ApiError as error:
            seconds = self._queue.retry(key, min_seconds=error.retry_after or 0.0)
            log.warning(
                "API error; will retry", resource=key, error=str(error)[:500], seconds=round(seconds, 1)
            )
            return "api-error"
        except Exception:
            seconds = self._queue.retry(key)
            log.exception("reconciliation failed; will retry", resource=key, seconds=round(seconds, 1))
            return "defect"
        self._queue.forget_failures(key)
        return "done"

    async def _reconcile(self, key: Key) -> None:
        facts = await self.observer.observe(key)
        self._forget_previous(key, facts)
        resource = self._cache.resources.get(key)
        if facts is None or facts.is_deleting or resource is None:
            return
        decision = plan(facts, self._defaults)
        if ends_live_attempt(facts, decision):
            # Watches may be late, so the end is decided again on objects read from the API server.
            await self.observer.read_live(facts)
            facts = await self.observer.observe(key)
            resource = self._cache.resources.get(key)
            if facts is None or resource is None:
                return
            decision = plan(facts, self._defaults)
            attempt = (facts.uid, decision.status.runs[0].ray_job_name) if decision.status.runs else None
            # If many attempts fell silent at once, the operator or the API server is the likely cause: wait instead.
            if decision.ends_silent_attempt and not self._breaker.allows(key.namespace, attempt):
                facts = replace(facts, is_verdict_held=True)
                decision = plan(facts, self._defaults)
                self._queue.add_after(key, HOLD_RECHECK_SECONDS)
        status = plain_status(decision.status)
        await self._write_status(key, facts, status)
        # After the write, which is tried again if it fails: an end must count once.
        self._meter.update(facts, status)
        # Before the actions: if an action failed first, the next reconciliation would see no transition to announce.
        for event in decision.events:
            await self._applier.post_event(resource, event)
        if await self._act(key, decision):
            self._queue.add(key)
        self._schedule(key, facts, decision.requeue_at)

    async def _write_status(self, key: Key, facts: Facts, status: Mapping[str, Any]) -> None:
        changes = {
            name for name in status.keys() | facts.status.keys() if status.get(name) != facts.status.get(name)
        }
        if not changes:
            return
        write_time = self._status_times.get(key, facts.now - _PROGRESS_WRITE_INTERVAL)
        remaining = write_time + _PROGRESS_WRITE_INTERVAL - facts.now
        if remaining > timedelta() and changes <= _PROGRESS_FIELDS and _has_settled(facts):
            self._queue.add_after(key, remaining.total_seconds())
            return
        resource = self._cache.resources.get(key)
        if resource is None or resource.status is not facts.status:
            raise RetryLater("the resource changed while it was observed")
        await self._applier.write_status(resource, status)
        self._status_times[key] = facts.now
        if status.get("state") != facts.status.get("state"):
            log.info("state changed", resource=key, state=status.get("state"), message=status.get("message"))

    async def _act(self, key: Key, decision: Decision) -> bool:
        """Execute the actions. Return True if another reconciliation is needed immediately."""
        needs_requeue = False
        for action in decision.actions:
            resource = self._cache.resources.get(key)
            if resource is None:
                raise RetryLater("the resource was deleted in the meantime")
            log.debug("action", resource=key, action=type(action).__name__)
            needs_requeue |= await self._applier.execute(resource, action)
        return needs_requeue

    def _schedule(self, key: Key, facts: Facts, requeue_at: datetime | None) -> None:
        if requeue_at is not None:
            self._queue.add_after(key, (requeue_at - facts.now).total_seconds())
        if (seconds := self.observer.recheck_seconds(facts)) is not None:
            self._queue.add_after(key, seconds)

    def _forget_previous(self, key: Key, facts: Facts | None) -> None:
        """Forget the state of a resource that is gone or was re-created."""
        uid = facts.uid if facts is not None else None
        previous_uid = self._uids.get(key)
        if previous_uid is not None and previous_uid != uid:
            self._startups.pop(previous_uid, None)
            self._meter.forget(previous_uid)
        if uid is None:
            self._uids.pop(key, None)
            self._status_times.pop(key, None)
        else:
            self._uids[key] = uid


def _has_settled(facts: Facts) -> bool:
    """Return True if the latest attempt has been reporting for some minutes."""
    first_report_time = parse_optional_time((facts.status.get("runs") or [{}])[0].get("firstReportTime"))
    return first_report_time is not None and facts.now - first_report_time > _SETTLE_TIME


async def run_workers(reconciler: Reconciler, num_workers: int) -> None:
    """Run workers until cancelled, or until one of them raises, which is a bug."""
    async with asyncio.TaskGroup() as group:
        for _ in range(num_workers):
            group.create_task(reconciler.work())
