"""Evaluation in other processes while training goes on here."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from hindcast.errors import UserError
from hindcast.evaluate.environment import EnvEvaluator, EnvReport
from hindcast.models.policy import Policy
from hindcast.orphans import end_with_parent

_evaluator: EnvEvaluator | None = None


class EvaluationWorkers:
    """Processes that each hold the evaluation's environments.

    The episodes of one evaluation are dealt out by index; each is the same whoever plays it, so the report
    does not depend on the number of workers.

    Args:
        evaluator: what one evaluation is.
        workers: number of processes.
    """

    def __init__(self, evaluator: EnvEvaluator, workers: int) -> None:
        import loky

        self._pool: Any = loky.ProcessPoolExecutor(
            max_workers=workers, initializer=_hold, initargs=(evaluator,), timeout=None
        )
        self._evaluator = evaluator
        self._workers = workers

    def submit(self, policy: Policy, seed: int) -> list[Future[EnvReport | UserError]]:
        """Begin an evaluation of the policy as it is now; collect it with `gather`."""
        files = policy.to_files()
        shares = self._evaluator.shares(self._workers)
        return [self._pool.submit(_play, files, seed, share) for share in shares]

    def close(self) -> None:
        """Stop the processes, evaluating or not."""
        self._pool.shutdown(wait=True, kill_workers=True)


def gather(parts: list[Future[EnvReport | UserError]], timeout: float | None, open_ended: bool) -> EnvReport:
    """The report of an evaluation, its episodes in order of their index.

    Args:
        parts: what `submit` returned.
        timeout: seconds to wait, None for ever.
        open_ended: drop the parts that have not begun, all but the first.

    Raises:
        UserError: the environment or the user's evaluation function raised.
        TimeoutError: no result in time.
    """
    begun = [part for number, part in enumerate(parts) if not (open_ended and number and part.cancel())]
    reports = [part.result(timeout) for part in begun]
    for report in reports:
        if isinstance(report, UserError):
            raise report
    good = [report for report in reports if isinstance(report, EnvReport)]
    return EnvReport(
        returns=[value for report in good for value in report.returns],
        lengths=[value for report in good for value in report.lengths],
    )


def _hold(evaluator: EnvEvaluator) -> None:
    global _evaluator  # noqa: PLW0603  (one evaluator per worker process)
    end_with_parent()
    _evaluator = evaluator


def _play(files: dict[str, bytes], seed: int, share: range | None) -> EnvReport | UserError:
    assert _evaluator is not None
    try:
        return _evaluator(Policy.from_files(files), seed, share)
    except UserError as error:
        return error
