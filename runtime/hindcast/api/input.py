"""The data sources of a training."""

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel, to_snake

from hindcast.api.base import Anything, FreeForm, Location, Model, NonNegative, Positive, ShortText
from hindcast.api.lists import ListSet
from hindcast.api.metadata import Reference
from hindcast.api.quantity import Quantity
from hindcast.api.rules import Rule, is_default, is_set, raise_problems
from hindcast.api.sentences import nearest
from hindcast.data_formats import AUTO, FormatName, read_option_names


class Sampler(Model):
    """Episodes that the policy plays in `spec.environment` while it is trained. Timesteps are drawn with replacement:
    uniformly, or by priority if the algorithm asks for that.
    """

    timesteps_per_update: Annotated[float, Field(gt=0)] = 1.0
    """Timesteps to play per update, in complete episodes: a new episode starts whenever fewer timesteps have been
    played than are due."""
    warmup_timesteps: NonNegative = 1000
    """Timesteps to play before the first update that learns from them."""
    capacity: Positive = 100_000
    """Maximum number of timesteps that are kept; the oldest episodes are dropped first."""
    capacity_bytes: Quantity = "256Mi"
    """Maximum bytes of the timesteps kept, in the columns that the algorithm learns from."""
    envs_per_runner: Positive = 1
    """Number of environments stepped in parallel, one episode each."""


class FilterTerm(Model):
    """A comparison on a column; rows for which it does not hold are left out."""

    column: ShortText
    """Name of the column in the data."""
    op: Literal["==", "!=", "<", "<=", ">", ">=", "in"]
    """The comparison."""
    value: Anything
    """A number, string or boolean; for `in` a list of them."""


MissingRule = Literal["CarryForward", "Median", "Mean"] | float
"""What replaces a missing value of an observation."""


class PrepareSpec(Model):
    """Rules for assembling complete episodes from rows, for data in which they are incomplete or out of order."""

    order: Literal["Auto", "Time", "Stored", "Chain"] = "Auto"
    """Order of the rows of an episode: `Time` by their column `t`, `Stored` as in the files, `Chain` by each row's next
    observation, which must be another row's observation. `Auto`: the first of these that is possible."""
    episodes: Literal["Auto", "File"] = "Auto"
    """Whether an episode may continue in another file. `File`: no, each file has its own ids, and without ids an
    episode ends with its file. `Auto`: if its id, `t`, observations or flags show that it does."""
    gaps: Literal["Refuse", "Split", "Join"] = "Refuse"
    """What to do when timesteps are missing within an episode: `Split` cuts it there, `Join` treats its rows as
    consecutive, for data in which `t` orders the rows but does not count them. Rows with a date or time as `t` are
    always joined."""
    duplicates: Literal["Drop", "Refuse"] = "Drop"
    """What to do with duplicate rows: `Drop` keeps one of them. Rows of one timestep that differ are always refused."""
    unfinished: Literal["Keep", "Drop", "Refuse"] = "Keep"
    """What to do when an episode ends neither terminated nor truncated."""
    cut_off_steps: Literal["Keep", "Drop"] = "Keep"
    """What to do with the last step of an episode that did not terminate, if its next observation is not in the
    data: `Drop` leaves it out, and its observation becomes the episode's last one."""
    missing: dict[ShortText, MissingRule] = {}
    """What replaces missing values (null or NaN) of the observations, by column, such as `heart_rate`; `*` is every
    other column. `CarryForward`: the column's last value in the episode, and before the first one the median. `Median`,
    `Mean`: that of the training data. A number: this value. The policy does the same when it acts. Default: missing
    values are refused."""
    missing_indicators: bool = False
    """Whether the policy also sees, for each column of `missing`, whether its value was missing (1 or 0)."""


_UNIT_SECONDS: Final = {"Second": 1, "Minute": 60, "Hour": 3600, "Day": 86_400, "Week": 604_800}


class TimeSpec(Model):
    """The time of each row, if rows are visits or events: `gamma` then discounts per unit of time, not per step."""

    column: ShortText
    """Name of the column in the data: dates, times or numbers that never decrease within an episode."""
    unit: Literal["Second", "Minute", "Hour", "Day", "Week"] | Annotated[float, Field(gt=0)] = 1.0
    """The unit of time. A column of dates or times requires Second, Minute, Hour, Day or Week; for a column of numbers,
    the number that is one unit, such as 24 for days if the column counts hours."""
    observe: bool = False
    """Append the time since the previous row to `obs`, as its last element `delta_t`; 0 in an episode's first row. The
    policy then needs it to act."""

    @property
    def unit_size(self) -> float:
        """The unit in the column's numbers, or in microseconds."""
        return _UNIT_SECONDS[self.unit] * 1e6 if isinstance(self.unit, str) else self.unit


