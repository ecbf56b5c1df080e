"""The algorithm of a training, with its options."""

from __future__ import annotations

from hindcast.algorithms import build, resolve
from hindcast.api import OfflineTraining
from hindcast.api.options import is_custom
from hindcast.errors import SpecError
from hindcast.learn.algorithm import Algorithm


def make_algorithm(resource: OfflineTraining) -> Algorithm:
    """Build the resource's algorithm with its options.

    Raises:
        SpecError: there is no such algorithm, an option is invalid, the algorithm does not train offline, or the
            resource has a sampler and the algorithm cannot learn from live samples.
    """
    spec = resource.spec
    algorithm_class = resolve(spec.algorithm)
    if "OfflineTraining" not in algorithm_class.kinds:
        raise SpecError(
            f"{spec.algorithm} learns in an environment, not from recorded data.",
            field="spec.algorithm",
        )
    if spec.sampler is not None and not algorithm_class.can_train_online:
        raise SpecError(
            f"has a sampler, but {spec.algorithm} learns from recorded data only: remove the sampler. If "
            "the losses of the class are valid for actions of any policy, and its own policy explores, set "
            "can_train_online = True in the class.",
            field="spec.input",
        )
    if is_custom(spec.algorithm):
        return build(spec.algorithm, spec.custom_config or {}, field="spec.customConfig")
    return build(spec.algorithm, spec.config, field="spec.config")
