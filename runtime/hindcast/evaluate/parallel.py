"""Evaluation in other processes while training goes on here."""

from __future__ import annotations

import os
from concurrent.futures import BrokenExecutor, Future
from typing import Any, NamedTuple

from hindcast.errors import UserCodeError, UserError
from hindcast.evaluate.environment import EnvEvaluator, EnvReport
from hindcast.models.policy import Policy
from hindcast.orphans import end_with_parent

_MOST_DEATHS = 3

_evaluator: EnvEvaluator | None = None


class Playing(NamedTuple):
    """An evaluation under way: of which weights, with which seed, and its shares."""

    files: dict[str, bytes]
    seed: int
    parts: list[Future[EnvReport | UserError]]


class EvaluationWorkers:
    """Processes that each hold the evaluation's environments.

    The episodes of one evaluation are dealt out by index; each is the same whoever plays it, so the report
    does not depend on the number of workers.

    Args:
        evaluator: what one evaluation is.
        workers: number of processes.
    """

    def __init__(self, evaluator: EnvEvaluator, workers: int) -> None:
        self._evaluator = evaluator
        self._workers = workers
        self._pool = self._new_pool()

    def submit(self, policy: Policy, seed: int) -> Playing:
        """Begin an evaluation of the policy as it is now; collect it with `gather`."""
        return self._begin(policy.to_files(), seed)

    def gather(self, playing: Playing, timeout: float | None = None) -> EnvReport:
        """The report of an evaluation, its episodes in order of their index.

        Of an open-ended evaluation the parts that have not begun are dropped, all but the first. A worker that
        dies is replaced, and the evaluation done again.

        Args:
            playing: what `submit` returned.
            timeout: seconds to wait, None for ever.

        Raises:
            UserError: the environment raised, or keeps killing the workers.
            TimeoutError: no result in time.
        """
        for _ in range(_MOST_DEATHS):
            try:
                return _joined(playing.parts, timeout, self._evaluator.open_ended)
            except BrokenExecutor:
                self.close()
                self._pool = self._new_pool()
                playing = self._begin(playing.files, playing.seed)
        raise UserCodeError(
            f"evaluation runners died {_MOST_DEATHS} times in one evaluation: killed, out of memory, or a crash in "
            "native code of the environment"
        )

    def close(self) -> None:
        """Stop the processes, evaluating or not."""
        self._pool.shutdown(wait=True, kill_workers=True)

    def _new_pool(self) -> Any:
        import loky

        return loky.ProcessPoolExecutor(
            max_workers=self._workers,
            initializer=_hold,
            initargs=(self._evaluator, os.getpid()),
            timeout=None,
        )

    def _begin(self, files: dict[str, bytes], seed: int) -> Playing:
        shares = self._evaluator.shares(self._workers)
        try:
            parts = [self._pool.submit(_play, files, seed, share) for share in shares]
        except BrokenExecutor:  # a worker died while it had nothing to do
            self.close()
            self._pool = self._new_pool()
            parts = [self._pool.submit(_play, files, seed, share) for share in shares]
        return Playing(files, seed, parts)


def _joined(parts: list[Future[EnvReport | UserError]], timeout: float | None, open_ended: bool) -> EnvReport:
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


def _hold(evaluator: EnvEvaluator, parent: int) -> None:
    global _evaluator  # noqa: PLW0603  (one evaluator per worker process)
    end_with_parent(parent)
    _evaluator = evaluator


def _play(files: dict[str, bytes], seed: int, share: range | None) -> EnvReport | UserError:
    assert _evaluator is not None
    try:
        return _evaluator(Policy.from_files(files), seed, share)
    except UserError as error:
        return error
