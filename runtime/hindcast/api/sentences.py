"""Convert pydantic's errors to sentences: `spec.config.lr is 'fast' (text), expected a number`."""

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hindcast.api.rules import CHOICE_ERROR, RULE_ERROR, mentioned_fields, name_fields
from hindcast.api.spelling import PYTHON_SPELLING
from hindcast.errors import FieldPath, Problem, format_path, parse_path

_MAX_VALUE_LENGTH: Final = 60

_EXPECTED_VALUES: Final = {
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("dict_type", "model_attributes_type", "model_type"), "a mapping"),
    "finite_number": "a finite number",
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    **dict.fromkeys(("int_from_float", "int_parsing", "int_type"), "a whole number"),
    "list_type": "a list",
    "none_required": "nothing",
    "string_type": "text",
}
_COMPLETE_SENTENCES: Final = {
    **dict.fromkeys((RULE_ERROR, CHOICE_ERROR), "{text}"),
    PYTHON_SPELLING: "is {value!r}: write {word}",
    "missing": "is missing",
    "too_long": "has {actual_length} entries, expected at most {max_length}",
    "too_short": "has {actual_length} entries, expected at least {min_length}",
    "union_tag_not_found": "has no field {discriminator}",
    "value_error": "{error}",
}
_BOUNDS: Final = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "string_pattern_mismatch": "the form {pattern}",
    "literal_error": "{expected}",
    "union_tag_invalid": "{expected_tags}",
}
# Options of RLlib and d3rlpy, folded -> the field that does the same, where a model has it.
_FOREIGN_OPTIONS: Final = {
    "actorlearningrate": "actorLr",
    "alphalearningrate": "criticLr",  # of d3rlpy's CQL, where SAC's temperature is called `temp`
    "alphathreshold": "lagrangianThresh",
    "batchsize": "trainBatchSizePerLearner",
    "conservativeweight": "minQWeight",
    "criticlearningrate": "criticLr",
    "learningrate": "lr",
    "lrschedule": "lr",
    "initialtemperature": "initialAlpha",
    "lstmcellsize": "cellSize",
    "maxweight": "weightClip",
    "ncritics": "numCritics",
    "nactionsamples": "numActions",
    "nsteps": "nStep",
    "targetsmoothingclip": "targetNoiseClip",
    "targetsmoothingsigma": "targetNoise",
    "templearningrate": "alphaLr",
    "updateactorinterval": "policyDelay",
    "uselstm": "recurrent",
    "weighttemp": "beta",
}
_FOREIGN_OPTION_FORMS: Final = {
    "lrschedule": "lr: [[0, 1e-3], [100000, 1e-5]]",
    "uselstm": "recurrent: LSTM",
}


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the field for an option of RLlib or d3rlpy, or `; did you mean 'algorithm'?`, or the allowed names."""
    sorted_names = sorted(names)
    folded_name = _fold(name)
    if _FOREIGN_OPTIONS.get(folded_name) in sorted_names:
        return f"; here it is '{_FOREIGN_OPTION_FORMS.get(folded_name, _FOREIGN_OPTIONS[folded_name])}'"
    return similar(name, sorted_names) or (f"; allowed: {', '.join(sorted_names)}" if sorted_names else "")


def similar(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'Episodes'?` if a name is close enough, else an empty text."""
    closest = _closest_name(name, names)
    return f"; did you mean '{closest}'?" if closest else ""


def similar_file(path: str) -> str:
    """Return the same as `similar` for the name of a file in its folder; a common ending alone is not similar."""
    name, stem = PurePath(path).name, PurePath(path).stem
    try:
        names = [sibling.name for sibling in Path(path).parent.iterdir()]
    except OSError:
        return ""
    return similar(name, [other for other in names if _closest_name(stem, [PurePath(other).stem])])


def _closest_name(name: str, names: Iterable[str]) -> str | None:
    names_by_folded = {_fold(known_name): known_name for known_name in names}
    matches = difflib.get_close_matches(_fold(name), names_by_folded, n=1, cutoff=0.6)
    return names_by_folded[matches[0]] if matches else None


