"""Checks of a resource's algorithm without importing it: its options, and the fields that must fit it.

Checks that need the spaces of the environment or of the data run when networks are built, in `hindcast plan` or a run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import ValidationError

from hindcast.api.documents import Problem, Steps
from hindcast.api.model import Distribution, ModelSpec
from hindcast.api.options import algorithms, is_custom, live_algorithms, options_model, schemas
from hindcast.api.sentences import nearest, problems_of
from hindcast.api.spelling import Spelling

Spec = Mapping[str, Any]
"""Plain, unchecked values: the spec of an OfflineTraining, or the policy.train of an OfflineRecording."""

UNFILTERED: Final = (
    "is MeanStd, whose statistics come from recorded data, and there are none: leave it out, and scale "
    "observations in a wrapper of the environment"
)
STREAMED: Final = (
    "is Streaming, but spec.config.prioritizedReplay draws from all data: leave it at Auto or take Resident"
)
_NOT_RECURRENT: Final = ("None", "none")
REPLACED: Final = "is WithReplacement, but spec.config.prioritizedReplay draws by priority: leave it out"


def check_algorithm(kind: str, spec: Spec, at: Steps, spelling: Spelling | None = None) -> list[Problem]:
    """List the problems with a resource's algorithm, its options, and the fields that must fit it.

    Args:
        kind: of the resource.
        spec: the part that has `algorithm`, `config` and `model`.
        at: path of that part (`("spec",)`).
        spelling: of enums: `IN_YAML` or `STORED`; None for values from Python.
    """
    algorithm = spec.get("algorithm")
    if not isinstance(algorithm, str):
        return []
    if problem := _of_name(kind, algorithm):
        return [Problem((*at, "algorithm"), problem)]
    checks = _OF_CUSTOM if is_custom(algorithm) else _CHECKS[kind]
    found = [problem for check in checks for problem in check(algorithm, spec)]
    return [
        *_of_options(algorithm, spec.get("config", {}), (*at, "config"), spelling),
        *(Problem((*at, *problem.steps), problem.text) for problem in found),
    ]


def _of_name(kind: str, algorithm: str) -> str | None:
    usable = algorithms(kind)
    if algorithm in usable or (is_custom(algorithm) and kind == "OfflineTraining"):
        return None
    if algorithm not in schemas():
        return f"is '{algorithm}', which is not an algorithm{nearest(algorithm, usable)}"
    return f"is {algorithm}, which an {kind} cannot use; it can use {', '.join(usable)}"


def _of_options(algorithm: str, config: Any, at: Steps, spelling: Spelling | None) -> Iterator[Problem]:
    if algorithm not in schemas() or not isinstance(config, dict):
        return
    owners = {name: [each for each, s in schemas().items() if name in s["properties"]] for name in config}
    others = {name: known for name, known in owners.items() if known and algorithm not in known}
    for name, known in others.items():
        yield Problem((*at, name), f"does not apply to {algorithm}; it is a field of {', '.join(known)}")
    rest = {name: value for name, value in config.items() if name not in others}
    try:
        options_model(algorithm).model_validate(rest, context=spelling)
    except ValidationError as error:
        yield from problems_of(error, options_model(algorithm), rest, at)


def _of_model(algorithm: str, spec: Spec) -> Iterator[Problem]:
    schema = schemas()[algorithm]
    recurrent = _given(spec, "model", "recurrent") or "None"
    if recurrent not in _NOT_RECURRENT and not schema.get("x-recurrent"):
        yield Problem(
            ("model", "recurrent"),
            f"is '{recurrent}', but {algorithm} learns from single timesteps and cannot train a recurrent policy",
        )
    if schema.get("x-own-policy") and _given(spec, "model", "moduleClass") is not None:
        yield Problem(
            ("model", "moduleClass"),
            f"does not apply to {algorithm}, which builds its own policy: leave it out",
        )
    distribution, trained = _given(spec, "model", "distribution"), schema.get("x-distributions")
    known = {ModelSpec.in_yaml("distribution", name): name for name in get_args(Distribution)}
    if trained and isinstance(distribution, str):
        name = known.get(distribution, distribution)
        if name in known.values() and name not in trained:
            yield Problem(("model", "distribution"), untrained(name, algorithm, trained))


def untrained(distribution: str, algorithm: str, trained: Iterable[str]) -> str:
    """Say that an algorithm cannot train a distribution, and which it can, in YAML's spelling."""
    word, *usable = (ModelSpec.in_yaml("distribution", name) for name in (distribution, *trained))
    return f"is '{word}', which {algorithm} cannot train: use {', '.join(usable)}"


