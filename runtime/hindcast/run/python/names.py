"""Which names a method of the builder takes, and what it says of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_snake

from hindcast.api.options import is_custom, options_model, schemas
from hindcast.api.sentences import nearest, similar
from hindcast.errors import SpecError
from hindcast.run.python.options import OPTIONS, methods_with

_MODEL = "DefaultModelConfig"
_OFF = (None, False)
"""Values with which a refused option asks for nothing."""
_ASSUMED = {
    "input_read_method": "read_parquet",
    "output_write_method": "write_parquet",
    "is_atari": False,
}
"""Refused options, and the value with which they ask for what is done anyway."""


def algorithm_options(algorithm: str) -> list[str]:
    """The names of an algorithm's own options, in Python's spelling."""
    names = (to_snake(name) for name in options_model(algorithm).model_fields)
    return ["lambda_" if name == "lambda" else name for name in names]


def method_of(algorithm: str, name: str) -> str:
    """The method that takes an option.

    Raises:
        SpecError: there is none.
    """
    found = [method for method in methods_with(name) if method != _MODEL]
    if found:
        return found[0]
    if is_custom(algorithm) or any(name in algorithm_options(other) for other in schemas()):
        return "training"
    known = {option for options in OPTIONS.values() for option in options} | set(algorithm_options(algorithm))
    raise SpecError(f"{name} is not an option{similar(name, known)}")


def check_names(algorithm: str, method: str, options: Mapping[str, Any]) -> None:
    """Refuse what the method does not take.

    Raises:
        SpecError: a name that is no option, or of another method or algorithm; an option that is refused.
    """
    table = OPTIONS[method]
    for name, value in options.items():
        option = table.get(name)
        if option is None:
            _check_unknown(algorithm, method, name)
        elif option.kind == "refused" and value not in _OFF and value != _ASSUMED.get(name):
            raise SpecError(f"{method}({name}={_shown(value)}): {option.remark}.")


def _check_unknown(algorithm: str, method: str, name: str) -> None:
    if method == "training" and (is_custom(algorithm) or name in algorithm_options(algorithm)):
        return
    where = f"{method}({name}=...)"
    if others := [f"{other}()" for other in methods_with(name) if other != _MODEL]:
        raise SpecError(f"{where}: {name} is an option of {' and '.join(others)}.")
    if not is_custom(algorithm) and name in algorithm_options(algorithm):
        raise SpecError(f"{where}: {name} is an option of training().")
    if name in OPTIONS[_MODEL]:
        raise SpecError(f"{where}: {name} is a field of rl_module(model_config=DefaultModelConfig(...)).")
    if owners := [other for other in schemas() if name in algorithm_options(other)]:
        raise SpecError(
            f"{where}: {name} does not apply to {algorithm}; it is an option of {', '.join(owners)}."
        )
    known = list(OPTIONS[method])
    if method == "training" and not is_custom(algorithm):
        known = algorithm_options(algorithm)
    raise SpecError(f"{where}: {name} is not an option{nearest(name, known)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else "..."
