"""Names of the builder's options, and errors for unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.api.options import is_custom, options_of, schemas
from hindcast.api.sentences import nearest, similar
from hindcast.errors import SpecError
from hindcast.rllib.builder.options import (
    DEPRECATED_VALUE,
    MODEL,
    OPTIONS,
    RLLIB_DEFAULTS,
    Option,
    is_in_table,
    methods_with,
    to_option_name,
)

_MODEL_FIELD = "a field of rl_module(model_config=DefaultModelConfig(...))"
_CUSTOM_ALGORITHM_HINT: Final = (
    '; custom options require a custom algorithm, AlgorithmConfig("package.module:Class") '
    "(docs/algorithms.md)."
)
_FOREIGN_NAMES: Final = {
    "learning_rate": "lr",
    "batch_size": "train_batch_size_per_learner",
    "discount": "gamma",
}
"""Other libraries' names of options -> RLlib's; they are too different for a suggestion by spelling."""
DEFAULTS_OF_MISSING_OPTIONS: Final = {
    "bc_logstd_coeff": 0.0,
    "beta": 0.0,
    "gamma": 0.99,
    "moving_average_sqd_adv_norm_start": 100.0,
    "moving_average_sqd_adv_norm_update_rate": 1e-8,
    "n_step": 1,
    "num_epochs": 1,
    "target_network_update_freq": 0,
    "twin_q": True,
    "vf_coeff": 1.0,
}
"""Option that only some algorithms have here -> RLlib's default, which the other algorithms accept."""
_UNSET_VALUES: Final = {"target_entropy": "auto"}
"""Option -> RLlib's value that leaves the choice to the algorithm, as an unset option does here."""
REMOVED_METHODS: Final = {
    "exploration": "RLlib renamed it; use env_runners(explore=...)",
    "experimental": "does not apply here; leave it out",
    "python_environment": "processes inherit os.environ; on a cluster, spec.cluster.env adds variables",
    "rollouts": "RLlib renamed it; use env_runners()",
    **dict.fromkeys(("get_state", "serialize"), "to_dict() returns the options"),
    "from_state": "from_dict(options) sets the options",
    **dict.fromkeys(("keys", "items", "values", "pop"), "to_dict() returns a dictionary"),
    **dict.fromkeys(
        ("build_learner", "build_learner_group"),
        "build_algo() builds everything; its get_module() returns the network",
    ),
    **dict.fromkeys(
        (
            "get_rl_module_spec",
            "get_multi_rl_module_spec",
            "get_default_rl_module_spec",
            "get_marl_module_spec",
        ),
        "set it with rl_module(rl_module_spec=...); the algorithm's get_module() returns the network",
    ),
    "get_evaluation_config_object": "there is one config; evaluation_config overrides it",
    "get_multi_agent_setup": "several agents are not available yet",
    "get_default_learner_class": "set training(learner_class=...)",
}
"""Methods of RLlib's configs that do not exist here -> what to do instead."""


class UnknownName(SpecError, AttributeError):
    """A name that is neither an option nor a method; also an `AttributeError`, as `hasattr` and `getattr` require."""


def algorithm_options(algorithm: str | None) -> list[str]:
    """Return the names of an algorithm's options in snake case; for None or a custom one, those of all algorithms.

    The list may then contain a name several times.
    """
    option_schemas = [schemas()[algorithm]] if algorithm in schemas() else schemas().values()
    return [to_option_name(name) for schema in option_schemas for name in schema["properties"]]


def find_schema(algorithm: str | None, name: str) -> Mapping[str, Any]:
    """Return the JSON schema of an algorithm's option, empty if the option is unknown.

    For a custom algorithm, only the options that all algorithms share are known.
    """
    return options_of(algorithm).get(to_camel(name.rstrip("_")), {})


def find_default(algorithm: str | None, name: str) -> Any:
    """Return the algorithm's default of an option; None if the algorithm has no such option, or is custom.

    Raises:
        UnknownName: the name is not an option, or is an option of another algorithm.
    """
    try:
        check_name(algorithm, find_method(algorithm, name), name, None)
    except SpecError as error:
        raise UnknownName.of(error.problems) from None
    return find_schema(algorithm, name).get("default") if algorithm in schemas() else None


def find_method(algorithm: str | None, name: str) -> str:
    """Return the method that an option belongs to; the first one in the table's order if there are several.

    Raises:
        SpecError: no method accepts the option.
    """
    if methods := methods_with(name):
        return methods[0]
    if _is_algorithm_option(algorithm, name) or _algorithms_with(name):
        return "training"
    if name in OPTIONS[MODEL]:
        raise SpecError(f"{name} is {_MODEL_FIELD}.")
    if name in _FOREIGN_NAMES:
        raise SpecError(f"{name} is not an option of a config; did you mean '{_FOREIGN_NAMES[name]}'?")
    names = {*_accepted_names(*OPTIONS), *algorithm_options(algorithm)}
    raise SpecError(f"{name} is not an option of a config{similar(name, names) or _CUSTOM_ALGORITHM_HINT}")


