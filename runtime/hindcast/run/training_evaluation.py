"""When a training is evaluated, and which checkpoint the result belongs to.

In parallel to training, the weights of iteration k are evaluated while k + 1 runs, and the result is used at the end
of k + 1 whatever the timing: so `stop` and the best checkpoint do not depend on how fast anything was.

A user's `EvaluationFunction` takes the place of the return in the environment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from hindcast.api import OfflineTraining
from hindcast.api.environment import EnvironmentSpec
from hindcast.errors import SpecError
from hindcast.evaluate.environment import EnvEvaluator, EnvReport
from hindcast.evaluate.parallel import EvaluationWorkers, RunningEvaluation
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.models.policy import Policy
from hindcast.names import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN
from hindcast.pipeline.rng import derive_seed
from hindcast.report.events import Reporter
from hindcast.report.results import ITERATION, Result
from hindcast.run.claim import title
from hindcast.run.placement import LOCAL, Placement
from hindcast.run.rllib_groups import EnvRunnerGroup, LocalEnvRunner
from hindcast.run.stop_criteria import is_due, measurement_hash, selection_metric
from hindcast.run.training_callbacks import TrainingCallbacks
from hindcast.user_code import Misuse, calling, definition_location, import_object

FIELD: Final = "spec.evaluation.customFunction"
_ALGORITHM: Final = ("algorithm", "algo")
_OURS, _RLLIBS = 3, 2
_ENVIRONMENTS = 8


@dataclass(frozen=True)
class Pending:
    """An evaluation that runs in parallel to training: of which iteration's weights, and the updates they had."""

    iteration: int
    updates: int
    playing: RunningEvaluation


