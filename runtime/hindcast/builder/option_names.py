"""The names that the builder's methods take, and the errors for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.api.options import is_custom, options_of, schemas
from hindcast.api.sentences import nearest, similar
from hindcast.builder.options import MODEL, OPTIONS, Option, is_in_table, methods_with, to_option_name
from hindcast.errors import SpecError

_OF_MODEL = "a field of rl_module(model_config=DefaultModelConfig(...))"
_OF_OWN: Final = (
    '; your own options belong to an algorithm of your own, AlgorithmConfig("package.module:Class") '
    "(docs/algorithms.md)."
)
_CALLED: Final = {"learning_rate": "lr", "batch_size": "train_batch_size_per_learner", "discount": "gamma"}
"""Names of other libraries that no spelling leads from to RLlib's."""
_RLLIBS_DEFAULTS: Final = {
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
"""Options that not every algorithm has here, with RLlib's default for the algorithms that lack them here."""
_UNSET: Final = {"target_entropy": "auto"}
"""RLlib's words for leaving an option to the algorithm."""
_DEPRECATED: Final = -1
"""RLlib's value of deprecated options."""
REMOVED_METHODS: Final = {
    "exploration": "RLlib renamed it; use env_runners(explore=...)",
    "experimental": "does not apply here; leave it out",
    "python_environment": "processes inherit os.environ; on a cluster, spec.cluster.env adds variables",
    "rollouts": "RLlib renamed it; use env_runners()",
    **dict.fromkeys(("get_state", "serialize"), "to_dict() returns the options"),
    "from_state": "from_dict(options) takes them",
    **dict.fromkeys(("keys", "items", "values", "pop"), "to_dict() is a dictionary"),
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
    "get_default_learner_class": "give training(learner_class=...)",
}
"""Methods of RLlib's configs that do not exist here, and what to do instead."""


class UnknownName(SpecError, AttributeError):
    """Neither an option nor a method; `hasattr` and `getattr` see that it is missing."""


def algorithm_options(algorithm: str | None) -> list[str]:
    """The names of an algorithm's options in snake case; those of all algorithms if it is None."""
    known = [schemas()[algorithm]] if algorithm in schemas() else schemas().values()
    return [to_option_name(name) for schema in known for name in schema["properties"]]


def find_schema(algorithm: str | None, name: str) -> Mapping[str, Any]:
    """The JSON schema of an algorithm's option, empty if there is no such option.

    For a custom algorithm, only options that all algorithms have are known.
    """
    return options_of(algorithm).get(to_camel(name.rstrip("_")), {})


def find_default(algorithm: str | None, name: str) -> Any:
    """The default of an option: the algorithm's, else None.

    Raises:
        UnknownName: it is not an option, or one of another algorithm.
    """
    try:
        check_name(algorithm, find_method(algorithm, name), name, None)
    except SpecError as error:
        raise UnknownName(str(error)) from None
    return find_schema(algorithm, name).get("default") if algorithm in schemas() else None


def find_method(algorithm: str | None, name: str) -> str:
    """The method that takes an option.

    Raises:
        SpecError: no method takes it.
    """
    if found := methods_with(name):
        return found[0]
    if _is_own(algorithm, name) or _owners(name):
        return "training"
    if name in OPTIONS[MODEL]:
        raise SpecError(f"{name} is {_OF_MODEL}.")
    if name in _CALLED:
        raise SpecError(f"{name} is not an option of a config; did you mean '{_CALLED[name]}'?")
    known = {*_taken(*OPTIONS), *algorithm_options(algorithm)}
    raise SpecError(f"{name} is not an option of a config{similar(name, known) or _OF_OWN}")


def check_name(algorithm: str | None, method: str, name: str, value: Any) -> None:
    """Refuse what the method does not take.

    Raises:
        SpecError: a name that is not an option, or belongs to another method or algorithm; a refused option.
    """
    option = OPTIONS[method].get(name) if is_in_table(algorithm, name) else None
    if option is None and not (method == "training" and _is_own(algorithm, name)):
        raise SpecError(f"{method}({name}=...): {name} {_place_of(algorithm, method, name)}")
    if option is not None and option.kind == "refused" and _asks(option, value):
        raise SpecError(f"{method}({name}={_shown(value)}): {option.remark}.")


def is_default_of_missing_option(algorithm: str | None, name: str, value: Any) -> bool:
    """Whether this is RLlib's default of an option that the algorithm does not have here: it requests nothing."""
    if is_in_table(algorithm, name) or _is_own(algorithm, name) or not _owners(name):
        return False
    return value is None or _equals(value, _RLLIBS_DEFAULTS.get(name))


def turns_off_default(algorithm: str | None, name: str, value: Any) -> bool:
    """Whether this is None, and turns off an algorithm's own option that is on by default."""
    schema = find_schema(algorithm, name)
    is_nullable = {"type": "null"} in schema.get("anyOf", ())
    return value is None and is_nullable and schema["default"] is not None


def is_unset(name: str, value: Any) -> bool:
    """Whether a value is RLlib's word for leaving an algorithm's own option at its default."""
    return name in _UNSET and _equals(value, _UNSET[name])


def _asks(option: Option, value: Any) -> bool:
    """Whether a value of a refused option requests something: RLlib's default does not."""
    if value is None:
        return False
    if option.default is not None:
        return not _equals(value, option.default)
    is_plain = isinstance(value, bool | int | float | str | Mapping | list | tuple)
    return not is_plain or (bool(value) and not _equals(value, _DEPRECATED))


def _equals(value: Any, default: Any) -> bool:
    """Equality for values of any type: arrays compare element by element."""
    return type(value) in (type(default), int, float) and bool(value == default)


def _place_of(algorithm: str | None, method: str, name: str) -> str:
    """Where a name that the method does not take belongs."""
    if others := [f"{other}()" for other in methods_with(name)]:
        return f"is an option of {' and '.join(others)}."
    if algorithm in (None, *schemas()) and _is_own(algorithm, name):
        return "is an option of training()."
    if name in OPTIONS[MODEL]:
        return f"is {_OF_MODEL}."
    if owners := _owners(name):
        return f"does not apply to {algorithm}; it is an option of {', '.join(owners)}."
    known = algorithm_options(algorithm) if method == "training" else _taken(method)
    if _CALLED.get(name) in known:
        return f"is not an option; did you mean '{_CALLED[name]}'?"
    return f"is not an option{nearest(name, known)}"


def _is_own(algorithm: str | None, name: str) -> bool:
    """Whether an algorithm has this option; a custom algorithm may have any."""
    return (algorithm is not None and is_custom(algorithm)) or name in algorithm_options(algorithm)


def _owners(name: str) -> list[str]:
    return [algorithm for algorithm in schemas() if name in algorithm_options(algorithm)]


def _taken(*methods: str) -> list[str]:
    """The options that methods take, without refused ones."""
    return [
        name for method in methods for name, option in OPTIONS[method].items() if option.kind != "refused"
    ]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else "..."


def named_class(algorithm: str, name: str, base: type, namespace: dict[str, Any], attribute: str) -> Any:
    """The class of an algorithm, made when a module's `__getattr__` is first asked for it.

    It is kept in the module, whose `globals()` are `namespace`, so that it is one and the same wherever it is imported,
    and can be pickled by its name. Its `attribute` is the algorithm's name.

    Raises:
        AttributeError: there is no such algorithm.
    """
    if algorithm not in schemas():
        raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
    if name not in namespace:
        about = schemas()[algorithm]["description"].partition("\n\n")[0]
        body = {"__module__": namespace["__name__"], "__doc__": about, attribute: algorithm}
        namespace[name] = type(name, (base,), body)
    return namespace[name]
