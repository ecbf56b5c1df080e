"""Verdicts that end live attempts: they are made on live reads, and held if there are many of them at once."""

import time
from collections import deque
from collections.abc import Callable
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
        self._times: deque[float] = deque(maxlen=_MAX_VERDICTS)
        self._hold_end = 0.0

    def allows(self) -> bool:
        """Return True if another attempt may be ended for its silence now, and count it."""
        now = self._clock()
        if (
            now >= self._hold_end
            and len(self._times) == _MAX_VERDICTS
            and now - self._times[0] < _WINDOW_SECONDS
        ):
            self._hold_end = now + _HOLD_SECONDS
            log.error("many runs fell silent at once; none is ended", seconds=_HOLD_SECONDS)
        if now < self._hold_end:
            metrics.VERDICTS_HELD.inc()
            return False
        self._times.append(now)
        return True


def ends_live_attempt(facts: Facts, decision: Decision) -> bool:
    """Return True if the decision deletes objects, or ends an attempt that has no outcome in the stored status."""
    ended_names = {run["rayJobName"] for run in facts.status.get("runs") or () if run.get("outcome")}
    return any(isinstance(action, DeleteAttempt) for action in decision.actions) or any(
        run.outcome is not None and run.ray_job_name not in ended_names for run in decision.status.runs
    )
