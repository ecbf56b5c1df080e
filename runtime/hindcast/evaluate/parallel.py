"""Evaluate policies in other processes while training continues in this one."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, Future
from typing import NamedTuple

from hindcast.errors import UserError, WorkerLost, catch_user_error, unwrap
from hindcast.evaluate.environment import EnvEvaluator, EnvReport
from hindcast.models.policy import Policy
from hindcast.worker_processes import Workers

_MAX_DEATHS = 3
"""Deaths of workers in one evaluation after which it fails."""

ReportOrError = EnvReport | UserError
"""The report of a range of episodes, or the error that the user's code raised while it was played."""


class RunningEvaluation(NamedTuple):
    """A running evaluation: the policy's files, the seed, and a future for each range of episodes."""

    files: dict[str, bytes]
    seed: int
    futures: list[Future[ReportOrError]]


class EvaluationWorkers:
    """Evaluates policies in other processes.

    The episodes of one evaluation are assigned to workers by index. An episode is the same in each worker, so the
    report does not depend on the number of workers.

    Args:
        evaluator: definition of one evaluation.
        workers: the processes, which keep the evaluator; `close` stops them.
    """

    def __init__(self, evaluator: EnvEvaluator, workers: Workers[EnvEvaluator]) -> None:
        self._evaluator = evaluator
        self._workers = workers

    def submit(self, policy: Policy, seed: int) -> RunningEvaluation:
        """Start an evaluation of the policy's current weights; collect it with `gather`."""
        return self._begin(self._workers.share(policy.to_files()), seed)

    def gather(self, evaluation: RunningEvaluation, timeout: float | None = None) -> EnvReport:
        """Wait for an evaluation; return its report, with the episodes in order of their index.

        Of an open-ended evaluation, ranges that have not started are cancelled, except the first. If a worker dies,
        `workers` replaces it, and the evaluation is repeated, at most twice.

        Args:
            evaluation: the result of `submit`.
            timeout: seconds to wait for each range of episodes in turn; None waits indefinitely.

        Raises:
            UserError: the environment raised.
            WorkerLost: workers died in three attempts.
            TimeoutError: a range did not finish in time.
        """
        for attempt in range(1, _MAX_DEATHS + 1):
            try:
                return _merge_reports(evaluation.futures, timeout, self._evaluator.is_open_ended)
            except BrokenExecutor:
                if attempt < _MAX_DEATHS:
                    evaluation = self._begin(evaluation.files, evaluation.seed)
        raise WorkerLost(
            f"evaluation runners died {_MAX_DEATHS} times in one evaluation: they were killed, ran out of memory, or "
            "the environment's native code crashed"
        )

    def close(self) -> None:
        """Stop the processes; running evaluations are abandoned."""
        self._workers.close()

    def _begin(self, files: dict[str, bytes], seed: int) -> RunningEvaluation:
        ranges = self._evaluator.episode_ranges(self._workers.num_workers)
        return RunningEvaluation(
            files, seed, [self._workers.submit(_play, files, seed, episodes) for episodes in ranges]
        )


def _merge_reports(
    futures: list[Future[ReportOrError]], timeout: float | None, is_open_ended: bool
) -> EnvReport:
    # A range that has started cannot be cancelled. The first one always counts, so that no report is empty.
    live_futures = [
        future for index, future in enumerate(futures) if not (is_open_ended and index and future.cancel())
    ]
    reports = [unwrap(result) for result in [future.result(timeout) for future in live_futures]]
    return EnvReport(
        returns=[value for report in reports for value in report.returns],
        lengths=[value for report in reports for value in report.lengths],
        callback_metrics=[value for report in reports for value in report.callback_metrics],
    )


def _play(
    evaluator: EnvEvaluator, files: dict[str, bytes], seed: int, episodes: range | None
) -> ReportOrError:
    """Play a range of episodes with a saved policy."""
    return catch_user_error(lambda: evaluator(Policy.from_files(files), seed, episodes))