def _fold(name: str) -> str:
    return name.lower().replace("_", "")


def show_value(value: Any) -> str:
    """Format a value as in YAML, shortened, with the name of its type if that is not obvious."""
    if value is None:
        return "empty"
    if isinstance(value, str):
        return f"{_shorten(repr(value))} (text)"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return _shorten(json.dumps(value, default=str))


def show_python_value(value: Any) -> str:
    """Format a value as in Python, shortened."""
    return _shorten(repr(value))


class _Language(NamedTuple):
    """The words of a language for values.

    Attributes:
        show: formats a value.
        expected_values: type of pydantic's error -> the values that are expected.
        quote: character around text.
    """

    show: Callable[[Any], str]
    expected_values: Mapping[str, str]
    quote: str


_YAML: Final = _Language(show_value, _EXPECTED_VALUES, "")
_PYTHON: Final = _Language(
    show_python_value,
    {
        **_EXPECTED_VALUES,
        **dict.fromkeys(("bool_parsing", "bool_type"), "True or False"),
        **dict.fromkeys(("dict_type", "model_attributes_type", "model_type"), "a dictionary"),
        "none_required": "None",
    },
    "'",
)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 1]}…"


def named_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Map the YAML names of a model's fields to the fields."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def problems_of(
    error: ValidationError, model: type[BaseModel], data: Any, prefix: FieldPath = ()
) -> list[Problem]:
    """List the problems that pydantic found, at most one for each path.

    Args:
        error: pydantic's error.
        model: the model that `data` was validated with.
        data: plain values.
        prefix: path of `data` in the resource.
    """
    errors_by_path: dict[FieldPath, list[ErrorDetails]] = {}
    union_paths: set[FieldPath] = set()
    for details in _split_rules(error.errors(include_url=False), data, prefix):
        steps, has_union_tags = _locate(details, data)
        errors_by_path.setdefault(steps, []).append(details)
        if has_union_tags:
            union_paths.add(steps)
    intended_names = {
        (*steps[:-1], _closest_name(str(steps[-1]), _names_at(model, steps[:-1])))
        for steps, errors in errors_by_path.items()
        if errors[0]["type"] == "extra_forbidden"
    }
    parent_steps = {steps[:length] for steps in errors_by_path for length in range(len(steps))}
    return [
        _make_problem(errors, steps, model, prefix)
        for steps, errors in errors_by_path.items()
        # Of a union's alternatives, the user meant the one that matched deeper into the value.
        if not (steps in union_paths and steps in parent_steps)
        # A misspelt required field is one mistake, although pydantic reports it as unknown and as missing.
        and not (errors[0]["type"] == "missing" and steps in intended_names)
    ]


def _make_problem(
    errors: list[ErrorDetails], steps: FieldPath, model: type[BaseModel], prefix: FieldPath
) -> Problem:
    text, python = (_describe(errors, steps, model, language) for language in (_YAML, _PYTHON))
    mentions = errors[0].get("ctx", {}).get("mentions", ())
    return Problem((*prefix, *steps), text, python="" if python == text else python, mentions=tuple(mentions))


def _split_rules(errors: Iterable[ErrorDetails], data: Any, prefix: FieldPath) -> Iterator[ErrorDetails]:
    """Split the error of several rules into one for each, and complete the paths of the fields that they name."""
    for details in errors:
        if details["type"] != RULE_ERROR:
            yield details
            continue
        for field, text in details["ctx"]["problems"]:
            part = format_path((*prefix, *_locate(details, data)[0]))
            mentions = mentioned_fields(text, part)
            yield {**details, "ctx": {"field": field, "text": name_fields(text, part), "mentions": mentions}}


