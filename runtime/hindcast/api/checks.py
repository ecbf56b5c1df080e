"""Checks of a resource's algorithm without importing it: its options, and the fields that must fit it.

Checks that need the spaces of the environment or of the data run when networks are built, in `hindcast plan` or a run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import ValidationError

from hindcast.api.model import Distribution, ModelSpec
from hindcast.api.options import algorithms, is_custom, live_algorithms, options_model, schemas
from hindcast.api.sentences import nearest, problems_of
from hindcast.api.spelling import Spelling
from hindcast.errors import Problem, Steps

Spec = Mapping[str, Any]
"""Plain, unchecked values: the spec of an OfflineTraining, or the policy.train of an OfflineRecording."""

NO_FILTER_STATISTICS: Final = (
    "is MeanStd, which computes its statistics from recorded data, but there are no recorded data: leave "
    "it out, and scale observations in a wrapper of the environment"
)
PRIORITIES_WITH_STREAMING: Final = (
    "is Streaming, but spec.config.prioritizedReplay draws from all data: set it to Auto or Resident"
)
_NOT_RECURRENT: Final = ("None", "none")
"""`model.recurrent` of a policy without a recurrent layer, in YAML's and in Python's spelling."""
PRIORITIES_WITH_REPLACEMENT: Final = (
    "is WithReplacement, but spec.config.prioritizedReplay draws by priority: leave it out"
)


def check_algorithm(kind: str, spec: Spec, path: Steps, spelling: Spelling | None = None) -> list[Problem]:
    """List the problems with a resource's algorithm, its options, and the fields that must fit it.

    Args:
        kind: the resource's kind.
        spec: the part of the resource that has `algorithm`, `config` and `model`.
        path: path of that part (`("spec",)`).
        spelling: allowed spelling of enums, `IN_YAML` or `EITHER_SPELLING`; None for values from Python.
    """
    algorithm = spec.get("algorithm")
    if not isinstance(algorithm, str):
        return []
    if problem := _algorithm_name_problem(kind, algorithm):
        return [Problem((*path, "algorithm"), problem)]
    checks = _CUSTOM_CHECKS if is_custom(algorithm) else _CHECKS[kind]
    problems = [problem for check in checks for problem in check(algorithm, spec)]
    return [
        *_check_options(algorithm, spec.get("config", {}), (*path, "config"), spelling),
        *(Problem((*path, *problem.field), problem.what) for problem in problems),
    ]


def _algorithm_name_problem(kind: str, algorithm: str) -> str | None:
    """Describe why a resource of this kind cannot use the algorithm, or return None."""
    usable_algorithms = algorithms(kind)
    if algorithm in usable_algorithms or (is_custom(algorithm) and kind == "OfflineTraining"):
        return None
    if algorithm not in schemas():
        return f"is '{algorithm}', which is not an algorithm{nearest(algorithm, usable_algorithms)}"
    return f"is {algorithm}, which an {kind} cannot use; it can use {', '.join(usable_algorithms)}"


def _check_options(algorithm: str, config: Any, path: Steps, spelling: Spelling | None) -> Iterator[Problem]:
    if algorithm not in schemas() or not isinstance(config, dict):
        return
    owners = {
        option: [name for name, schema in schemas().items() if option in schema["properties"]]
        for option in config
    }
    foreign_options = {option: names for option, names in owners.items() if names and algorithm not in names}
    for option, names in foreign_options.items():
        yield Problem((*path, option), f"does not apply to {algorithm}; it is a field of {', '.join(names)}")
    applicable_options = {name: value for name, value in config.items() if name not in foreign_options}
    try:
        options_model(algorithm).model_validate(applicable_options, context=spelling)
    except ValidationError as error:
        yield from problems_of(error, options_model(algorithm), applicable_options, path)


def _check_model(algorithm: str, spec: Spec) -> Iterator[Problem]:
    schema = schemas()[algorithm]
    recurrent = _get_nested(spec, "model", "recurrent") or "None"
    if recurrent not in _NOT_RECURRENT and not schema.get("x-recurrent"):
        yield Problem(
            ("model", "recurrent"),
            f"is '{recurrent}', but {algorithm} learns from single timesteps and cannot train a recurrent policy",
        )
    if schema.get("x-own-policy") and _get_nested(spec, "model", "moduleClass") is not None:
        yield Problem(
            ("model", "moduleClass"),
            f"does not apply to {algorithm}, which builds its own policy: leave it out",
        )
    distribution, trainable = _get_nested(spec, "model", "distribution"), schema.get("x-distributions")
    distributions = {ModelSpec.in_yaml("distribution", name): name for name in get_args(Distribution)}
    if trainable and isinstance(distribution, str):
        name = distributions.get(distribution, distribution)
        if name in distributions.values() and name not in trainable:
            yield Problem(("model", "distribution"), untrainable_problem(name, algorithm, trainable))


def untrainable_problem(distribution: str, algorithm: str, trainable: Iterable[str]) -> str:
    """Describe that an algorithm cannot train a distribution, and name the `trainable` distributions as in YAML."""
    spelling, *usable_spellings = (
        ModelSpec.in_yaml("distribution", name) for name in (distribution, *trainable)
    )
    return f"is '{spelling}', which {algorithm} cannot train: use {', '.join(usable_spellings)}"


def _check_sequences(algorithm: str, spec: Spec) -> Iterator[Problem]:
    """Check that a batch has at least the timesteps of one sequence of a recurrent policy."""
    schema = schemas()[algorithm]
    if not schema.get("x-recurrent") or (_get_nested(spec, "model", "recurrent") or "None") in _NOT_RECURRENT:
        return
    name = "trainBatchSizePerLearner"
    length = _get_nested(spec, "model", "maxSeqLen") or ModelSpec.model_fields["max_seq_len"].default
    batch_size = _get_nested(spec, "config", name) or schema["properties"][name]["default"]
    if isinstance(length, int | float) and isinstance(batch_size, int | float) and length > batch_size:
        yield Problem(
            ("model", "maxSeqLen"), f"is {length}, expected at most spec.config.{name}, {batch_size}"
        )


def _check_samplers(algorithm: str, spec: Spec) -> Iterator[Problem]:
    for index, source in enumerate(_sources(spec)):
        if isinstance(source.get("sampler"), dict) and algorithm not in live_algorithms():
            yield _sampler_problem(algorithm, live_algorithms(), ("input", index, "sampler"))


def _check_expert_sampler(algorithm: str, spec: Spec) -> Iterator[Problem]:
    if isinstance(spec.get("sampler"), dict) and algorithm not in live_algorithms():
        experts = [name for name in live_algorithms() if name in algorithms("OfflineRecording")]
        yield _sampler_problem(algorithm, experts, ("sampler",))


def _sampler_problem(algorithm: str, usable_algorithms: list[str], path: Steps) -> Problem:
    return Problem(path, f"does not apply to {algorithm}; it is an option for {', '.join(usable_algorithms)}")


def _check_filter(_: str, spec: Spec) -> Iterator[Problem]:
    if _sources(spec) and not _has_recorded_data(spec):
        yield from _filter_problems(spec)


def _check_expert_filter(algorithm: str, spec: Spec) -> Iterator[Problem]:
    if algorithm in live_algorithms():
        yield from _filter_problems(spec)


def _filter_problems(spec: Spec) -> Iterator[Problem]:
    # The checkpoint that the training starts from contains statistics.
    if (
        _get_nested(spec, "model", "observationFilter") in ("MeanStd", "meanStd")
        and spec.get("initialCheckpoint") is None
    ):
        yield Problem(("model", "observationFilter"), NO_FILTER_STATISTICS)


def _check_priorities(_: str, spec: Spec) -> Iterator[Problem]:
    if _get_nested(spec, "config", "prioritizedReplay") is not True or not _has_recorded_data(spec):
        return
    if _get_nested(spec, "pipeline", "residency") == "Streaming":
        yield Problem(("pipeline", "residency"), PRIORITIES_WITH_STREAMING)
    if _get_nested(spec, "pipeline", "sampling") == "WithReplacement":
        yield Problem(("pipeline", "sampling"), PRIORITIES_WITH_REPLACEMENT)


def _check_compiling(algorithm: str, spec: Spec) -> Iterator[Problem]:
    if _get_nested(spec, "learners", "compile") is True and not schemas()[algorithm].get("x-compiled"):
        reason = f"is true, but torch.compile does not support the losses of {algorithm}: leave it out"
        yield Problem(("learners", "compile"), reason)


def _sources(spec: Spec) -> list[dict[str, Any]]:
    sources = spec.get("input")
    return [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []


def _has_recorded_data(spec: Spec) -> bool:
    return any(source.get("sampler") is None for source in _sources(spec))


def _get_nested(spec: Any, *path: str) -> Any:
    """Return the value at a path, or None if the path does not exist."""
    for name in path:
        spec = spec.get(name) if isinstance(spec, dict) else None
    return spec


Check = Callable[[str, Spec], Iterator[Problem]]

_CHECKS: Final[Mapping[str, tuple[Check, ...]]] = {
    "OfflineTraining": (
        _check_model,
        _check_sequences,
        _check_samplers,
        _check_filter,
        _check_priorities,
        _check_compiling,
    ),
    "OfflineRecording": (_check_model, _check_expert_sampler, _check_expert_filter),
}
_CUSTOM_CHECKS: Final[tuple[Check, ...]] = (_check_filter, _check_priorities)
"""A custom algorithm states its other requirements when it is imported."""
