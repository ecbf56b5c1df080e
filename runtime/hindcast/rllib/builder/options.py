"""The table of `options.toml`: every option of RLlib's config and its mapping.

An option is *mapped* to a field of a resource, *replaced* (accepted; `config.replaced_options` names the
replacement) or *refused* (there is no equivalent).
"""

from __future__ import annotations

import keyword
import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, get_args

from pydantic.alias_generators import to_camel, to_snake

from hindcast.api.input import PrepareSpec
from hindcast.api.options import is_custom
from hindcast.errors import DataError, FieldPath, Problem, SpecError, UserError, format_path, parse_path
from hindcast.rllib.batch_io.folder_names import name_folders

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
_COMPOSED_FIELDS: Final = {
    "duration.episodes": "evaluation_duration",
    "duration.timesteps": "evaluation_duration",
    "evaluation.explore": 'evaluation_config["explore"]',
    "input.columns": 'input_read_method_kwargs["columns"]',
    "input.filter": 'input_read_method_kwargs["filter"]',
    "input.path": "input_",
    "input.readOptions": "input_read_method_kwargs",
    "input.readOptions.method": "input_read_method",
    "input.weight": "input_",
    "pipeline.dataWorkers.cpus": 'map_batches_kwargs["num_cpus"]',
    "pipeline.dataWorkers.gpus": 'map_batches_kwargs["num_gpus"]',
    "pipeline.dataWorkers.maxReplicas": 'map_batches_kwargs["concurrency"]',
    "pipeline.dataWorkers.memory": 'map_batches_kwargs["memory"]',
    "pipeline.dataWorkers.minReplicas": 'map_batches_kwargs["concurrency"]',
    "pipeline.dataWorkers.replicas": 'map_batches_kwargs["concurrency"]',
}
"""Field of a resource that a part of an option's value sets -> how messages name that part."""
_ALGORITHM_SECTIONS: Final = ("config", "customConfig")
"""Sections of a resource with the algorithm's own options."""
_EXPERT: Final = ("policy", "train")
"""Path of the section of a recording that has the sections of a training's algorithm."""
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


_TABLE: Final = tomllib.loads(
    files("hindcast.rllib.builder").joinpath("options.toml").read_text(encoding="utf-8")
)
TYPES: Final = {name: kind for kind, names in _TABLE.pop("types").items() for name in names}
"""Option that no field checks -> type of its values: a key of `_TYPE_CHECKS`."""
RLLIB_DEFAULTS: Final[dict[str, dict[str, Any]]] = _TABLE.pop("defaults")
"""Algorithm -> its options whose defaults differ here -> RLlib's default."""
_ROWS: Final = {method: [_parse_row(method, row) for row in rows] for method, rows in _TABLE.items()}
_TYPE_CHECKS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "bool": ((bool,), "True or False"),
    "int": ((int,), "a whole number"),
    "count": ((int,), "a whole number above 0"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text"),
    "dict": ((dict,), "a dictionary"),
}
"""Type in the table -> accepted types of Python, and how messages name them."""
DEPRECATED_VALUE: Final = -1
"""RLlib's value of deprecated options, of any type."""
OPTIONS: Final = {
    method: {option.name: option for row in rows for option in row} for method, rows in _ROWS.items()
}
"""Method -> name -> option. `training` also accepts the algorithm's own options."""


def check_types(options: Mapping[str, Any]) -> None:
    """Check the types of options that no field of a resource checks.

    Raises:
        SpecError: one line per problem.
    """
    problems = []
    for name, value in options.items():
        if name not in TYPES or value is None:
            continue
        if TYPES[name] != "count" and type(value) is int and value == DEPRECATED_VALUE:
            continue
        if expected := describe_invalid_type(value, TYPES[name]):
            problems.append(Problem((), f"{name} is {value!r}, expected {expected}."))
    if problems:
        raise SpecError.of(problems)


