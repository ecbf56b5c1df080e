"""The table of `options.toml`: every option of RLlib's config and its mapping.

An option is *mapped* to a field of a resource, *replaced* (accepted; `config.replaced_options` names the
replacement) or *refused* (there is no equivalent).
"""

from __future__ import annotations

import keyword
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple

from pydantic.alias_generators import to_camel, to_snake

from hindcast.api.input import PrepareSpec
from hindcast.api.options import is_custom
from hindcast.errors import UserError

Kind = Literal["mapped", "replaced", "refused"]


class Option(NamedTuple):
    """An option of a config, or a field of one of its value classes.

    Attributes:
        method: the config's method that accepts it, or the class that has it as a field (`MODEL`, `MODULE`).
        name: the option's name.
        kind: mapped, replaced or refused.
        training: path of the field in the spec of an OfflineTraining, by YAML names; "" if it has none.
        recording: path of the field in the spec of an OfflineRecording; "" if it has none.
        remark: the option's meaning here, its replacement, or why it is refused.
        only_with: the option without which it has no effect; None if it has an effect on its own.
        default: RLlib's default, which is accepted for a refused option; None if RLlib's default is None, False, 0 or
            empty.
        algorithms: comma-separated names of the RLlib algorithms that have the option; "" if all have it. If only some
            have it, a custom algorithm may define its own option of this name.
    """

    method: str
    name: str
    kind: Kind
    training: str
    recording: str
    remark: str
    only_with: str | None
    default: Any = None
    algorithms: str = ""


MODEL: Final = "DefaultModelConfig"
MODULE: Final = "RLModuleSpec"
_SPEC_FIELD: Final = re.compile(r"\bspec((?:\.[A-Za-z]\w*)+)\b(?!\[)")
_PREPARE_FIELD: Final = re.compile(
    rf"(?<![.\w])(?:spec\.input\[\d+\]\.)?prepare\.({'|'.join(map(to_camel, PrepareSpec.model_fields))})\b(?:: (\w+))?"
)
_DATA_FIELD: Final = re.compile(r"`(schema)`|\b(ignoreFinalObservation|actionsNormalized): true\b")
"""Fields of an input in messages about data, which name them without their path in the resource."""
_ALGORITHM_SECTIONS: Final = ("config.", "customConfig.")
"""Sections of a resource with the algorithm's own options."""
_VALUE_CLASSES: Final = (MODEL, MODULE)
"""Classes of option values with fields in the table."""


def _parse_row(method: str, row: dict[str, Any]) -> list[Option]:
    """Return the options of a row of `options.toml`, which are equal except for their names."""
    kind: Kind = "replaced" if "replaced" in row else "refused" if "refused" in row else "mapped"
    training, recording = (row.get(name, row.get("field", "")) for name in ("training", "recording"))
    if "model" in row:
        training, recording = f"model.{row['model']}", f"policy.train.model.{row['model']}"
    names = row["option" if kind == "mapped" else kind]
    names = [names] if isinstance(names, str) else names
    remaining = (row.get("remark", ""), row.get("only_with"), row.get("default"), row.get("of", ""))
    return [Option(method, name, kind, training, recording, *remaining) for name in names]


_ROWS: Final = {
    method: [_parse_row(method, row) for row in rows]
    for method, rows in tomllib.loads(
        files("hindcast.rllib.builder").joinpath("options.toml").read_text(encoding="utf-8")
    ).items()
}
OPTIONS: Final = {
    method: {option.name: option for row in rows for option in row} for method, rows in _ROWS.items()
}
"""Method -> name -> option. `training` also accepts the algorithm's own options."""


def methods_with(name: str) -> list[str]:
    """Return the methods of a config that accept an option of this name."""
    return [method for method, options in OPTIONS.items() if name in options and method not in _VALUE_CLASSES]