_DEFAULTS_WITH_SAMPLER: Final[dict[str, Any]] = {
    "top": None,
    "format": AUTO,
    "readOptions": None,
    "columns": None,
    "filter": [],
    "schema": {},
    "time": None,
    "compressColumns": None,
    "actionsNormalized": None,
    "ignoreFinalObservation": False,
    **{f"prepare.{to_camel(name)}": field.default for name, field in PrepareSpec.model_fields.items()},
}


_COLUMNS: Final = (
    *("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"),
    *("infos", "eps_id", "t", "agent_id", "module_id"),
)
"""The columns of data that `schema` maps; any other name becomes an additional column."""

_BATCH_SIZE: Final = "batch_size"
"""Read option of every format: number of rows that a pre-learner in RLlib's form gets at a time. Without such a
pre-learner, a format that has no option of this name refuses it when its files are read."""


class InputSource(Model):
    """One source of data."""

    exactly_one: ClassVar = ("path", "recording_ref", "sampler")
    rules: ClassVar = tuple(
        Rule(
            is_set("sampler").implies(is_default(field, default)),
            "does not apply to a sampler, for which only weight may be set: the other fields are for recorded data",
            field=field,
            # CEL cannot read these two fields, since their values have several types.
            checked_by="loader" if field in ("schema", "prepare.missing") else "all",
        )
        for field, default in _DEFAULTS_WITH_SAMPLER.items()
    )

    path: Location | None = None
    """A file, a folder (searched recursively) or a glob; a path or a URI (s3://, gs://, abfss://, hdfs://, file://)."""
    recording_ref: Reference | None = None
    """The dataset of an OfflineRecording; the training waits for it."""
    sampler: Sampler | None = None
    """Episodes that the policy plays during training, for algorithms that learn from them."""
    weight: Annotated[float, Field(gt=0)] | None = None
    """Share of batches drawn from this source, relative to the other weights. Default: no mixing."""
    top: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the episodes to learn from, by highest return (sum of rewards). Default: all."""
    format: FormatName = AUTO
    """Format of the files. `Auto` detects it; `Text`, `Images` and `Binary` need `pipeline.preLearner`. `RayData` reads
    them once by `readOptions.method`: a method of Ray Data (`read_numpy`), or a custom function of the path,
    "package.module:name"."""
    read_options: FreeForm = {}
    """Options of the format's reader, such as a CSV file's delimiter."""
    columns: Annotated[list[ShortText], Field(max_length=256), ListSet()] | None = None
    """Columns to read. Default: those that the algorithm needs."""
    filter: Annotated[list[FilterTerm], Field(max_length=32)] = []
    """Comparisons that must all hold."""
    schema_map: Annotated[
        dict[ShortText, ShortText | Annotated[list[ShortText], Field(min_length=1, max_length=4096)]],
        Field(alias="schema", max_length=64),
    ] = {}
    """Column mapping: from Hindcast's name (`obs`, `actions` …) to the name in the data, a field of a struct
    (`state.position`), a pattern (`feature_*`), or a list of names. A pattern and a list make one vector of several
    columns."""
    time: TimeSpec | None = None
    """The time of each row. Default: every step takes one unit of time."""
    compress_columns: Annotated[list[ShortText], Field(max_length=256), ListSet()] | None = None
    """Columns that may hold compressed cells. Default: any; compression is detected."""
    actions_normalized: bool | None = None
    """Whether Box actions are in [-1, 1], as a policy produces them, or in the environment's range. Default: from the
    data; recordings of Hindcast and RLlib are normalised, other data are not."""
    ignore_final_observation: bool = False
    """Read data that have no next observations; the last observation of an episode is then repeated."""
    prepare: PrepareSpec = PrepareSpec()
    """Rules for assembling complete episodes from rows."""

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        raise_problems(
            [
                (
                    "schema",
                    f"maps {name!r} to {column!r}, the wrong way around: write {column!r} first, then its name in the "
                    f"data, {name!r}",
                )
                for name, column in self.schema_map.items()
                if name not in _COLUMNS
                and isinstance(column, str)
                and column in _COLUMNS
                and column not in self.schema_map
            ]
        )
        return self

    @model_validator(mode="after")
    def _check_read_options(self) -> Self:
        allowed_names = read_option_names(self.format)
        if allowed_names is None:
            return self
        reader = "no format has" if self.format == AUTO else f"{self.format} does not have"
        raise_problems(
            [
                ("readOptions", f"has {name!r}, which {reader}{nearest(name, allowed_names)}")
                for name in self.read_options
                if to_snake(name) not in (*allowed_names, _BATCH_SIZE)
            ]
        )
        return self
