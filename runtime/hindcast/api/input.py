"""Where a training's data come from."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from hindcast.api.base import Anything, FreeForm, Location, Model, Rule, ShortText
from hindcast.api.documents import Problem, Steps
from hindcast.api.metadata import Reference

NO_SAMPLER: Final = (
    "is not available yet: no algorithm takes live samples; name recorded data by path or recordingRef"
)


class Sampler(Model):
    """Live samples of the policy that is being trained, from `spec.environment`. Not available yet."""


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
    rules: ClassVar = (Rule("!has(self.sampler)", NO_SAMPLER, at=".sampler"),)

    path: Location | None = None
    """A file, a folder (searched recursively) or a glob; a path or a URI (s3://, gs://, abfss://, hdfs://, file://)."""
    recording_ref: Reference | None = None
    """The dataset of an OfflineRecording, which is waited for."""
    sampler: Sampler | None = None
    """Live samples: not available yet."""
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
    ] = "Auto"
    """What the files are. `Auto` finds out; `Text`, `Images` and `Binary` need `pipeline.preLearner`."""
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


def check_samplers(sources: Any, at: Steps) -> list[Problem]:
    """What is wrong with live samples among sources as plain values. `at` is their place (`("spec", "input")`).

    The model takes them: a training on nothing but samples is how an algorithm that learns online is run.
    """
    entries = sources if isinstance(sources, list) else []
    return [
        Problem((*at, index, "sampler"), NO_SAMPLER)
        for index, source in enumerate(entries)
        if isinstance(source, dict) and isinstance(source.get("sampler"), dict)
    ]
