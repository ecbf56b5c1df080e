"""Where a training's data come from."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hindcast.api.base import Anything, Location, Model, ShortText
from hindcast.api.metadata import Reference


class Sampler(Model):
    """Live samples of the policy that is being trained, from `spec.environment`."""


class FilterTerm(Model):
    """A comparison on a column; rows for which it does not hold are left out."""

    column: ShortText
    """Name of the column in the data."""
    op: Literal["==", "!=", "<", "<=", ">", ">=", "in"]
    """The comparison."""
    value: Anything
    """A number, string or boolean; for `in` a list of them."""


class InputSource(Model):
    """One source of data."""

    exactly_one: ClassVar = ("path", "recording_ref", "sampler")

    path: Location | None = None
    """A file, a folder (searched recursively) or a glob; a path or a URI (s3://, gs://, abfss://, hdfs://, file://)."""
    recording_ref: Reference | None = None
    """The dataset of an OfflineRecording, which is waited for."""
    sampler: Sampler | None = None
    """Live samples."""
    weight: Annotated[float, Field(gt=0)] | None = None
    """Share of batches drawn from this source, relative to the other weights. Default: no mixing."""
    columns: Annotated[list[ShortText], Field(max_length=256)] | None = None
    """Columns to read. Default: those that the algorithm needs."""
    filter: Annotated[list[FilterTerm], Field(max_length=32)] = []
    """Comparisons that must all hold."""
    schema_map: Annotated[dict[ShortText, ShortText], Field(alias="schema", max_length=64)] = {}
    """Names in the data that differ: from Hindcast's column name (`obs`, `actions` …) to the data's."""
