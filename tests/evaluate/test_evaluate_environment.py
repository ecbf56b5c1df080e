"""Evaluation in an environment: seeded, unbiased, independent of the number of workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hindcast.api import EnvironmentSpec
from hindcast.api.evaluation import ReferenceReturns
from hindcast.errors import WorkerLost
from hindcast.evaluate.environment import EnvEvaluator, EnvReport, evaluate_policy
from hindcast.evaluate.parallel import EvaluationWorkers
from hindcast.models.policy import Policy
from hindcast.worker_processes import WorkerProcesses
from support import WALK, add_position_dependence, make_policy
from toy_environments import Walk

ENVIRONMENT = EnvironmentSpec.model_validate(WALK)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy(WALK, fcnetHiddens=[64, 64], frameStack=2)


@pytest.fixture
def workers() -> Iterator[list[EvaluationWorkers]]:
    """Return an empty list; workers that a test adds to it are closed after the test."""
    pools: list[EvaluationWorkers] = []
    yield pools
    for pool in pools:
        pool.close()


def make_workers(evaluator: EnvEvaluator, num_workers: int) -> EvaluationWorkers:
    return EvaluationWorkers(evaluator, WorkerProcesses(num_workers, evaluator))


class TestReport:
    def test_summary_has_statistics_under_rllib_names(self) -> None:
        summary = EnvReport([1.0, 2.0, 6.0], [4, 5, 6]).summary()
        assert summary == {
            "episode_return_mean": 3.0,
            "episode_return_min": 1.0,
            "episode_return_max": 6.0,
            "episode_return_std": pytest.approx(np.sqrt(14 / 3)),
            "episode_return_median": 2.0,
            "episode_return_iqm": 3.0,
            "episode_return_interval": (pytest.approx(4 / 3), pytest.approx(14 / 3)),
            "episode_len_mean": 5.0,
            "num_episodes": 3,
            "num_env_steps": 15,
        }

    def test_summary_has_interquartile_mean_and_interval(self) -> None:
        returns = np.random.default_rng(0).normal(50, 10, 400)
        summary = EnvReport([*returns, 1e4], [1] * 401).summary()
        assert summary["episode_return_iqm"] == pytest.approx(50, abs=1)
        assert summary["episode_return_median"] == pytest.approx(50, abs=1)
        low, high = EnvReport([*returns], [1] * 400).summary()["episode_return_interval"]
        assert high - low == pytest.approx(2 * 1.645 * returns.std() / 20, rel=0.1)

    def test_normalised_score_is_0_for_random_and_100_for_expert(self) -> None:
        reference = ReferenceReturns(random=-10, expert=30)
        for episode_return, score in ((-10, 0), (0, 25), (30, 100)):
            summary = EnvReport([episode_return], [1]).summary(reference)
            assert summary["normalised_score"] == score

    def test_same_seed_gives_same_report(self, policy: Policy) -> None:
        for explore in (False, True):
            reports = [evaluate_policy(policy, ENVIRONMENT, seed=seed, explore=explore) for seed in (0, 0, 1)]
            assert reports[0] == reports[1]
            assert reports[0] != reports[2]

    def test_greedy_and_exploring_policies_have_different_returns(self, policy: Policy) -> None:
        greedy, exploring = (
            evaluate_policy(policy, ENVIRONMENT, duration=50, explore=explore) for explore in (False, True)
        )
        assert greedy.lengths == exploring.lengths
        assert greedy.returns != exploring.returns

    def test_evaluation_leaves_policy_unchanged(self, policy: Policy) -> None:
        digest_before = policy.digest
        evaluate_policy(policy, ENVIRONMENT)
        assert policy.digest == digest_before

    @pytest.mark.parametrize("duration", [1, 3, 8, 20])
    def test_report_has_requested_number_of_episodes(self, policy: Policy, duration: int) -> None:
        report = evaluate_policy(policy, ENVIRONMENT, duration=duration)
        assert len(report.returns) == len(report.lengths) == duration

    @pytest.mark.parametrize("duration", [1, 40, 400])
    def test_duration_in_timesteps_plays_shortest_prefix(self, policy: Policy, duration: int) -> None:
        report = evaluate_policy(policy, ENVIRONMENT, duration=duration, unit="timesteps", num_envs=4)
        assert sum(report.lengths) >= duration > sum(report.lengths[:-1])

    def test_duration_in_timesteps_is_not_biased_to_short_episodes(self) -> None:
        policy = add_position_dependence(make_policy(WALK))
        by_steps = evaluate_policy(policy, ENVIRONMENT, duration=300, unit="timesteps", num_envs=4)
        num_episodes = len(by_steps.lengths)
        by_episodes = evaluate_policy(policy, ENVIRONMENT, duration=num_episodes, num_envs=4)
        assert by_steps == by_episodes


@pytest.mark.slow
class TestWorkers:
    @pytest.mark.parametrize(
        "evaluator",
        [
            EnvEvaluator(ENVIRONMENT, 21, num_envs=4),
            EnvEvaluator(ENVIRONMENT, 21, num_envs=4, explore=True),
            EnvEvaluator(ENVIRONMENT, 1, num_envs=4),
            EnvEvaluator(ENVIRONMENT, 90, "timesteps", num_envs=4),
        ],
        ids=["greedy", "exploring", "one episode", "timesteps"],
    )
    def test_report_equals_that_of_one_process(
        self, policy: Policy, workers: list[EvaluationWorkers], evaluator: EnvEvaluator
    ) -> None:
        expected = evaluator(policy, seed=5)
        for num_workers in (1, 3):
            workers.append(make_workers(evaluator, num_workers))
            assert workers[-1].gather(workers[-1].submit(policy, 5)) == expected

    def test_submit_evaluates_weights_at_its_call(
        self, workers: list[EvaluationWorkers], tmp_path: Path
    ) -> None:
        evaluator, policy = EnvEvaluator(ENVIRONMENT, 30), make_policy(WALK)
        expected = evaluator(policy, seed=0)
        workers.append(make_workers(evaluator, 1))
        evaluation = workers[-1].submit(policy, 0)
        for parameter in policy.module.parameters():
            parameter.data.neg_()
        assert workers[-1].gather(evaluation) == expected
        assert evaluator(policy, seed=0) != expected

    def test_report_is_equal_when_kernels_round_by_position(self) -> None:
        """Play each range of episodes separately, as a worker process does."""
        policy = add_position_dependence(make_policy(WALK))
        evaluator = EnvEvaluator(ENVIRONMENT, 21, num_envs=4, explore=True)
        expected = evaluator(policy, seed=5)
        for num_workers in (1, 2, 3, 21):
            reports = [evaluator(policy, 5, episodes) for episodes in evaluator.episode_ranges(num_workers)]
            assert [value for report in reports for value in report.returns] == expected.returns

    def test_episode_ranges_are_consecutive_and_complete(self) -> None:
        for duration in (1, 2, 7, 50):
            for num_workers in (1, 2, 3, 8):
                ranges = EnvEvaluator(ENVIRONMENT, duration).episode_ranges(num_workers)
                assert [index for episodes in ranges for index in episodes or ()] == list(range(duration))
                assert 1 <= len(ranges) <= num_workers

    def test_open_ended_evaluation_plays_at_least_one_whole_round(
        self, policy: Policy, workers: list[EvaluationWorkers]
    ) -> None:
        evaluator = EnvEvaluator(ENVIRONMENT, "auto", num_envs=4)
        workers.append(make_workers(evaluator, 2))
        report = workers[-1].gather(workers[-1].submit(policy, 5))
        assert len(report.returns) % 4 == 0
        assert len(report.returns) >= 4
        num_episodes = len(report.returns)
        assert report == EnvEvaluator(ENVIRONMENT, num_episodes, num_envs=4)(policy, 5)

    def test_workers_that_keep_dying_raise_worker_lost(self, workers: list[EvaluationWorkers]) -> None:
        policy = make_policy(WALK)
        evaluator = EnvEvaluator(EnvironmentSpec(id="test_evaluate_environment:CrashingWalk"), 4)
        workers.append(make_workers(evaluator, 1))
        with pytest.raises(WorkerLost, match="evaluation runners died 3 times"):
            workers[-1].gather(workers[-1].submit(policy, 0))


class DeadWorkers:
    """Workers of which each call fails because its process was killed."""

    num_workers = 2
    num_calls = 0

    def submit(self, *_: object) -> Future[Any]:
        self.num_calls += 1
        future: Future[Any] = Future()
        future.set_exception(BrokenExecutor())
        return future

    def share(self, value: Any) -> Any:
        return value

    def close(self) -> None: ...


def test_evaluation_is_not_started_again_after_last_death() -> None:
    dead_workers = DeadWorkers()
    evaluation_workers = EvaluationWorkers(EnvEvaluator(ENVIRONMENT, 4), dead_workers)
    with pytest.raises(WorkerLost):
        evaluation_workers.gather(evaluation_workers.submit(make_policy(WALK), 0))
    assert dead_workers.num_calls == 3 * dead_workers.num_workers


class CrashingWalk(Walk):
    """An environment that ends its process in the first step."""

    def step(self, action: object) -> None:  # type: ignore[override]
        os._exit(3)
