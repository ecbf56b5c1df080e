"""Evaluation of a training in its environment, between iterations or in parallel to them.

In parallel, the weights of iteration k are evaluated while iteration k + 1 trains. The result is used at the end of
k + 1, regardless of when it is ready, so that `stop` and the best checkpoint do not depend on timing.

A user's `EvaluationFunction` replaces playing in the environment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

import orjson

from hindcast.api import OfflineTraining
from hindcast.api.environment import EnvironmentSpec
from hindcast.errors import SpecError
from hindcast.evaluate.environment import EnvEvaluator, EnvReport
from hindcast.evaluate.parallel import EvaluationWorkers, RunningEvaluation
from hindcast.formatting import describe_type
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.models.policy import Policy
from hindcast.names import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN
from hindcast.pipeline.rng import derive_seed
from hindcast.report.events import Reporter
from hindcast.report.results import ITERATION, Result
from hindcast.run.callbacks import TrainingCallbacks
from hindcast.run.claim import title
from hindcast.run.placement import LOCAL, Placement
from hindcast.run.stop_criteria import is_due, measurement_hash, selection_metric
from hindcast.user_code import Misuse, calling, definition_location, import_object

FIELD: Final = "spec.evaluation.customFunction"
NUM_ARGUMENTS: Final = 3
"""Number of arguments of an evaluation function: policy, environment, seed."""
_DEFAULT_NUM_ENVIRONMENTS = 8
"""Environments of a process if `evaluation.envsPerRunner` is not set."""


@dataclass(frozen=True)
class PendingEvaluation:
    """An evaluation that runs in parallel to training.

    Attributes:
        iteration: iteration after which the weights were taken.
        updates: number of updates of these weights.
        evaluation: handle of the running evaluation.
    """

    iteration: int
    updates: int
    evaluation: RunningEvaluation


class Evaluations:
    """Evaluates a training in its environment as its resource says.

    Args:
        resource: the training; without an environment and an evaluation section, no evaluation is ever due.
        store: checkpoints of the training, for their scores.
        reporter: receives notes if fewer runners start than requested, and on timeouts.
        placement: starts the processes that evaluate.
        callbacks: callbacks of the training.

    Attributes:
        num_processes: number of processes on this machine that evaluate in parallel to training.
    """

    def __init__(
        self,
        resource: OfflineTraining,
        store: CheckpointStore,
        reporter: Reporter,
        placement: Placement = LOCAL,
        callbacks: TrainingCallbacks | None = None,
    ) -> None:
        self._spec = resource.spec.evaluation_in_environment
        self._resource = resource
        self._store = store
        self._reporter = reporter
        self._callbacks = callbacks or TrainingCallbacks()
        self._pending: PendingEvaluation | None = None
        self._measurement_hash = measurement_hash(resource.spec)
        self._workers: EvaluationWorkers | None = None
        self.num_processes = 0
        if self._spec is None:
            return
        assert resource.spec.environment is not None
        duration, envs_per_runner = self._spec.duration, self._spec.envs_per_runner
        self._evaluator = EnvEvaluator(
            resource.spec.environment,
            duration,
            self._spec.duration_unit,
            envs_per_runner or _DEFAULT_NUM_ENVIRONMENTS,
            self._spec.explore,
            callbacks=resource.spec.callbacks,
        )
        function = self._spec.custom_function
        self._function = function and EvaluationFunction(
            function, resource.spec.environment, self._spec.explore
        )
        if self._spec.num_runners:
            num_runners, note = placement.num_replicas(self._spec.num_runners, "evaluation runners")
            if note:
                reporter.note(title(resource), note)
            workers = placement.start_evaluation_workers(num_runners, self._evaluator)
            self._workers = EvaluationWorkers(self._evaluator, workers)
            # These processes compute while the learner trains, so its torch gets fewer threads.
            self.num_processes = num_runners if self.runs_in_parallel and placement.is_one_machine else 0

    @property
    def pending_updates(self) -> int | None:
        """Number of updates of the weights under evaluation, which a resumed run evaluates again; None if none runs."""
        return self._pending.updates if self._pending else None

    @property
    def runs_in_parallel(self) -> bool:
        """True if evaluation runs in parallel to training."""
        return self._spec is not None and self._spec.parallel_to_training

    def is_due(self, iteration: int, at_end: bool = False) -> bool:
        """Return True if the weights after this iteration should be evaluated, during the training or at its end."""
        return self._spec is not None and is_due(self._spec.interval, iteration, at_end)

    def evaluate(self, policy: Policy, iteration: int) -> Result:
        """Evaluate the policy's current weights, which are those after `iteration`, and wait for the result."""
        self._callbacks.call("on_evaluate_start")
        return self._finish(iteration, self._evaluate_policy(policy, self._derive_seed(iteration)))

    def launch(self, policy: Policy, iteration: int, updates: int) -> None:
        """Start evaluating the policy's current weights in parallel to training."""
        assert self._workers is not None
        self._callbacks.call("on_evaluate_start")
        self._pending = PendingEvaluation(
            iteration, updates, self._workers.submit(policy, self._derive_seed(iteration))
        )

    def collect(self) -> Result | None:
        """Wait for the parallel evaluation and return its result; None if no evaluation runs, or if it timed out.

        If checkpoints are selected by return and this return is the highest so far, the checkpoint of the evaluated
        weights is marked as the best one.
        """
        if self._pending is None or self._spec is None or self._workers is None:
            return None
        pending, self._pending = self._pending, None
        try:
            report = self._workers.gather(pending.evaluation, self._spec.sample_timeout_seconds)
        except TimeoutError:
            timeout_seconds = self._spec.sample_timeout_seconds
            self._reporter.note(
                title(self._resource),
                f"the evaluation of iteration {pending.iteration} took more than {timeout_seconds:g} s and is skipped "
                "(spec.evaluation.sampleTimeoutSeconds)",
            )
            return None
        result = self._finish(pending.iteration, self._results_from_report(report))
        if selection_metric(self._resource.spec) == EPISODE_RETURN_MEAN:
            score = result[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN]
            for checkpoint in self._store.all():
                if checkpoint.updates == pending.updates:
                    self._store.mark_best(checkpoint, score, method=self._measurement_hash)
        return result

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()

    def _evaluate_policy(self, policy: Policy, seed: int) -> dict[str, Any]:
        if self._function:
            return self._function(policy, seed, self._callbacks.algorithm)
        workers = self._workers
        return self._results_from_report(
            workers.gather(workers.submit(policy, seed)) if workers else self._evaluator(policy, seed)
        )

    def _results_from_report(self, report: EnvReport) -> dict[str, Any]:
        assert self._spec is not None
        return {ENV_RUNNER_RESULTS: report.summary(self._spec.reference_returns)}

    def _derive_seed(self, iteration: int) -> int:
        return derive_seed(self._resource.spec.seed, "evaluation", iteration)

    def _finish(self, iteration: int, results: dict[str, Any]) -> Result:
        result = {**results, ITERATION: iteration}
        self._callbacks.call("on_evaluate_end", evaluation_metrics=result)
        return result


