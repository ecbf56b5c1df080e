"""Types of options that a JSON schema can only name: schedules, and options that bound each other.

The class of an algorithm's options and the model that `options` rebuilds from its JSON schema both use them.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, Field, model_validator

from hindcast.api.rules import Expression, Relation, Rule, check_rules, comparison, field_value
from hindcast.api.spelling import YamlWords

Interpolation = Annotated[Literal["line", "cosine", "step"], YamlWords("Line", "Cosine", "Step")]
Point = Annotated[list[float | Interpolation], Field(min_length=2, max_length=3)]
Points = Annotated[list[Point], Field(min_length=1, max_length=64)]
Curve: TypeAlias = float | Sequence[Sequence[float | str]]
"""A schedule, as Python code passes it: see `Schedule`."""
_ScheduleValue: TypeAlias = float | list[list[float | Interpolation]]


def _check_schedule(schedule: _ScheduleValue) -> _ScheduleValue:
    if isinstance(schedule, float):
        return schedule
    for point in schedule:
        if [isinstance(item, str) for item in point] not in ([False, False], [False, False, True]):
            raise ValueError(
                f"the schedule has the point {point}, expected [timestep, value] or [timestep, value, "
                "interpolation]"
            )
    timesteps = [cast(float, point[0]) for point in schedule]
    if timesteps[0] != 0:
        raise ValueError(f"the schedule starts at timestep {timesteps[0]:g}, expected 0")
    if any(later <= earlier for earlier, later in itertools.pairwise(timesteps)):
        raise ValueError("the timesteps of a schedule must increase from point to point")
    if (minimum := min(_schedule_values(schedule))) < 0:
        raise ValueError(f"the schedule has the value {minimum}, expected at least 0")
    return schedule


def _check_probabilities(schedule: _ScheduleValue) -> _ScheduleValue:
    if not isinstance(schedule, float) and (maximum := max(_schedule_values(schedule))) > 1:
        raise ValueError(f"the schedule has the value {maximum}, expected a probability of at most 1")
    return schedule


def _schedule_values(schedule: list[list[float | Interpolation]]) -> list[float]:
    return [cast(float, point[1]) for point in schedule]


Schedule = Annotated[
    Annotated[float, Field(ge=0)] | Points,
    AfterValidator(_check_schedule),
    Field(json_schema_extra={"x-type": "Schedule"}),
]
"""A non-negative number, or points `[[timestep, value], ...]` from timestep 0 on (RLlib's form).

A point's third item says how the value changes up to the next point: along a "line" (the default), along half a
"cosine", or in a "step" at the next point: `[[0, 0], [1000, 3e-4, "cosine"], [1000000, 0]]`, in YAML `Cosine`.
"""
ChanceSchedule = Annotated[
    Annotated[float, Field(ge=0, le=1)] | Points,
    AfterValidator(_check_schedule),
    AfterValidator(_check_probabilities),
    Field(json_schema_extra={"x-type": "ChanceSchedule"}),
]
"""A schedule of a probability."""

TYPES_BY_NAME: Final[Mapping[str, Any]] = {"Schedule": Schedule, "ChanceSchedule": ChanceSchedule}
"""Value of `x-type` in an option's schema -> the type."""

RELATIONS: Final[Mapping[str, Relation]] = {"x-at-most": "at most", "x-multiple-of": "a multiple of"}
"""Keyword in an option's schema, which names another option -> relation of the first to the other option."""


def relation_rules(
    options: Mapping[str, Mapping[str, Any]], prefix: str = "", condition: Expression | None = None
) -> Iterator[Rule]:
    """Yield the rules by which options bound each other; an option that is not set has its default.

    Args:
        options: name -> JSON schema of each option.
        prefix: path of the options, ending with a dot, in the part that gets the rules.
        condition: where the rules apply. Default: always.
    """

    def option_value(name: str) -> Expression:
        return field_value(f"{prefix}{name}", options[name]["default"])

    for name, option in options.items():
        for keyword, relation in RELATIONS.items():
            if other := option.get(keyword):
                values = option_value(name), option_value(other)
                yield comparison(
                    f"{prefix}{name}", relation, f"{prefix}{other}", values=values, condition=condition
                )


class RelatedOptions(BaseModel):
    """Options that are checked against each other by the `RELATIONS` in their schemas."""

    @model_validator(mode="after")
    def _check_relations(self) -> Self:
        check_rules(_relation_rules_of(type(self)), self.model_dump(by_alias=True))
        return self


@cache
def _relation_rules_of(model: type[BaseModel]) -> list[Rule]:
    options = {
        field.alias or name: {"default": field.default, **extra}
        for name, field in model.model_fields.items()
        if isinstance(extra := field.json_schema_extra or {}, dict)
    }
    return list(relation_rules(options))
