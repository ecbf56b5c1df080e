"""Verdicts that end live attempts: they are made on live reads, and held if there are many of them at once."""

import time
from collections.abc import Callable, Hashable
from typing import Final

import structlog

from hindcast_operator.control import metrics
from hindcast_operator.decision import Decision, DeleteAttempt
from hindcast_operator.facts import Facts

log = structlog.get_logger()

HOLD_RECHECK_SECONDS: Final = 60.0
"""Interval between checks of an attempt that is not ended because of the breaker."""

_MAX_VERDICTS: Final = 10
"""Verdicts within `_WINDOW_SECONDS` after which further ones are held for `_HOLD_SECONDS`."""
_WINDOW_SECONDS: Final = 60.0
_HOLD_SECONDS: Final = 600.0


class VerdictBreaker:
    """Holds verdicts on silent attempts for ten minutes after ten of them within one minute.

    Then the cause is hardly the attempts, but the operator's clock, its connection or the API server.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: dict[Hashable, float] = {}
        self._held: set[Hashable] = set()
        self._hold_end = 0.0

    def allows(self, attempt: Hashable) -> bool:
        """Return True if an attempt may be ended for its silence now.

        An attempt counts once, because ending it is tried again until all writes have succeeded.
        """
        now = self._clock()
        self._times = {name: time for name, time in self._times.items() if now - time < _WINDOW_SECONDS}
        if attempt in self._times:
            return True
        if now >= self._hold_end:
            self._held.clear()
            if len(self._times) < _MAX_VERDICTS:
                self._times[attempt] = now
                return True
            self._hold_end = now + _HOLD_SECONDS
            log.error("many runs fell silent at once; none is ended", seconds=_HOLD_SECONDS)
        if attempt not in self._held:
            self._held.add(attempt)
            metrics.VERDICTS_HELD.inc()
        return False


def ends_live_attempt(facts: Facts, decision: Decision) -> bool:
    """Return True if the decision deletes objects, or ends an attempt that has no outcome in the stored status."""
    ended_names = {run["rayJobName"] for run in facts.status.get("runs") or () if run.get("outcome")}
    return any(isinstance(action, DeleteAttempt) for action in decision.actions) or any(
        run.outcome is not None and run.ray_job_name not in ended_names for run in decision.status.runs
    )
