"""Base of all parts of a resource: strict models with camelCase names, bounded types, and CEL rules.

A model is written once and used in four forms: as Python (snake_case attributes), as YAML (camelCase fields), as
the CRD's schema (with its bounds and rules) and as the reference page (with the attribute docstrings).
"""

import math
import re
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from hindcast.api.rules import CHOICE_ERROR, Rule, check_rules, matches
from hindcast.api.spelling import respell_defaults

GROUP: Final = "hindcast.dev"
VERSION: Final = "v1alpha1"
ApiVersion = Literal["hindcast.dev/v1alpha1"]
API_VERSION: Final[ApiVersion] = "hindcast.dev/v1alpha1"


class Mark(Enum):
    """The role of a field in the run; a field without a mark defines the run.

    Attributes:
        OPERATIONAL: changes how, how fast or where the run executes, never its result. It is not part of the spec hash.
        LOCATION: operational, but changes only with a higher revision.
        EXTENDABLE: defines the run, but may change within a revision; the run continues with the new value.
        FIXED: a field inside an extendable one that no attempt may change, since it selects the training data.
    """

    OPERATIONAL = auto()
    LOCATION = auto()
    EXTENDABLE = auto()
    FIXED = auto()


OPERATIONAL, LOCATION, EXTENDABLE, FIXED = Mark


class Model(BaseModel):
    """Base of all parts: immutable; unknown fields are refused, and no value is coerced.

    Numbers are finite, since JSON has neither NaN nor infinity.

    Attributes:
        exactly_one: Python names of alternative fields; exactly one of them must be set.
        at_least_one: Python names of alternative fields; at least one of them must be set.
        rules: further rules; the CRD has them, too.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    exactly_one: ClassVar[tuple[str, ...]] = ()
    at_least_one: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for names, quantifier in ((self.exactly_one, "exactly one"), (self.at_least_one, "at least one")):
            chosen_names = [to_camel(name) for name in names if getattr(self, name) is not None]
            if names and (not chosen_names or (quantifier == "exactly one" and len(chosen_names) > 1)):
                text = _choice_message(quantifier, names, " and ".join(chosen_names) or "none")
                mentions = tuple(map(to_camel, names))
                raise PydanticCustomError(CHOICE_ERROR, "{text}", {"text": text, "mentions": mentions})
        if self.rules:
            check_rules(self.rules, self.plain_values())
        return self

    def plain_values(self) -> dict[str, Any]:
        """Return the part as in the API server: YAML's names and words, with defaults, without empty fields."""
        fields = type(self).model_fields
        empty = {
            name
            for name, field in fields.items()
            if field.default == getattr(self, name) and field.default in ([], {})
        }
        return self.model_dump(by_alias=True, exclude_none=True, exclude=empty)

    @classmethod
    def validations(cls) -> list[dict[str, str]]:
        """Return `x-kubernetes-validations` of this part: the choices among its fields, and its rules."""
        choices = [
            {
                "rule": f"[{', '.join(f'has(self.{to_camel(n)})' for n in names)}].{test}",
                "message": _choice_message(quantifier, names),
            }
            for names, quantifier, test in (
                (cls.exactly_one, "exactly one", "exists_one(given, given)"),
                (cls.at_least_one, "at least one", "exists(given, given)"),
            )
            if names
        ]
        return choices + [rule.validation() for rule in cls.rules if rule.checked_by != "loader"]

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        target = handler.resolve_ref_schema(schema)
        respell_defaults(target)
        if validations := cls.validations():
            target["x-kubernetes-validations"] = validations
        return schema


class MachineRecord(Model):
    """Base of what the operator and the runtime write for each other: fields of another version are ignored."""

    model_config = ConfigDict(extra="ignore")


def _choice_message(quantifier: str, names: tuple[str, ...], chosen_names: str | None = None) -> str:
    message = f"{quantifier} of {', '.join(map(to_camel, names))} is needed"
    return message if chosen_names is None else f"{message}, found {chosen_names}"


def _to_integer(value: Any) -> Any:
    """Convert a whole float to an integer, since YAML reads `1e6` as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_MAX_INT64: Final = 2**63 - 1


def _check_int64(value: int) -> int:
    if not -_MAX_INT64 <= value <= _MAX_INT64:
        raise ValueError(f"is {value}, expected a number from -{_MAX_INT64} to {_MAX_INT64} (64 bits)")
    return value


def _check_numbers(value: Any) -> Any:
    """Return a free-form value after checking that JSON, which the API server uses, can contain its numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"contains {value}, expected finite numbers: JSON has no NaN or infinity")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError(f"contains {value}, expected numbers within 64 bits: JSON may not keep larger ones")
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_numbers(entry)
    return value


def to_yaml_types(value: Any) -> Any:
    """Convert a value to the types of YAML: tuples and NumPy's arrays to lists, NumPy's numbers to Python's."""
    if isinstance(value, Mapping):
        return {key: to_yaml_types(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_yaml_types(entry) for entry in value]
    if type(value).__module__ == "numpy":
        return to_yaml_types(value.tolist())
    return value


def find_non_json(value: Any, path: str = "") -> str | None:
    """Describe the first object in a value that JSON cannot contain (`a function at 'reward'`), or return None.

    Numbers that are not finite are not found.
    """
    if value is None or isinstance(value, str | int | float):
        return None
    if isinstance(value, list | tuple):
        entries: Iterable[tuple[Any, Any]] = enumerate(value)
    elif isinstance(value, dict):
        entries = value.items()
    else:
        kind = "class" if isinstance(value, type) else type(value).__name__
        return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind} at {path!r}"
    problems = (find_non_json(entry, f"{path}.{name}" if path else str(name)) for name, entry in entries)
    return next(filter(None, problems), None)