def check_name(algorithm: str | None, method: str, name: str, value: Any) -> None:
    """Check that a method accepts an option.

    Raises:
        SpecError: the name is not an option, belongs to another method or algorithm, or is a refused option and the
            value is not RLlib's default.
    """
    option = OPTIONS[method].get(name) if is_in_table(algorithm, name) else None
    if option is None and not (method == "training" and _is_algorithm_option(algorithm, name)):
        raise SpecError(f"{method}({name}=...): {name} {_describe_owner(algorithm, method, name)}")
    if option is not None and option.kind == "refused" and _requests_something(option, value):
        raise SpecError(f"{method}({name}={_format_value(value)}): {option.remark}.")


def describe_defaults(algorithm: str, options: Iterable[str]) -> str | None:
    """Return a note on the algorithm's defaults that differ from RLlib's; None if there are none.

    Args:
        algorithm: its name.
        options: names of the options that the user set; they are left out.
    """
    set_options = set(options)
    differences = [
        f"{name} {find_default(algorithm, name)} ({value})"
        for name, value in RLLIB_DEFAULTS.get(algorithm, {}).items()
        if name not in set_options
    ]
    if not differences:
        return None
    return f"{algorithm}'s defaults, with RLlib's if they differ: {', '.join(differences)}; docs/reference.md says why"


def is_default_of_missing_option(algorithm: str | None, name: str, value: Any) -> bool:
    """Return True if the algorithm lacks the option here and the value is RLlib's default, which requests nothing."""
    if is_in_table(algorithm, name) or _is_algorithm_option(algorithm, name) or not _algorithms_with(name):
        return False
    return value is None or _equals(value, DEFAULTS_OF_MISSING_OPTIONS.get(name))


def turns_off_default(algorithm: str | None, name: str, value: Any) -> bool:
    """Return True if the value is None and turns off an algorithm's option that is on by default."""
    schema = find_schema(algorithm, name)
    is_nullable = {"type": "null"} in schema.get("anyOf", ())
    return value is None and is_nullable and schema["default"] is not None


def is_unset(name: str, value: Any) -> bool:
    """Return True if a value leaves an algorithm's option at its default, in RLlib's terms."""
    return name in _UNSET_VALUES and _equals(value, _UNSET_VALUES[name])


def _requests_something(option: Option, value: Any) -> bool:
    """Return True if a value of a refused option requests what Hindcast does not have; RLlib's default does not."""
    if value is None:
        return False
    if option.default is not None:
        return not _equals(value, option.default)
    # Objects such as classes are never a default; `bool` of an array would raise.
    is_builtin = isinstance(value, bool | int | float | str | Mapping | list | tuple)
    return not is_builtin or (bool(value) and not _equals(value, DEPRECATED_VALUE))


def _equals(value: Any, default: Any) -> bool:
    """Return True if a value of any type equals a default.

    The types are compared first, since `==` of arrays compares elements and has no truth value.
    """
    return type(value) in (type(default), int, float) and bool(value == default)


def _describe_owner(algorithm: str | None, method: str, name: str) -> str:
    """Return the end of a message about a name that the method does not accept: where it belongs."""
    if methods := [f"{other_method}()" for other_method in methods_with(name)]:
        return f"is an option of {' and '.join(methods)}."
    if algorithm in (None, *schemas()) and _is_algorithm_option(algorithm, name):
        return "is an option of training()."
    if name in OPTIONS[MODEL]:
        return f"is {_MODEL_FIELD}."
    if owners := _algorithms_with(name):
        return f"does not apply to {algorithm}; it is an option of {', '.join(owners)}."
    names = algorithm_options(algorithm) if method == "training" else _accepted_names(method)
    if _FOREIGN_NAMES.get(name) in names:
        return f"is not an option; did you mean '{_FOREIGN_NAMES[name]}'?"
    return f"is not an option{nearest(name, names)}"


def _is_algorithm_option(algorithm: str | None, name: str) -> bool:
    """Return True if an algorithm has this option; a custom algorithm may have any."""
    return (algorithm is not None and is_custom(algorithm)) or name in algorithm_options(algorithm)


def _algorithms_with(name: str) -> list[str]:
    return [algorithm for algorithm in schemas() if name in algorithm_options(algorithm)]


def _accepted_names(*methods: str) -> list[str]:
    """Return the options that methods accept."""
    return [
        name for method in methods for name, option in OPTIONS[method].items() if option.kind != "refused"
    ]


def _format_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else "..."