def describe_invalid_type(value: Any, kind: str) -> str | None:
    """Return what is expected in place of a value; None if the value is valid.

    Args:
        value: the value.
        kind: key of `_TYPE_CHECKS`.
    """
    types, expected = _TYPE_CHECKS[kind]
    is_valid = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    if is_valid and kind in ("int", "float") and not value >= 0:
        return f"{expected} of at least 0"
    return None if is_valid and not (kind == "count" and value < 1) else expected


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


def _map_fields_to_options() -> dict[str, list[str]]:
    """Map each field of a resource to its options, in the table's order."""
    sections = [
        ("", OPTIONS_BY_NAME),
        ("model_config.", OPTIONS[MODEL]),
        ("rl_module_spec.", OPTIONS[MODULE]),
    ]
    options_by_field = {field: [option] for field, option in _COMPOSED_FIELDS.items()}
    for prefix, options in sections:
        for option in options.values():
            for field in filter(None, {option.training, option.recording} - _COMPOSED_FIELDS.keys()):
                options_by_field.setdefault(field, []).append(f"{prefix}{option.name}")
    return options_by_field


def use_option_names(problem: Problem, set_options: Container[str] = ()) -> Problem:
    """Return the problem with the names of options in place of fields, and without the name of the resource.

    Temporary folders have the names of what was written to them.

    Args:
        problem: the problem.
        set_options: names of the options that the user set, which are preferred to others of the same field.
    """
    field = problem.field
    if field == ("spec", "algorithm"):
        field = ()  # the config's class sets the algorithm, not an option
    elif method := _METHOD_BY_SECTION.get(format_path(field)):
        field = (f"{method}()",)
    elif field and (option := _find_option(_complete_field(field), set_options)):
        field = ("".join(option),)
    problem = name_folders(replace(problem, what=problem.python or problem.what, python=""))
    mentions = {*problem.mentions, *_FIELD_IN_TEXT.findall(problem.text)}
    names = {mention: _translate_mention(mention, problem.field, set_options) for mention in mentions}
    names |= _PYTHON_PHRASES
    names |= _PYTHON_WORDS.get(str(field[0]).rpartition(".")[2], {}) if field else {}
    return replace(problem.with_names(field, names), resource="")


def _complete_field(field: FieldPath) -> FieldPath:
    """Return a field with its section, which readers of data leave out."""
    return ("input", *field) if field[0] == "readOptions" else field


@contextmanager
def option_names_in_errors(set_options: Container[str] = ()) -> Iterator[None]:
    """Let errors that are raised in the block name options rather than fields; see `use_option_names`.

    Raises:
        UserError: the error that the block raised.
    """
    try:
        yield
    except UserError as error:
        if isinstance(error, DataError):
            error.locate(mentions=DATA_MENTIONS)
        error.problems = tuple(use_option_names(problem, set_options) for problem in error.problems)
        raise


_OPTIONS_BY_FIELD: Final = _map_fields_to_options()


_OPTION_BY_SECTION: Final = {"evaluation.offline": "offline_evaluation_held_out"}
"""Section -> the option that adds it, for messages that advise to add the section."""
_PYTHON_PHRASES: Final = {"beside the YAML file": "beside your script"}
"""Text in messages -> the text for users of Python."""
_RESIDENCY_WORDS: Final = {"Streaming": "False", "Resident": "True", "Auto": "None"}
_PYTHON_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "materialize_data": _RESIDENCY_WORDS,
    "materialize_mapped_data": _RESIDENCY_WORDS,
    "evaluation_duration": {"Auto": "'auto'"},
    "observation_filter": {
        "'none'": "'NoFilter'",
        "'meanStd'": "'MeanStdFilter'",
        "MeanStd": "'MeanStdFilter'",
    },
}
"""Option with other values than its field -> the field's value in messages -> the option's value."""
_FIELD_IN_TEXT: Final = re.compile(
    r"(?<![\w./:'\"`@-])"
    r"((?:(?:spec|readOptions|prepare|evaluation|pipeline|model|config)(?:\.[a-z]\w*)+|[a-z]+[A-Z]\w*)"
    r"(?:: (?:true|false|[A-Z]\w+))?)(?![\w/(])"
)
"""A path of a field, or a field's name of several words, perhaps with a value; not within quotes."""
_METHOD_BY_SECTION: Final = {
    f"spec.{section}": method
    for section, method in {
        "environment": "environment",
        "evaluation": "evaluation",
        "evaluation.offline": "evaluation",
        "rewards": "training",
        "learners": "learners",
        "pipeline": "offline_data",
        "output": "offline_data",
        "runners": "env_runners",
    }.items()
}
"""Section of a resource that is not an option -> the config's method that sets its fields."""


