"""Every option of RLlib's config and how it is mapped: the table in `options.toml`.

An option is *mapped* to a field of a resource, *replaced* (accepted; something else does its work, `config.replaced`
says what) or *refused* (there is nothing like it yet).
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
    """One option.

    Attributes:
        method: the config's method that takes it; or the class whose field it is (`MODEL`, `MODULE`).
        name: its name.
        kind: mapped, replaced or refused.
        training: field of an OfflineTraining's spec ("" for none), by its YAML names.
        recording: field of an OfflineRecording's spec.
        remark: what it means here, what does its work, or why it is refused.
        only_with: the option without which it has no effect, None if it needs no other.
        default: RLlib's, with which a refused option asks for nothing; None if that is None, False, 0 or empty.
        of: the algorithms of RLlib's that have it, "" for all; an own algorithm may have one of that name.
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
_PATH: Final = re.compile(r"\bspec((?:\.[A-Za-z]\w*)+)\b(?!\[)")
_PREPARE: Final = re.compile(
    rf"(?<![.\w])(?:spec\.input\[\d+\]\.)?prepare\.({'|'.join(map(to_camel, PrepareSpec.model_fields))})\b(?:: (\w+))?"
)
_OF_DATA: Final = re.compile(r"`(schema)`|\b(ignoreFinalObservation|actionsNormalized): true\b")
"""What messages on data call fields of an input, which are not where the whole resource is."""
_ALGORITHMS: Final = ("config.", "customConfig.")
"""Where a resource has the algorithm's own options."""
_CLASSES: Final = (MODEL, MODULE)
"""Classes of option values whose fields are in the table too."""


def _options(method: str, row: dict[str, Any]) -> list[Option]:
    kind: Kind = "replaced" if "replaced" in row else "refused" if "refused" in row else "mapped"
    training, recording = (row.get(of, row.get("field", "")) for of in ("training", "recording"))
    if "model" in row:
        training, recording = f"model.{row['model']}", f"policy.train.model.{row['model']}"
    names = row["option" if kind == "mapped" else kind]
    names = [names] if isinstance(names, str) else names
    rest = (row.get("remark", ""), row.get("only_with"), row.get("default"), row.get("of", ""))
    return [Option(method, name, kind, training, recording, *rest) for name in names]


_ROWS: Final = {
    method: [_options(method, row) for row in rows]
    for method, rows in tomllib.loads(
        files("hindcast.builder").joinpath("options.toml").read_text(encoding="utf-8")
    ).items()
}
OPTIONS: Final = {
    method: {option.name: option for row in rows for option in row} for method, rows in _ROWS.items()
}
"""Method -> name -> option. `training` takes the algorithm's own options too."""


def methods_with(name: str) -> list[str]:
    """The methods of a config that take an option of this name."""
    return [method for method, options in OPTIONS.items() if name in options and method not in _CLASSES]


OPTIONS_BY_NAME: Final = {
    name: OPTIONS[methods_with(name)[0]][name]
    for method, options in OPTIONS.items()
    for name in options
    if method not in _CLASSES
}
"""The options of a config, in the table's order; the same name means the same in all methods."""


def is_in_table(algorithm: str | None, name: str) -> bool:
    """Whether the table, rather than the algorithm itself, defines an option of an algorithm."""
    return name in OPTIONS_BY_NAME and not (
        OPTIONS_BY_NAME[name].algorithms and algorithm is not None and is_custom(algorithm)
    )


def option_table() -> str:
    """The table of all options as Markdown, a line for each of its rows."""
    lines = ["| Method | RLlib's option | Field | Remarks |", "|---|---|---|---|"]
    for method, rows in _ROWS.items():
        for row in rows:
            names = ", ".join(f"`{option.name}`" for option in row)
            lines.append(f"| `{method}` | {names} | {_fate(row[0])} | {row[0].remark} |")
    return "\n".join(lines)


def _fate(option: Option) -> str:
    if option.kind != "mapped":
        return f"{option.kind} ({option.algorithms})" if option.algorithms else option.kind
    if option.training == option.recording:
        return f"`{option.training}`"
    kinds = (("training", option.training), ("recording", option.recording))
    return ", ".join(f"{label}: `{field}`" for label, field in kinds if field)


def _by_field() -> dict[str, str]:
    """Field of a resource -> the option that says it; of several the table's first."""
    named = [("", OPTIONS_BY_NAME), ("model_config.", OPTIONS[MODEL]), ("rl_module_spec.", OPTIONS[MODULE])]
    found: dict[str, str] = {}
    for prefix, options in named:
        for option in options.values():
            for field in (option.training, option.recording):
                found.setdefault(field, f"{prefix}{option.name}")
    return found


def use_option_names(sentence: str) -> str:
    """The sentence with each field of a resource under its option's name; others stay as they are.

    The algorithm is no option: a config's class says it.
    """
    named = _PATH.sub(_option, sentence.removeprefix("spec.algorithm: "))
    return _OF_DATA.sub(_option_of_data, _PREPARE.sub(_entry_of_prepare, named))


@contextmanager
def option_names_in_errors() -> Iterator[None]:
    """Errors raised in this block name options rather than fields.

    Raises:
        UserError: the one raised in the block.
    """
    try:
        yield
    except UserError as error:
        error.args = tuple(use_option_names(each) if isinstance(each, str) else each for each in error.args)
        raise


_BY_FIELD: Final = _by_field()


def _option(found: re.Match[str]) -> str:
    field = found[1][1:]
    if field.startswith(_ALGORITHMS):
        return to_option_name(field.partition(".")[2])
    return _BY_FIELD.get(field, found[0])


def _entry_of_prepare(found: re.Match[str]) -> str:
    option, entry = _BY_FIELD["input.prepare"], to_option_name(found[1])
    return f'{option}["{entry}"]' if found[2] is None else f'{option}={{"{entry}": "{found[2]}"}}'


def _option_of_data(found: re.Match[str]) -> str:
    option = _BY_FIELD[f"input.{found[1] or found[2]}"]
    return f"`{option}`" if found[1] else f"{option}=True"


def to_option_name(field: str) -> str:
    """The name in Python of an algorithm's option: `lr`, `num_epochs`, `lambda_`."""
    name = to_snake(field)
    return f"{name}_" if keyword.iskeyword(name) else name