class EvaluationFunction:
    """A user's function `f(policy, environment, seed)`, or a function with other parameters that an adapter converts.

    A package registers its `FunctionAdapter` under the entry point group "hindcast.evaluation_functions".

    Args:
        path: "package.module:function".
        environment: environment of the training, for the function.
        explore: True if the policy should sample its actions; only adapters receive it.

    Raises:
        SpecError: there is no function at the path, or it takes other arguments.
        UserCodeError: importing it raised an exception.
    """

    def __init__(self, path: str, environment: EnvironmentSpec, explore: bool) -> None:
        function: Callable[..., Any] = import_object(path, FIELD)
        self._name = repr(path)
        self._environment = environment
        self._function = function
        self._adapted_function = next(
            (
                adapted_function
                for entry in entry_points(group="hindcast.evaluation_functions")
                if (adapted_function := entry.load()(function, environment, explore))
            ),
            None,
        )
        if self._adapted_function is None and not accepts_positional(function, NUM_ARGUMENTS):
            parameters = ", ".join(inspect.signature(function).parameters)
            raise SpecError(
                f"{self._name} ({definition_location(function)}) takes ({parameters}), expected "
                "(policy, environment, seed), or RLlib's (algorithm, eval_workers).",
                field=FIELD,
            )

    def __call__(self, policy: Policy, seed: int, algorithm: Any) -> dict[str, Any]:
        """Return the evaluation's results, with metrics under `env_runners`.

        Args:
            policy: the policy to evaluate.
            seed: seed of the evaluation.
            algorithm: the object that callbacks receive, for functions of another form.

        Raises:
            UserCodeError: the function raised an exception, or did not return metrics.
        """
        with calling(self._name, self._function, FIELD):
            if self._adapted_function is not None:
                return self._adapted_function(policy, seed, algorithm)
            metrics = self._function(policy, self._environment, seed)
            return {ENV_RUNNER_RESULTS: metrics_to_json(metrics, "a dictionary of metrics")}


class FunctionAdapter(Protocol):
    """Converts a user's evaluation function whose parameters are not (policy, environment, seed)."""

    def __call__(
        self, function: Callable[..., Any], environment: EnvironmentSpec, explore: bool
    ) -> Callable[[Policy, int, Any], dict[str, Any]] | None:
        """Return a function of (policy, seed, algorithm) that returns results; None if this adapter does not apply."""


def accepts_positional(function: Callable[..., Any], count: int) -> bool:
    """Return True if a function can be called with `count` positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def metrics_to_json(result: Any, expected: str) -> dict[str, Any]:
    """Convert the metrics that a user's function returned to JSON values.

    Args:
        result: value that the function returned: metrics, flat or under `env_runners`.
        expected: description of a valid value, for messages.

    Raises:
        Misuse: the result is no mapping, is not JSON, or has a mean return that is not a number.
    """
    if not isinstance(result, Mapping):
        raise Misuse(f"returned {describe_type(result)}; it must return {expected}.")
    try:
        metrics: dict[str, Any] = orjson.loads(orjson.dumps(dict(result), option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        raise Misuse(f"returned metrics that are not JSON ({error}).") from error
    env_runner_results = metrics.get(ENV_RUNNER_RESULTS, metrics)
    if isinstance(env_runner_results, Mapping):
        mean_return = env_runner_results.get(EPISODE_RETURN_MEAN, 0.0)
        if isinstance(mean_return, bool) or not isinstance(mean_return, int | float):
            raise Misuse(f"returned {EPISODE_RETURN_MEAN} {mean_return!r}; it must be a number.")
    return metrics