def _list_data_mentions() -> Iterator[str]:
    """Yield the forms in which messages about data mention a field of `spec.input[]`: without the entry's path."""
    for field in _OPTIONS_BY_FIELD:
        section, _, name = field.partition(".")
        if section == "input" and name:
            yield from (f"`{name}`", f"{name}: true")
    for name, info in PrepareSpec.model_fields.items():
        field = f"prepare.{to_camel(name)}"
        yield from (field, *(f"{field}: {value}" for value in get_args(info.annotation)))


DATA_MENTIONS: Final = tuple(_list_data_mentions())


def _find_option(steps: FieldPath, set_options: Container[str] = ()) -> tuple[str, str] | None:
    """Return the option that sets a field and the entry in its value (`["gaps"]`, `[1]` or ""); None without one."""
    names = [step for step in steps if isinstance(step, str)]
    names = names[1:] if names[:1] == ["spec"] else names
    if tuple(names[:2]) == _EXPERT and names[2:3] != ["model"]:
        names = names[2:]
    if len(names) > 1 and names[0] in _ALGORITHM_SECTIONS:
        return to_option_name(names[1]), _format_entries(steps[steps.index(names[1]) + 1 :])
    for length in range(len(names), 0, -1):
        options, entries = _OPTIONS_BY_FIELD.get(".".join(names[:length])), names[length:]
        if options is not None and not (entries and options[0] == "input_"):
            # If several options set a field, the last one takes precedence.
            option = [options[0], *(option for option in options if option in set_options)][-1]
            return option, _format_entries(map(to_snake, entries) if option == "input_prepare" else entries)
    return None


def _format_entries(steps: Iterable[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f'["{step}"]' for step in steps)


def _translate_mention(mention: str, field: FieldPath, set_options: Container[str]) -> str:
    """Return the option of a mentioned field, set to the mentioned value if there is one: `materialize_data=True`.

    Args:
        mention: see `Problem.mentions`.
        field: the problem's field.
        set_options: see `use_option_names`.
    """
    quote = "`" if mention.startswith("`") else ""
    path, _, value = mention.strip("`").partition(": ")
    steps = parse_path(path)
    relative_paths = [] if steps[:1] == ("spec",) else [(*field, *steps), (*field[:-1], *steps)]
    matches = (_find_option(relative_path, set_options) for relative_path in relative_paths)
    option = next((match for match in matches if match and not match[1]), None)
    option = option or _find_option(steps, set_options) or _find_option(("input", *steps), set_options)
    if option is None:
        section = format_path(steps).removeprefix("spec.")
        if section in _OPTION_BY_SECTION:
            return _OPTION_BY_SECTION[section]
        return f"{method}()" if (method := _METHOD_BY_SECTION.get(f"spec.{section}")) else mention
    name, entry = option
    if not value:
        return f"{quote}{name}{entry}{quote}"
    python_value = {"true": "True", "false": "False"}.get(value, f'"{value}"')
    return f"{name}={{{entry[1:-1]}: {python_value}}}" if entry else f"{name}={python_value}"


def to_option_name(field: str) -> str:
    """Return the Python name of an algorithm's option: `lr`, `num_epochs`, `lambda_`."""
    name = to_snake(field)
    return f"{name}_" if keyword.iskeyword(name) else name