class Evaluations:
    """Evaluates a training in its environment as its resource says.

    Args:
        resource: has an environment and an evaluation section, or nothing is ever due.
        reporter: receives notes on clamps and timeouts.

    Attributes:
        processes: other processes of this machine that evaluate in parallel to training.
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
        self._pending: Pending | None = None
        self._measured = measurement_hash(resource.spec)
        self._workers: EvaluationWorkers | None = None
        self.num_processes = 0
        if self._spec is None:
            return
        assert resource.spec.environment is not None
        duration, per_runner = self._spec.duration, self._spec.envs_per_runner
        self._evaluator = EnvEvaluator(
            resource.spec.environment,
            duration,
            self._spec.duration_unit,
            per_runner or _ENVIRONMENTS,
            self._spec.explore,
            callbacks=resource.spec.callbacks,
        )
        function = self._spec.custom_function
        self._function = function and EvaluationFunction(
            function, resource.spec.environment, self._spec.explore
        )
        if self.runs_in_parallel or (self._spec.runners and self._spec.custom_function is None):
            runners, note = placement.replicas(max(1, self._spec.runners), "evaluation runners")
            if note:
                reporter.note(title(resource), note)
            workers = placement.evaluation_workers(runners, self._evaluator)
            self._workers = EvaluationWorkers(self._evaluator, workers)
            self.num_processes = runners if self.runs_in_parallel and placement.is_one_machine else 0

    @property
    def pending_updates(self) -> int | None:
        """Updates of the weights under evaluation; a checkpoint keeps them."""
        return self._pending.updates if self._pending else None

    @property
    def runs_in_parallel(self) -> bool:
        """Whether evaluation runs in parallel to training."""
        return self._spec is not None and self._spec.parallel_to_training

    def due(self, iteration: int, at_end: bool = False) -> bool:
        """Whether the weights after this iteration are to be evaluated, in the course of the training or at its end."""
        return self._spec is not None and is_due(self._spec.interval, iteration, at_end)

    def evaluate(self, policy: Policy, iteration: int) -> Result:
        self._callbacks.call("on_evaluate_start")
        return self._ended(iteration, self._results(policy, self._seed(iteration)))

    def launch(self, policy: Policy, iteration: int, updates: int) -> None:
        """Begin an evaluation of the policy as it is now, in parallel to training."""
        assert self._workers is not None
        self._callbacks.call("on_evaluate_start")
        self._pending = Pending(iteration, updates, self._workers.submit(policy, self._seed(iteration)))

    def collect(self) -> Result | None:
        """The result of the evaluation under way, waited for; None where none is, or it took too long."""
        if self._pending is None or self._spec is None or self._workers is None:
            return None
        pending, self._pending = self._pending, None
        try:
            report = self._workers.gather(pending.playing, self._spec.sample_timeout_seconds)
        except TimeoutError:
            limit = self._spec.sample_timeout_seconds
            self._reporter.note(
                title(self._resource),
                f"the evaluation of iteration {pending.iteration} took over {limit:g} s and is left out "
                "(spec.evaluation.sampleTimeoutSeconds)",
            )
            return None
        result = self._ended(pending.iteration, self._of_report(report))
        checkpoint = next((found for found in self._store.all() if found.updates == pending.updates), None)
        if checkpoint is not None and selection_metric(self._resource.spec) == EPISODE_RETURN_MEAN:
            score = result[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN]
            self._store.mark_best(checkpoint, score, method=self._measured)
        return result

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()

    def _results(self, policy: Policy, seed: int) -> dict[str, Any]:
        if self._function:
            return self._function(policy, seed, self._callbacks.algorithm)
        workers = self._workers
        return self._of_report(
            workers.gather(workers.submit(policy, seed)) if workers else self._evaluator(policy, seed)
        )

    def _of_report(self, report: EnvReport) -> dict[str, Any]:
        assert self._spec is not None
        return {ENV_RUNNER_RESULTS: report.summary(self._spec.reference_returns)}

    def _seed(self, iteration: int) -> int:
        return derive_seed(self._resource.spec.seed, "evaluation", iteration)

    def _ended(self, iteration: int, results: dict[str, Any]) -> Result:
        result = {**results, ITERATION: iteration}
        self._callbacks.call("on_evaluate_end", evaluation_metrics=result)
        return result


class EvaluationFunction:
    """Calls `f(policy, environment, seed)` or `f(algorithm, eval_workers)`, told apart by their parameters.

    Args:
        path: "package.module:function".
        explore: runners sample actions.

    Raises:
        SpecError: there is no such function, or it takes other arguments.
        UserCodeError: importing it raised.
    """

    def __init__(self, path: str, environment: EnvironmentSpec, explore: bool) -> None:
        self._function: Callable[..., Any] = import_object(path, FIELD)
        self._in_rllibs_form = _in_rllibs_form(self._function, path)
        self._name = f"{FIELD} {path!r}"
        self._environment = environment
        self._explore = explore

    def __call__(self, policy: Policy, seed: int, algorithm: Any) -> dict[str, Any]:
        """The evaluation's results: what was measured stands under `env_runners`.

        Raises:
            UserCodeError: the function raised, or returned something else than metrics.
        """
        if not self._in_rllibs_form:
            with calling(self._name, self._function):
                found = self._function(policy, self._environment, seed)
                return {ENV_RUNNER_RESULTS: _checked(found, "a dictionary of metrics")}
        runner = LocalEnvRunner(self._environment, policy, seed, self._explore)
        try:
            with calling(self._name, self._function):
                return _results(self._function(algorithm, EnvRunnerGroup(runner)))
        finally:
            runner.close()


def _in_rllibs_form(function: Callable[..., Any], path: str) -> bool:
    signature = inspect.signature(function)
    if next(iter(signature.parameters), None) in _ALGORITHM:
        return True
    for count in (_OURS, _RLLIBS):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == _RLLIBS
    raise SpecError(
        f"{FIELD} {path!r} ({definition_location(function)}) takes ({', '.join(signature.parameters)}), expected "
        "(policy, environment, seed), or RLlib's (algorithm, eval_workers)."
    )


def _results(found: Any) -> dict[str, Any]:
    """Of RLlib's `(metrics, env_steps, agent_steps)`, or of the metrics alone."""
    wanted = "(metrics, env_steps, agent_steps), or a dictionary of metrics"
    steps: dict[str, int] = {}
    if isinstance(found, tuple):
        if len(found) != 3 or not isinstance(found[1], int) or not isinstance(found[2], int):
            types = ", ".join(type(each).__name__ for each in found)
            raise Misuse(f"returned ({types}); it must return {wanted}.")
        found, steps = found[0], {"num_env_steps": found[1]}
    metrics = _checked(found, wanted)
    if isinstance(own := metrics.get(ENV_RUNNER_RESULTS), Mapping):
        return {**metrics, ENV_RUNNER_RESULTS: {**steps, **own}}
    return {ENV_RUNNER_RESULTS: {**steps, **metrics}}


def _checked(found: Any, wanted: str) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise Misuse(f"returned a {type(found).__name__}; it must return {wanted}.")
    try:
        metrics: dict[str, Any] = orjson.loads(orjson.dumps(dict(found), option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        raise Misuse(f"returned metrics that are not JSON ({error}).") from error
    own = metrics.get(ENV_RUNNER_RESULTS, metrics)
    value = own.get(EPISODE_RETURN_MEAN, 0.0) if isinstance(own, Mapping) else 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misuse(f"returned {EPISODE_RETURN_MEAN} {value!r}; it must be a number.")
    return metrics