def _of_sequences(algorithm: str, spec: Spec) -> Iterator[Problem]:
    schema = schemas()[algorithm]
    if not schema.get("x-recurrent") or (_given(spec, "model", "recurrent") or "None") in _NOT_RECURRENT:
        return
    name = "trainBatchSizePerLearner"
    length = _given(spec, "model", "maxSeqLen") or ModelSpec.model_fields["max_seq_len"].default
    batch = _given(spec, "config", name) or schema["properties"][name]["default"]
    if isinstance(length, int | float) and isinstance(batch, int | float) and length > batch:
        yield Problem(("model", "maxSeqLen"), f"is {length}, expected at most spec.config.{name}, {batch}")


def _of_samplers(algorithm: str, spec: Spec) -> Iterator[Problem]:
    for index, source in enumerate(_sources(spec)):
        if isinstance(source.get("sampler"), dict) and algorithm not in live_algorithms():
            yield _unsampled(algorithm, live_algorithms(), ("input", index, "sampler"))


def _of_own_sampler(algorithm: str, spec: Spec) -> Iterator[Problem]:
    if isinstance(spec.get("sampler"), dict) and algorithm not in live_algorithms():
        experts = [name for name in live_algorithms() if name in algorithms("OfflineRecording")]
        yield _unsampled(algorithm, experts, ("sampler",))


def _unsampled(algorithm: str, usable: list[str], at: Steps) -> Problem:
    return Problem(at, f"does not apply to {algorithm}; it is an option for {', '.join(usable)}")


def _of_filter(_: str, spec: Spec) -> Iterator[Problem]:
    if _sources(spec) and not _has_recorded(spec):
        yield from _unfiltered(spec)


def _of_own_filter(algorithm: str, spec: Spec) -> Iterator[Problem]:
    if algorithm in live_algorithms():
        yield from _unfiltered(spec)


def _unfiltered(spec: Spec) -> Iterator[Problem]:
    # A checkpoint that training starts from brings its statistics along.
    if (
        _given(spec, "model", "observationFilter") in ("MeanStd", "meanStd")
        and spec.get("initialCheckpoint") is None
    ):
        yield Problem(("model", "observationFilter"), UNFILTERED)


def _of_priorities(_: str, spec: Spec) -> Iterator[Problem]:
    if _given(spec, "config", "prioritizedReplay") is not True or not _has_recorded(spec):
        return
    if _given(spec, "pipeline", "residency") == "Streaming":
        yield Problem(("pipeline", "residency"), STREAMED)
    if _given(spec, "pipeline", "sampling") == "WithReplacement":
        yield Problem(("pipeline", "sampling"), REPLACED)


def _of_compiling(algorithm: str, spec: Spec) -> Iterator[Problem]:
    if _given(spec, "learners", "compile") is True and not schemas()[algorithm].get("x-compiled"):
        why = f"is true, but torch.compile does not support the losses of {algorithm}: leave it out"
        yield Problem(("learners", "compile"), why)


def _sources(spec: Spec) -> list[dict[str, Any]]:
    sources = spec.get("input")
    return [each for each in sources if isinstance(each, dict)] if isinstance(sources, list) else []


def _has_recorded(spec: Spec) -> bool:
    return any(source.get("sampler") is None for source in _sources(spec))


def _given(spec: Any, *path: str) -> Any:
    for name in path:
        spec = spec.get(name) if isinstance(spec, dict) else None
    return spec


Check = Callable[[str, Spec], Iterator[Problem]]

_CHECKS: Final[Mapping[str, tuple[Check, ...]]] = {
    "OfflineTraining": (
        _of_model,
        _of_sequences,
        _of_samplers,
        _of_filter,
        _of_priorities,
        _of_compiling,
    ),
    "OfflineRecording": (_of_model, _of_own_sampler, _of_own_filter),
}
_OF_CUSTOM: Final[tuple[Check, ...]] = (_of_filter, _of_priorities)
"""A custom algorithm states its other requirements when it is imported."""
