"""A user's evaluation in place of the return: as ours, `f(policy, environment, seed)`, or in RLlib's form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from hindcast.api.environment import EnvironmentSpec
from hindcast.errors import SpecError
from hindcast.models.policy import Policy
from hindcast.names import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN
from hindcast.run.env_runners import EnvRunnerGroup, LocalEnvRunner
from hindcast.user_code import Misuse, calling, definition, import_object

FIELD: Final = "spec.evaluation.customFunction"
_ALGORITHM: Final = ("algorithm", "algo")
_OURS, _RLLIBS = 3, 2


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
        f"{FIELD} {path!r} ({definition(function)}) takes ({', '.join(signature.parameters)}), expected "
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
