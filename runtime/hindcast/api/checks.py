"""Rules on a resource's algorithm and its options, and on the fields that must fit it, without importing the algorithm.

Checks that need the spaces of the environment or of the data run when networks are built, in `hindcast plan` or a run.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from pydantic import ValidationError

from hindcast.api.base import CLASS_PATH_PATTERN, Model
from hindcast.api.model import ModelSpec
from hindcast.api.option_types import relation_rules
from hindcast.api.options import Schema, options_model, schemas
from hindcast.api.rules import (
    Expression,
    Rule,
    comparison,
    every,
    field_value,
    find_problems,
    is_one_of,
    is_set,
    matches,
    mentioned_fields,
    name_fields,
)
from hindcast.api.sentences import nearest, problems_of
from hindcast.api.spelling import Spelling
from hindcast.errors import FieldPath, Problem, format_path, parse_path

Schemas = Mapping[str, Schema]
"""Name of each algorithm -> schema of its options with its traits, see `options.schemas`."""

NO_FILTER_STATISTICS: Final = (
    "is MeanStd, which computes its statistics from recorded data, but there are no recorded data: leave "
    "it out, and scale observations in a wrapper of the environment"
)
"""Problem with `model.observationFilter`."""
_ALGORITHM: Final = field_value("algorithm")
_IS_RECURRENT: Final = is_one_of("model.recurrent", "LSTM", "GRU")
_HAS_FILTER: Final = is_one_of("model.observationFilter", "MeanStd")
_BATCH_SIZE: Final = "trainBatchSizePerLearner"


def check_algorithm(
    kind: str, spec: Any, section: Model | None, path: FieldPath, spelling: Spelling | None = None
) -> list[Problem]:
    """List the problems with a resource's algorithm, its options, and the fields that must fit it.

    Args:
        kind: the resource's kind.
        spec: the part of the resource that has `algorithm`, `config` and `model`, as plain, unchecked values.
        section: that part as a model; None if it has other problems. Then only the options are checked.
        path: path of that part (`("spec",)`).
        spelling: allowed spelling of enums, `IN_YAML` or `EITHER_SPELLING`; None for values from Python.
    """
    algorithm = spec.get("algorithm") if isinstance(spec, dict) else None
    if not isinstance(algorithm, str):
        return []
    name_rule = _algorithm_name_rule(kind, _usable_algorithms(kind, schemas()))
    if problems := find_problems([name_rule], spec):
        is_known = algorithm in schemas()
        text = f"is '{algorithm}', which is not an algorithm{nearest(algorithm, _usable_algorithms(kind, schemas()))}"
        return [Problem((*path, "algorithm"), problems[0][1] if is_known else text)]
    option_problems = list(_check_options(algorithm, spec.get("config", {}), (*path, "config"), spelling))
    if section is None:
        return option_problems
    part = format_path(path)
    return option_problems + [
        Problem((*path, *parse_path(field)), name_fields(text, part), mentions=mentioned_fields(text, part))
        for field, text in find_problems(_fitting_rules(kind), section.plain_values())
    ]


def _check_options(
    algorithm: str, config: Any, path: FieldPath, spelling: Spelling | None
) -> Iterator[Problem]:
    if algorithm not in schemas() or not isinstance(config, dict):
        return
    foreign_options = {
        field.removeprefix("config."): text
        for field, text in find_problems(all_option_rules(), {"algorithm": algorithm, "config": config})
    }
    for option, text in foreign_options.items():
        yield Problem((*path, option), text)
    applicable_options = {name: entry for name, entry in config.items() if name not in foreign_options}
    try:
        options_model(algorithm).model_validate(applicable_options, context=spelling)
    except ValidationError as error:
        yield from problems_of(error, options_model(algorithm), applicable_options, path)


@cache
def all_option_rules() -> list[Rule]:
    """Return the rules on the options of all algorithms."""
    return list(option_rules(schemas(), schemas()))


def algorithm_rules(kind: str, algorithms: Schemas) -> Iterator[Rule]:
    """Yield the rules on the part of a resource that has `algorithm`, `config` and `model`.

    Args:
        kind: the resource's kind.
        algorithms: all algorithms.
    """
    usable_algorithms = _usable_algorithms(kind, algorithms)
    yield _algorithm_name_rule(kind, usable_algorithms)
    yield from option_rules(algorithms, usable_algorithms)
    for name, schema in usable_algorithms.items():
        yield from relation_rules(schema["properties"], "config.", _is_algorithm(name))
    yield from fitting_rules(kind, usable_algorithms)


def option_rules(algorithms: Schemas, usable_algorithms: Iterable[str]) -> Iterator[Rule]:
    """Yield a rule for each option that some of the usable algorithms do not have."""
    for option in sorted({option for schema in algorithms.values() for option in schema["properties"]}):
        owners = [name for name, schema in algorithms.items() if option in schema["properties"]]
        if not set(usable_algorithms) <= set(owners):
            yield Rule(
                is_set(f"config.{option}").implies(_is_algorithm(*owners)),
                f"does not apply to {{0}}; it is a field of {', '.join(owners)}",
                field=f"config.{option}",
                values=(_ALGORITHM,),
            )


def fitting_rules(kind: str, algorithms: Schemas) -> Iterator[Rule]:
    """Yield the rules on fields that must fit the algorithm. A custom algorithm declares its own in its module.

    Args:
        kind: the resource's kind.
        algorithms: the algorithms that a resource of this kind can use.
    """

    def names_with(trait: str) -> list[str]:
        return [name for name, schema in algorithms.items() if schema.get(trait)]

    def has_no(trait: str) -> Expression:
        return _is_algorithm(*(name for name in algorithms if name not in names_with(trait)))

    recurrent = "".join(f"{name}, " for name in names_with("x-recurrent"))
    remedy = f"use {recurrent}or " if recurrent else ""
    yield Rule(
        ~_IS_RECURRENT | ~has_no("x-recurrent"),
        "is {0}, but {1} learns from single timesteps and cannot train a recurrent policy: "
        f"{remedy}give it the last observations with @model.frameStack",
        field="model.recurrent",
        values=(field_value("model.recurrent"), _ALGORITHM),
    )
    yield Rule(
        is_set("model.moduleClass").implies(~_is_algorithm(*names_with("x-own-policy"))),
        "does not apply to {0}, which builds its own policy: leave it out",
        field="model.moduleClass",
        values=(_ALGORITHM,),
    )
    names_by_distributions: dict[tuple[str, ...], list[str]] = {}
    for name, schema in algorithms.items():
        names_by_distributions.setdefault(tuple(schema.get("x-distributions", ())), []).append(name)
    for distributions, names in names_by_distributions.items():
        if distributions:
            words = [ModelSpec.in_yaml("distribution", name) for name in distributions]
            yield Rule(
                _is_algorithm(*names).implies(is_one_of("model.distribution", *words)),
                untrainable_problem("{0}", "{1}", distributions),
                field="model.distribution",
                values=(field_value("model.distribution"), _ALGORITHM),
            )
    yield from _sequence_rules(algorithms)
    yield from _sampler_rules(kind, names_with("x-live"), has_no("x-live"))
    if kind == "OfflineTraining":
        yield from _PRIORITY_RULES
        yield Rule(
            ~is_one_of("learners.compile", True) | ~has_no("x-compiled"),
            "is true, but torch.compile does not support the losses of {0}: leave it out",
            field="learners.compile",
            values=(_ALGORITHM,),
        )
        yield Rule(
            ~is_one_of("learners.compile", True) | ~_IS_RECURRENT,
            "is true, but torch.compile does not support the recurrent layer of @model.recurrent: leave it out",
            field="learners.compile",
        )


def untrainable_problem(distribution: str, algorithm: str, distributions: Iterable[str]) -> str:
    """Describe that an algorithm cannot train a distribution, and list those that it can train, as in YAML."""
    words = ", ".join(ModelSpec.in_yaml("distribution", name) for name in distributions)
    return f"is {distribution}, which {algorithm} cannot train: use {words}"


@cache
def _fitting_rules(kind: str) -> list[Rule]:
    return list(fitting_rules(kind, _usable_algorithms(kind, schemas())))


def _usable_algorithms(kind: str, algorithms: Schemas) -> dict[str, Schema]:
    return {name: schema for name, schema in algorithms.items() if kind in schema["x-kinds"]}


def _is_algorithm(*names: str) -> Expression:
    return is_one_of("algorithm", *names)


def _algorithm_name_rule(kind: str, algorithms: Iterable[str]) -> Rule:
    """Return the rule that a resource of this kind can use the algorithm."""
    names = list(algorithms)
    is_usable, usable_names = _is_algorithm(*names), ", ".join(names)
    if kind == "OfflineTraining":
        is_usable |= matches("algorithm", CLASS_PATH_PATTERN)
        usable_names += " or package.module:Class"
    message = f"is {{0}}, which an {kind} cannot use; it can use {usable_names}"
    return Rule(is_usable, message, field="algorithm", values=(_ALGORITHM,))


def _sequence_rules(algorithms: Schemas) -> Iterator[Rule]:
    """Yield the rules for recurrent policies: a batch holds a whole sequence, and a sequence an n-step target."""
    names_by_default: dict[Any, list[str]] = {}
    for name, schema in algorithms.items():
        if schema.get("x-recurrent"):
            default = schema["properties"][_BATCH_SIZE]["default"]
            names_by_default.setdefault(default, []).append(name)
    for default, names in names_by_default.items():
        values = field_value("model.maxSeqLen"), field_value(f"config.{_BATCH_SIZE}", default)
        condition = _IS_RECURRENT & _is_algorithm(*names)
        yield comparison(
            "model.maxSeqLen", "at most", f"config.{_BATCH_SIZE}", values=values, condition=condition
        )
    n_step_names = [
        name
        for name, schema in algorithms.items()
        if schema.get("x-recurrent") and "nStep" in schema["properties"]
    ]
    yield comparison(
        "config.nStep",
        "at most",
        "model.maxSeqLen",
        values=(field_value("config.nStep", 1), field_value("model.maxSeqLen")),
        condition=_IS_RECURRENT & _is_algorithm(*n_step_names),
        reason=": targets of recurrent networks do not reach further than a sequence",
    )


def _sampler_rules(kind: str, live_algorithms: list[str], learns_offline_only: Expression) -> Iterator[Rule]:
    """Yield the rules on samplers, and on the observation filter, which needs recorded data."""
    has_statistics = ~_HAS_FILTER | is_set("initialCheckpoint")
    if kind == "OfflineRecording":
        is_live = _is_algorithm(*live_algorithms)
        yield Rule(
            is_set("sampler").implies(is_live),
            f"does not apply to {{0}}; it is an option for {', '.join(live_algorithms)}",
            field="sampler",
            values=(_ALGORITHM,),
        )
        yield Rule(has_statistics | ~is_live, NO_FILTER_STATISTICS, field="model.observationFilter")
        return
    has_sampler = is_set("sampler")
    yield Rule(
        every("input", ~has_sampler) | ~learns_offline_only,
        f"has a sampler, which {{0}} cannot learn from; a sampler is for {', '.join(live_algorithms)}",
        field="input",
        values=(_ALGORITHM,),
    )
    yield Rule(
        has_statistics | ~every("input", has_sampler), NO_FILTER_STATISTICS, field="model.observationFilter"
    )


# If all inputs are samplers, the replay buffer has the priorities, and no pipeline of recorded data runs.
_RECORDED_DATA_HAVE_NO_PRIORITIES: Final = ~is_one_of("config.prioritizedReplay", True) | every(
    "input", is_set("sampler")
)
_PRIORITY_RULES: Final = (
    Rule(
        _RECORDED_DATA_HAVE_NO_PRIORITIES | ~is_one_of("pipeline.residency", "Streaming"),
        "is Streaming, but @config.prioritizedReplay draws from all data: set it to Auto or Resident",
        field="pipeline.residency",
    ),
    Rule(
        _RECORDED_DATA_HAVE_NO_PRIORITIES | ~is_one_of("pipeline.sampling", "WithReplacement"),
        "is WithReplacement, but @config.prioritizedReplay draws by priority: leave it out",
        field="pipeline.sampling",
    ),
)
"""Requirements of prioritised replay on the pipeline of recorded data."""