OPTIONS_BY_NAME: Final = {
    name: OPTIONS[methods_with(name)[0]][name]
    for method, options in OPTIONS.items()
    for name in options
    if method not in _VALUE_CLASSES
}
"""The options of a config by name, in the table's order; a name means the same in all methods that have it."""


def is_in_table(algorithm: str | None, name: str) -> bool:
    """Return True if an option has the meaning that the table gives it; False if only the algorithm can define it.

    A custom algorithm may define an option of its own under the name of an option that only some algorithms have.
    """
    return name in OPTIONS_BY_NAME and not (
        OPTIONS_BY_NAME[name].algorithms and algorithm is not None and is_custom(algorithm)
    )


def option_table() -> str:
    """Return the table of all options as Markdown, one line per row of `options.toml`."""
    lines = ["| Method | RLlib's option | Field | Remarks |", "|---|---|---|---|"]
    for method, rows in _ROWS.items():
        for row in rows:
            names = ", ".join(f"`{option.name}`" for option in row)
            lines.append(f"| `{method}` | {names} | {_describe_field(row[0])} | {row[0].remark} |")
    return "\n".join(lines)


def _describe_field(option: Option) -> str:
    if option.kind != "mapped":
        return f"{option.kind} ({option.algorithms})" if option.algorithms else option.kind
    if option.training == option.recording:
        return f"`{option.training}`"
    fields = (("training", option.training), ("recording", option.recording))
    return ", ".join(f"{resource}: `{field}`" for resource, field in fields if field)


def _map_fields_to_options() -> dict[str, str]:
    """Map each field of a resource to its option, the first one in the table's order."""
    sections = [
        ("", OPTIONS_BY_NAME),
        ("model_config.", OPTIONS[MODEL]),
        ("rl_module_spec.", OPTIONS[MODULE]),
    ]
    option_by_field: dict[str, str] = {}
    for prefix, options in sections:
        for option in options.values():
            for field in (option.training, option.recording):
                option_by_field.setdefault(field, f"{prefix}{option.name}")
    return option_by_field


def use_option_names(sentence: str) -> str:
    """Replace the fields of a resource in a sentence by the names of their options.

    The prefix `spec.algorithm: ` is removed: the config's class sets the algorithm, not an option.
    """
    text = _SPEC_FIELD.sub(_replace_field, sentence.removeprefix("spec.algorithm: "))
    return _DATA_FIELD.sub(_replace_data_field, _PREPARE_FIELD.sub(_replace_prepare_field, text))


@contextmanager
def option_names_in_errors() -> Iterator[None]:
    """Let errors that are raised in the block name options rather than fields.

    Raises:
        UserError: the error that the block raised.
    """
    try:
        yield
    except UserError as error:
        # In place, so that the error keeps its class and its traceback.
        error.args = tuple(
            use_option_names(argument) if isinstance(argument, str) else argument for argument in error.args
        )
        raise


_OPTION_BY_FIELD: Final = _map_fields_to_options()


def _replace_field(match: re.Match[str]) -> str:
    field = match[1][1:]
    if field.startswith(_ALGORITHM_SECTIONS):
        return to_option_name(field.partition(".")[2])
    return _OPTION_BY_FIELD.get(field, match[0])


def _replace_prepare_field(match: re.Match[str]) -> str:
    option, entry = _OPTION_BY_FIELD["input.prepare"], to_option_name(match[1])
    return f'{option}["{entry}"]' if match[2] is None else f'{option}={{"{entry}": "{match[2]}"}}'


def _replace_data_field(match: re.Match[str]) -> str:
    option = _OPTION_BY_FIELD[f"input.{match[1] or match[2]}"]
    return f"`{option}`" if match[1] else f"{option}=True"


def to_option_name(field: str) -> str:
    """Return the Python name of an algorithm's option: `lr`, `num_epochs`, `lambda_`."""
    name = to_snake(field)
    return f"{name}_" if keyword.iskeyword(name) else name