def _locate(details: ErrorDetails, data: Any) -> tuple[FieldPath, bool]:
    """Return an error's path without the tags that pydantic adds for unions, and whether there were any tags."""
    steps: list[str | int] = []
    loc, value, has_tags = details["loc"], data, False
    for index, step in enumerate(loc):
        is_in_data = (isinstance(value, dict) and step in value) or (
            isinstance(value, list) and isinstance(step, int)
        )
        if is_in_data:
            value = value[step]
            steps.append(step)
        elif details["type"] == "missing" and index == len(loc) - 1:
            steps.append(step)
        elif step != "[key]":
            has_tags = True
    if details["type"] == RULE_ERROR:
        steps += parse_path(details["ctx"].get("field", ""))
    return tuple(steps), has_tags


def value_problem(error: ValidationError) -> str:
    """Return the first problem that pydantic found, without its path: `'0.5', expected at least 1`."""
    details = error.errors(include_url=False)[0]
    if details["type"] in _COMPLETE_SENTENCES:
        return _COMPLETE_SENTENCES[details["type"]].format(**details.get("ctx", {}))
    expected = _expected_text(details, _YAML)
    return f"{details['input']!r}, expected {expected}" if expected else details["msg"]


def _describe(
    errors: list[ErrorDetails], steps: FieldPath, model: type[BaseModel], language: _Language
) -> str:
    # Of a union's alternatives, the user meant the one that accepts the value's type.
    details = next((error for error in errors if error["type"] in _COMPLETE_SENTENCES), errors[0])
    context = details.get("ctx", {})
    if details["type"] == "extra_forbidden":
        return "is not a field" + nearest(str(steps[-1]), _names_at(model, steps[:-1]))
    if details["type"] in _COMPLETE_SENTENCES:
        sentence = _COMPLETE_SENTENCES[details["type"]].format(**context)
        return sentence.replace("has 1 entries", "has 1 entry")
    expected = " or ".join(dict.fromkeys(filter(None, (_expected_text(error, language) for error in errors))))
    if not expected:
        return f"is {language.show(details['input'])}: {details['msg']}"
    return f"is {language.show(_invalid_value(details))}, expected {expected}{_suggest_word(details)}"


def _expected_text(details: ErrorDetails, language: _Language) -> str | None:
    error_type = details["type"]
    if error_type in _BOUNDS:
        bounds = _whole_floats_to_integers(details.get("ctx", {}))
        return _BOUNDS[error_type].format(**bounds).replace("'", language.quote)
    return language.expected_values.get(error_type)


def _whole_floats_to_integers(context: dict[str, Any]) -> dict[str, Any]:
    """Convert whole bounds, which pydantic stores as floats, to integers."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in context.items()
    }


def _invalid_value(details: ErrorDetails) -> Any:
    return details["ctx"]["tag"] if details["type"] == "union_tag_invalid" else details["input"]


def _suggest_word(details: ErrorDetails) -> str:
    context, invalid_word = details.get("ctx", {}), _invalid_value(details)
    if details["type"] not in ("literal_error", "union_tag_invalid") or not isinstance(invalid_word, str):
        return ""
    allowed_words = str(context.get("expected", context.get("expected_tags", ""))).replace(" or ", ",")
    return similar(invalid_word, [word.strip(" '") for word in allowed_words.split(",")])


def _names_at(model: type[BaseModel], steps: FieldPath) -> Iterable[str]:
    """List the fields of the model at a path inside `model`; empty unless there is exactly one model."""
    annotation: Any = model
    for step in steps:
        annotation = _step_into(annotation, step)
    models = models_in(annotation)
    return named_fields(models[0]) if len(models) == 1 else ()


def _step_into(annotation: Any, step: str | int) -> Any:
    for model in models_in(annotation):
        if (field := named_fields(model).get(str(step))) is not None:
            return field.annotation
    for alternative in _alternatives(annotation):
        if get_origin(alternative) in (list, dict):
            return get_args(alternative)[-1]
    return None


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """List the models among the alternatives of an annotation."""
    return [
        alternative
        for alternative in _alternatives(annotation)
        if isinstance(alternative, type) and issubclass(alternative, BaseModel)
    ]


def _alternatives(annotation: Any) -> list[Any]:
    """List the alternatives of an annotation, without Annotated and Union."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [part for alternative in get_args(annotation) for part in _alternatives(alternative)]
    return [annotation]
