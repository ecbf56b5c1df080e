"""Evaluation in other processes while training continues here."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, Future
from typing import NamedTuple

from hindcast.errors import UserError, WorkerLost, catch_user_error, unwrap
from hindcast.evaluate.environment import EnvEvaluator, EnvReport
from hindcast.models.policy import Policy
from hindcast.worker_processes import Workers

_MOST_DEATHS = 3

Played = EnvReport | UserError
"""A share of an evaluation, or the user's mistake in it."""


class RunningEvaluation(NamedTuple):
    """An evaluation under way: of which weights, with which seed, and its shares."""

    files: dict[str, bytes]
    seed: int
    futures: list[Future[Played]]


class EvaluationWorkers:
    """Evaluates in other processes.

    The episodes of one evaluation are dealt out by index; each is the same whoever plays it, so the report
    does not depend on the number of workers.

    Args:
        evaluator: what one evaluation is.
        workers: the processes, which keep the evaluator; they are closed with this.
    """

    def __init__(self, evaluator: EnvEvaluator, workers: Workers[EnvEvaluator]) -> None:
        self._evaluator = evaluator
        self._workers = workers

    def submit(self, policy: Policy, seed: int) -> RunningEvaluation:
        """Begin an evaluation of the policy as it is now; collect it with `gather`."""
        return self._begin(self._workers.share(policy.to_files()), seed)

    def gather(self, playing: RunningEvaluation, timeout: float | None = None) -> EnvReport:
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
                return _joined(playing.futures, timeout, self._evaluator.is_open_ended)
            except BrokenExecutor:
                playing = self._begin(playing.files, playing.seed)
        raise WorkerLost(
            f"evaluation runners died {_MOST_DEATHS} times in one evaluation: killed, out of memory, or a crash in "
            "native code of the environment"
        )

    def close(self) -> None:
        """Stop the processes, evaluating or not."""
        self._workers.close()

    def _begin(self, files: dict[str, bytes], seed: int) -> RunningEvaluation:
        shares = self._evaluator.episode_ranges(self._workers.num_workers)
        return RunningEvaluation(
            files, seed, [self._workers.submit(_play, files, seed, share) for share in shares]
        )


def _joined(parts: list[Future[Played]], timeout: float | None, open_ended: bool) -> EnvReport:
    begun = [part for number, part in enumerate(parts) if not (open_ended and number and part.cancel())]
    reports = [unwrap(found) for found in [part.result(timeout) for part in begun]]
    return EnvReport(
        returns=[value for report in reports for value in report.returns],
        lengths=[value for report in reports for value in report.lengths],
        callback_metrics=[value for report in reports for value in report.callback_metrics],
    )


def _play(evaluator: EnvEvaluator, files: dict[str, bytes], seed: int, share: range | None) -> Played:
    """Play one share with a saved policy."""
    return catch_user_error(lambda: evaluator(Policy.from_files(files), seed, share))