def _check_json(value: Any) -> Any:
    if non_json := find_non_json(value):
        raise ValueError(f"contains {non_json}, expected text, numbers, lists and dictionaries")
    return _check_numbers(value)


_LABEL_VALUE_PATTERN: Final = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
_LABEL_KEY_PATTERN: Final = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
)


def _check_label_key(value: str) -> str:
    if not _LABEL_KEY_PATTERN.fullmatch(value):
        raise ValueError(f"has the label {value!r}, expected a name such as team or example.com/team")
    return value


# In abfss://container@account.dfs.core.windows.net, a container precedes the @; s3://anonymous@bucket has no secrets.
_HAS_CREDENTIALS: Final = (
    matches("", "^[A-Za-z][A-Za-z0-9+.-]*://[^/]*:[^/]*@")
    | (matches("", "^[A-Za-z][A-Za-z0-9+.-]*://[^/]*@") & ~matches("", "^(abfss?|az|wasbs?)://"))
) & ~matches("", "^(s3|gs|gcs)://anonymous@[^/:@]+(/|$)")
_HAS_SECRET_QUERY: Final = matches("", "(?i)[?&](secret_key|access_key|session_token|password|sig|token)=")
LOCATION_RULES: Final = (
    Rule(
        ~_HAS_CREDENTIALS & ~_HAS_SECRET_QUERY,
        "contains credentials; use a Secret (spec.cluster.envFrom), the service account or the environment instead",
    ),
    Rule(
        ~matches("", "^(file://)?/(tmp|var/tmp|dev/shm)(/|$)") & ~matches("", "^memory:"),
        "would be lost with the pod; use object storage, a mounted volume or a relative path",
        checked_by="server",
    ),
)

_ONE_SLASH_PATTERN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_AFTER_SCHEME: Final = {"hdfs": "//host:port/", "viewfs": "//cluster/", "file": "///"}
"""Scheme -> what a URI has between the scheme and the path; "//" for other schemes."""


def one_slash_problem(path: str) -> str | None:
    """Describe why `hdfs:/folder`, with one slash, is not a location; None if the path has another form."""
    match = _ONE_SLASH_PATTERN.match(path)
    if match is None:
        return None
    scheme = match["scheme"]
    correct_uri = f"{scheme}:{_AFTER_SCHEME.get(scheme, '//')}{path[match.end() :]}"
    return f"is neither a URI nor a plain path: write {correct_uri}, or ./{path} for a local folder with that name"


def _check_location(value: str) -> str:
    check_rules(LOCATION_RULES, value)
    if problem := one_slash_problem(value):
        raise ValueError(problem)
    return value


CLASS_PATH_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_.]*$"


def _check_class_path(value: str) -> str:
    if not re.fullmatch(CLASS_PATH_PATTERN, value):
        raise ValueError(f'is {value!r}, expected "package.module:Name"')
    return value


_LOCATION_SCHEMA: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 1024,
    "x-kubernetes-validations": [rule.validation() for rule in LOCATION_RULES],
}

Int = Annotated[int, BeforeValidator(_to_integer), AfterValidator(_check_int64)]
Positive = Annotated[int, Field(ge=1), BeforeValidator(_to_integer), AfterValidator(_check_int64)]
NonNegative = Annotated[int, Field(ge=0), BeforeValidator(_to_integer), AfterValidator(_check_int64)]
# A RayJob's name, `<name>-t<revision>-<attempt>`, has at most 47 characters: 36 for the name, 4 for each number.
Revision = Annotated[int, Field(ge=1, le=9999), BeforeValidator(_to_integer)]
BackoffLimit = Annotated[int, Field(ge=0, le=999), BeforeValidator(_to_integer)]
Text = Annotated[str, Field(min_length=1, max_length=1024)]
ShortText = Annotated[str, Field(min_length=1, max_length=253)]
LabelValue = Annotated[str, Field(max_length=63, pattern=_LABEL_VALUE_PATTERN)]
LabelKey = Annotated[ShortText, AfterValidator(_check_label_key)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]
Anything = Annotated[
    Any,
    AfterValidator(_check_numbers),
    WithJsonSchema({"x-kubernetes-preserve-unknown-fields": True}),
]
"""A value of any JSON type with finite numbers; the API server does not check it."""
FreeForm = Annotated[
    dict[str, Any],
    AfterValidator(_check_json),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""A mapping to any JSON values; the API server does not check them."""
Location = Annotated[Text, AfterValidator(_check_location), WithJsonSchema(_LOCATION_SCHEMA)]
ClassPath = Annotated[
    Text,
    AfterValidator(_check_class_path),
    WithJsonSchema({"type": "string", "maxLength": 1024, "pattern": CLASS_PATH_PATTERN}),
]
