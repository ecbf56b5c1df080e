"""Where a training's data come from."""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from hindcast.api.base import Anything, FreeForm, Location, Model, NonNegative, Positive, ShortText
from hindcast.api.metadata import Reference
from hindcast.api.quantity import Quantity

RECORDED_ALONE: Final = "beside a sampler weight alone can stand: the other fields are for recorded data"


class Sampler(Model):
    """What the policy plays in `spec.environment` while it is trained. Its timesteps are drawn with replacement: all
    alike, or by priority where the algorithm asks for that.
    """

    timesteps_per_update: Annotated[float, Field(gt=0)] = 1.0
    """Timesteps played for each update of the training, in whole episodes: an episode is begun where fewer have been
    played."""
    warmup_timesteps: NonNegative = 1000
    """Timesteps played besides, before the first update that learns from them."""
    capacity: Positive = 100_000
    """Most timesteps that are kept; the oldest episodes leave, whole."""
    capacity_bytes: Quantity = "256Mi"
    """Most bytes of them, in the columns that are learnt from."""
    envs_per_runner: Positive = 1
    """Environments stepped side by side: so many episodes are played at a time."""


class FilterTerm(Model):
    """A comparison on a column; rows for which it does not hold are left out."""

    column: ShortText
    """Name of the column in the data."""
    op: Literal["==", "!=", "<", "<=", ">", ">=", "in"]
    """The comparison."""
    value: Anything
    """A number, string or boolean; for `in` a list of them."""


class PrepareSpec(Model):
    """How rows become whole episodes, where the data do not hold them whole and in order."""

    order: Literal["Auto", "Time", "Stored", "Chain"] = "Auto"
    """What orders the rows of an episode: `Time` their column `t`, `Stored` their order in the files, `Chain`
    each row's next observation, which must be another row's observation. `Auto`: the first that can."""
    gaps: Literal["Refuse", "Split"] = "Refuse"
    """When timesteps are missing within an episode: `Split` makes pieces of it."""
    duplicates: Literal["Drop", "Refuse"] = "Drop"
    """When rows repeat others: `Drop` counts them once. Rows of one timestep that differ are always refused."""
    unfinished: Literal["Keep", "Drop", "Refuse"] = "Keep"
    """When an episode ends neither terminated nor truncated."""


class InputSource(Model):
    """One source of data."""

    exactly_one: ClassVar = ("path", "recording_ref", "sampler")

    path: Location | None = None
    """A file, a folder (searched recursively) or a glob; a path or a URI (s3://, gs://, abfss://, hdfs://, file://)."""
    recording_ref: Reference | None = None
    """The dataset of an OfflineRecording, which is waited for."""
    sampler: Sampler | None = None
    """What the policy plays in the meantime, of algorithms that learn from such."""
    weight: Annotated[float, Field(gt=0)] | None = None
    """Share of batches drawn from this source, relative to the other weights. Default: no mixing."""
    top: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the episodes that are learnt from: those with the highest return, the sum of rewards. Default: all."""
    format: Literal[
        "Auto",
        "Parquet",
        "JSON",
        "CSV",
        "SampleBatch",
        "Minari",
        "D4RL",
        "TFRecord",
        "Text",
        "Images",
        "Binary",
        "RayData",
    ] = "Auto"
    """What the files are. `Auto` finds out; `Text`, `Images` and `Binary` need `pipeline.preLearner`. `RayData` reads
    them once by `readOptions.method`: a method of Ray Data (`read_numpy`), or a function of one's own of the path,
    "package.module:name"."""
    read_options: FreeForm = {}
    """Options of the format's reader, such as a CSV file's delimiter."""
    columns: Annotated[list[ShortText], Field(max_length=256)] | None = None
    """Columns to read. Default: those that the algorithm needs."""
    filter: Annotated[list[FilterTerm], Field(max_length=32)] = []
    """Comparisons that must all hold."""
    schema_map: Annotated[dict[ShortText, ShortText], Field(alias="schema", max_length=64)] = {}
    """Names in the data that differ: from Hindcast's column name (`obs`, `actions` …) to the data's."""
    compress_columns: Annotated[list[ShortText], Field(max_length=256)] | None = None
    """Columns that may hold compressed cells. Default: any, found in the data."""
    actions_normalized: bool | None = None
    """Whether Box actions lie in [-1, 1], as a policy gives them, or are the environment's own. Default: as the data
    say; recordings of Hindcast and RLlib are normalised, other data are not."""
    ignore_final_observation: bool = False
    """Read data that have no next observations: the last observation of an episode is zeros then."""
    prepare: PrepareSpec = PrepareSpec()
    """How rows become whole episodes, where they are not."""

    @model_validator(mode="after")
    def _check_sampler(self) -> Self:
        if self.sampler is None:
            return self
        others = type(self).model_fields.items()
        given = [
            str(field.alias)
            for name, field in others
            if name not in ("sampler", "weight") and getattr(self, name) != field.default
        ]
        if given:
            raise ValueError(f"has a sampler and {', '.join(given)}; {RECORDED_ALONE}")
        return self
