"""Verdicts that end live attempts, and the breaker that holds them if many attempts fall silent at once."""

import time
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

import structlog

from hindcast_operator.control import metrics
from hindcast_operator.decision import Decision, DeleteAttempt
from hindcast_operator.facts import Facts

log = structlog.get_logger()

HOLD_RECHECK_SECONDS: Final = 60.0
"""Interval between checks of an attempt for which the breaker holds the verdict."""

_MAX_VERDICTS: Final = 10
"""Verdicts within `_WINDOW_SECONDS` after which further ones are held for `_HOLD_SECONDS`."""
_MAX_VERDICTS_PER_NAMESPACE: Final = 5
"""Largest number of verdicts of one namespace in the total, so that one tenant alone never holds those of another."""
_WINDOW_SECONDS: Final = 60.0
_HOLD_SECONDS: Final = 600.0


class VerdictBreaker:
    """Holds verdicts on silent attempts for ten minutes after ten of them within one minute.

    If so many fall silent at once, the probable cause is the operator's clock, its connection or the API server. Ten
    verdicts in one namespace hold those of that namespace only, ten in several namespaces hold all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[tuple[str, Hashable], float] = {}
        self._attempt_hold_ends: dict[Hashable, float] = {}
        self._hold_ends: dict[str | None, float] = {}

    def allows(self, namespace: str, attempt: Hashable) -> bool:
        """Return True if an attempt may be ended for its silence now.

        An attempt counts once, although ending it is retried until all writes have succeeded.
        """
        now = self._clock()
        self._times = {
            key: verdict_time
            for key, verdict_time in self._times.items()
            if now - verdict_time < _WINDOW_SECONDS
        }
        self._attempt_hold_ends = {key: end for key, end in self._attempt_hold_ends.items() if now < end}
        self._hold_ends = {scope: end for scope, end in self._hold_ends.items() if now < end}
        if (namespace, attempt) in self._times:
            return True
        if not self._hold_ends.keys() & {namespace, None}:
            counts = Counter(verdict_namespace for verdict_namespace, _ in self._times)
            num_total = sum(min(count, _MAX_VERDICTS_PER_NAMESPACE) for count in counts.values())
            if max(num_total, counts[namespace]) < _MAX_VERDICTS:
                self._times[namespace, attempt] = now
                return True
            scope = None if num_total >= _MAX_VERDICTS else namespace
            self._hold_ends[scope] = now + _HOLD_SECONDS
            log.error(
                "many runs fell silent at once; further silent runs are not ended",
                namespace=scope or "all",
                seconds=_HOLD_SECONDS,
            )
        if attempt not in self._attempt_hold_ends:
            self._attempt_hold_ends[attempt] = max(
                self._hold_ends[scope] for scope in self._hold_ends.keys() & {namespace, None}
            )
            metrics.VERDICTS_HELD.inc()
        return False


def ends_live_attempt(facts: Facts, decision: Decision) -> bool:
    """Return True if the decision deletes objects, or ends an attempt that has no outcome in the stored status."""
    ended_names = {run["rayJobName"] for run in facts.status.get("runs") or () if run.get("outcome")}
    return any(isinstance(action, DeleteAttempt) for action in decision.actions) or any(
        run.outcome is not None and run.ray_job_name not in ended_names for run in decision.status.runs
    )
