"""Observation and action spaces as JSON; YAML, manifests and checkpoints use the same form."""

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field

from hindcast.api.base import Int, Model, NonNegative, Positive


def _convert_bound(value: Any) -> Any:
    """Convert a bound, or nested lists of bounds, to floats, and infinities to "-inf" and "inf"."""
    if isinstance(value, list):
        return [_convert_bound(entry) for entry in value]
    if isinstance(value, str) and value in ("-inf", "inf"):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f'has {value!r}, expected a number, "-inf", "inf" or a list of these')
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(value)


Bound = Annotated[Any, AfterValidator(_convert_bound)]


class Box(Model):
    """Real or integer arrays within bounds."""

    type: Literal["Box"]
    """Box."""
    low: Bound
    """Lower bound: one number for all entries or nested lists of `shape`; "-inf" for none."""
    high: Bound
    """Upper bound, as `low`; "inf" for none."""
    shape: Annotated[list[NonNegative], Field(max_length=16)]
    """Shape of the array."""
    dtype: str = "float32"
    """NumPy dtype."""
    names: list[str] | None = None
    """Name of each element of a vector, such as the columns of a table. Default: as in the data."""


class Discrete(Model):
    """n consecutive integers from `start`."""

    type: Literal["Discrete"]
    """Discrete."""
    n: Positive
    """Number of values."""
    start: Int = 0
    """Smallest value."""
    dtype: str = "int64"
    """NumPy dtype."""


class MultiDiscrete(Model):
    """Several discrete values at once."""

    type: Literal["MultiDiscrete"]
    """MultiDiscrete."""
    nvec: list[Any]
    """Number of values of each entry (nested lists for more dimensions)."""
    dtype: str = "int64"
    """NumPy dtype."""
    start: list[Any] | None = None
    """Smallest value of each entry, as `nvec`. Default: 0."""


class MultiBinary(Model):
    """Arrays of zeros and ones."""

    type: Literal["MultiBinary"]
    """MultiBinary."""
    n: Positive | list[Positive]
    """Number of entries, or a shape."""


class TextSpace(Model):
    """Strings of the characters of a charset."""

    type: Literal["Text"]
    """Text."""
    max_length: Positive
    """Maximum length of a string."""
    min_length: NonNegative = 1
    """Minimum length of a string."""
    charset: str | None = None
    """Allowed characters. Default: ASCII letters and digits."""


class DictSpace(Model):
    """A dictionary of values, each with a space."""

    type: Literal["Dict"]
    """Dict."""
    spaces: dict[str, "SpaceSpec"]
    """The space of each value, by its key."""


class TupleSpace(Model):
    """A tuple of values, each with a space."""

    type: Literal["Tuple"]
    """Tuple."""
    spaces: list["SpaceSpec"]
    """The space of each value, in order."""


SpaceSpec = Annotated[
    Box | Discrete | MultiDiscrete | MultiBinary | TextSpace | DictSpace | TupleSpace,
    Discriminator("type"),
]
