"""Options of the data commands for reading and writing, and the summary that they print."""

import json
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from hindcast.cli.screen import Screen
from hindcast.data_formats import AUTO, FormatName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindcast.api.input import TimeSpec
    from hindcast.datasets.curate.writing import WriteResult
    from hindcast.datasets.hooks import Hooks
    from hindcast.datasets.prepare.reading import Reading
    from hindcast.datasets.target import Target


def _source_option(*names: str, **options: Any) -> Any:
    return typer.Option(*names, rich_help_panel="How the source is read", **options)


def _source_choice(choices: Any, help: str) -> Any:
    """Return an option for one of the values of a Literal, which the help lists after its sentences."""
    # As the metavar, which typer shows by default, a long list would push the options' names out of 80 columns.
    return _source_option(metavar="CHOICE", help=f"{help} One of: {', '.join(get_args(choices))}.")


def _destination_option(*names: str, **options: Any) -> Any:
    return typer.Option(*names, rich_help_panel="How the destination is written", **options)


Order = Literal["Auto", "Time", "Stored", "Chain"]
Gaps = Literal["Refuse", "Split", "Join"]
Duplicates = Literal["Drop", "Refuse"]
Unfinished = Literal["Keep", "Drop", "Refuse"]
CutOffSteps = Literal["Keep", "Drop"]
Actions = Literal["Normalized", "Raw"]
_FORMATS = ", ".join(get_args(FormatName))


@dataclass(frozen=True)
class ReadFlags:
    """Options for reading the sources; they match the fields of a training's input."""

    file_format: Annotated[
        FormatName,
        _source_option("--format", metavar="FORMAT", help=f"Format of the source files: {_FORMATS}."),
    ] = AUTO
    schema: Annotated[
        list[str] | None,
        _source_option(
            metavar="NAME=COLUMN",
            help="Map a column: obs=observation reads obs from the column observation. Repeatable: columns with "
            "the same NAME become one vector.",
        ),
    ] = None
    time: Annotated[
        str | None,
        _source_option(metavar="COLUMN", help="Column with the time of each row; gamma then discounts time."),
    ] = None
    time_unit: Annotated[
        str | None,
        _source_option(
            metavar="UNIT",
            help="Second, Minute, Hour, Day or Week; for a column of numbers the number that is one unit. Default: 1.",
        ),
    ] = None
    observe_time: Annotated[
        bool,
        _source_option("--observe-time", help="Append the time since the previous row to obs."),
    ] = False
    row_conditions: Annotated[
        list[str] | None,
        _source_option(
            "--filter",
            "--rows",
            metavar="COMPARISON",
            help="Condition on the timesteps to read, such as 'rewards > 0'. Repeatable: all must hold.",
        ),
    ] = None
    columns: Annotated[
        str | None,
        _source_option(metavar="A,B,…", help="Columns to read. Default: all."),
    ] = None
    read_option: Annotated[
        list[str] | None,
        _source_option(
            metavar="NAME=VALUE",
            help="Option for the format's reader, as under readOptions, such as 'delimiter=;'. The value is JSON or "
            "text. Repeatable.",
        ),
    ] = None
    order: Annotated[
        Order,
        _source_choice(Order, "How to order the rows of an episode."),
    ] = "Auto"
    file_episodes: Annotated[
        bool,
        _source_option(
            "--file-episodes",
            help="No episode continues in another file: each file is an episode, or counts its own ids.",
        ),
    ] = False
    gaps: Annotated[
        Gaps,
        _source_choice(
            Gaps,
            "What to do when timesteps are missing. Join is for a column t that does not count timesteps.",
        ),
    ] = "Refuse"
    duplicates: Annotated[
        Duplicates,
        _source_choice(Duplicates, "What to do with duplicate rows."),
    ] = "Drop"
    unfinished: Annotated[
        Unfinished,
        _source_choice(Unfinished, "What to do when an episode ends neither terminated nor truncated."),
    ] = "Keep"
    cut_off_steps: Annotated[
        CutOffSteps,
        _source_choice(
            CutOffSteps,
            "What to do with the last step of an episode that did not terminate, if its next observation is not "
            "in the data.",
        ),
    ] = "Keep"
    actions: Annotated[
        Actions | None,
        _source_choice(
            Actions,
            "Whether Box actions are in [-1, 1], as a policy produces them, or in the environment's units. Default: as "
            "the data say.",
        ),
    ] = None
    ignore_final_observation: Annotated[
        bool,
        _source_option(
            "--ignore-final-observation",
            help="Read data without next observations; each episode's last observation is then repeated.",
        ),
    ] = False
    pre_learner: Annotated[
        str | None,
        _source_option(
            metavar="MODULE:CLASS",
            help="Class with a method map_rows that turns files without timesteps (Text, Images, Binary) into "
            "episodes.",
        ),
    ] = None

    def make_reading(self, paths: Sequence[str]) -> "Reading":
        """Combine paths and these options into a `Reading`."""
        # Imported here: --help shows these options too, and must not wait for pyarrow.
        from hindcast.api.filter_term import parse_filter
        from hindcast.api.input import PrepareSpec
        from hindcast.datasets.prepare.reading import Reading
        from hindcast.formats.format import ReadOptions

        options = ReadOptions(
            time=_parse_time(self.time, self.time_unit, self.observe_time),
            schema=_parse_schema(self.schema or ()),
            columns=None if self.columns is None else [name.strip() for name in self.columns.split(",")],
            filter=[parse_filter(text) for text in self.row_conditions or ()],
            ignore_final_observation=self.ignore_final_observation,
            options=dict(map(_parse_read_option, self.read_option or ())),
            mapper=self.pre_learner,
        )
        prepare = PrepareSpec(
            order=self.order,
            episodes="File" if self.file_episodes else "Auto",
            gaps=self.gaps,
            duplicates=self.duplicates,
            unfinished=self.unfinished,
            cut_off_steps=self.cut_off_steps,
        )
        actions_normalized = None if self.actions is None else self.actions == "Normalized"
        return Reading(tuple(paths), self.file_format, options, prepare, actions_normalized)


@dataclass(frozen=True)
class WriteFlags:
    """Options for writing the destination; they match the fields of a recording's output."""

    to: Annotated[
        str,
        _destination_option(
            help="Episodes, MessagePack (RLlib's episodes), Columns (a row per timestep), JSON, CSV or SampleBatch."
        ),
    ] = "Episodes"
    rows_per_file: Annotated[
        int | None,
        _destination_option(min=1, help="Maximum rows per file, in complete episodes. Default: no limit."),
    ] = None
    file_size: Annotated[str, _destination_option(help="Approximate maximum file size.")] = "128Mi"
    compression: Annotated[
        Literal["lz4", "zstd", "none"] | None,
        _destination_option(help="Compression of the files. Default: lz4 for Parquet, none for text."),
    ] = None
    compress_columns: Annotated[
        str,
        _destination_option(help="For SampleBatch: columns to pack, such as obs,new_obs."),
    ] = ""
    replace: Annotated[
        bool,
        _destination_option("--replace", help="Overwrite existing Hindcast data."),
    ] = False

    def make_target(self, folder: str) -> "Target":
        """Combine a folder to write and these options into a `Target`."""
        from hindcast.api.quantity import parse_bytes
        from hindcast.datasets.target import Target
        from hindcast.errors import SpecError
        from hindcast.storage.location import resolve

        try:
            file_bytes = parse_bytes(self.file_size)
            if not file_bytes:
                raise ValueError(f"is {self.file_size!r}, expected a size above 0")
        except ValueError as error:
            raise SpecError(f"--file-size {error}") from error
        packed_columns = tuple(name.strip() for name in self.compress_columns.split(",") if name.strip())
        return Target(
            resolve(folder),
            self.to,
            self.rows_per_file,
            file_bytes,
            self.compression,
            self.replace,
            packed_columns,
        )


@contextmanager
def show_progress(screen: Screen, name: str) -> "Iterator[Hooks]":
    """Provide hooks that show progress; Ctrl-C requests a stop at the next safe point.

    Args:
        screen: the screen that shows the progress.
        name: name of the command, printed with its stages.
    """
    from hindcast.cli.progress import open_reporter
    from hindcast.datasets.hooks import Hooks
    from hindcast.report.events import Progress
    from hindcast.run.interruption import catch_signals

    with open_reporter(screen) as reporter, catch_signals() as interruption:

        def progress(stage: str, done: int, total: int) -> None:
            unit = "rows" if stage == "Preparing" else "timesteps"
            reporter.progress(Progress(name, stage, done, total, unit))

        yield Hooks(progress, lambda message: reporter.note(name, message), interruption.check)


def show_written(screen: Screen, sources: Sequence[str], *results: "WriteResult") -> None:
    """Print one line per destination: folder, size and checksum; with --json, one document for all of them.

    A destination that already existed has a line too.
    """
    from hindcast import formatting

    document: dict[str, Any] = {"sources": list(sources), "written": [asdict(result) for result in results]}
    lines = [
        f"{result.folder}: {formatting.plural(result.episodes, 'episode')}, "
        f"{formatting.plural(result.timesteps, 'timestep')} as {result.format}, {formatting.size(result.bytes)} in "
        f"{formatting.plural(result.files, 'file')}, verified (content {result.checksum[:16]})"
        + (", already exists" if result.state == "AlreadyFinished" else "")
        for result in results
    ]
    screen.show_result(document, *lines)


def _parse_read_option(text: str) -> tuple[str, Any]:
    name, value = _split_pair("--read-option", text, "NAME=VALUE, such as 'delimiter=;'")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _parse_schema(texts: Sequence[str]) -> dict[str, str | list[str]]:
    """Return column name -> source name, or a list of source names if there are several."""
    sources: dict[str, list[str]] = {}
    for text in texts:
        name, source_name = _split_pair("--schema", text, "NAME=COLUMN, such as obs=observation")
        sources.setdefault(name, []).append(source_name)
    return {name: names if len(names) > 1 else names[0] for name, names in sources.items()}


def _parse_time(column: str | None, unit: str | None, is_observed: bool) -> "TimeSpec | None":
    from pydantic import ValidationError

    from hindcast.api.input import TimeSpec
    from hindcast.errors import SpecError

    if column is None:
        if unit is not None or is_observed:
            option = "--observe-time" if unit is None else f"--time-unit {unit!r}"
            raise SpecError(f"{option} requires --time, the column with the time of each row")
        return None
    try:
        return TimeSpec.model_validate({"column": column, "observe": is_observed, **_time_unit(unit)})
    except ValidationError as error:
        raise SpecError(
            f"--time-unit is {unit!r}: expected Second, Minute, Hour, Day, Week or a number above 0"
        ) from error


def _time_unit(text: str | None) -> dict[str, str | float]:
    if text is None:
        return {}
    try:
        return {"unit": float(text)}
    except ValueError:
        return {"unit": text}


def _split_pair(option: str, text: str, expected_form: str) -> tuple[str, str]:
    from hindcast.errors import SpecError

    name, equals, value = (token.strip(" ") for token in text.partition("="))
    if not (name and equals and value):
        raise SpecError(f"{option} {text!r} does not have the form {expected_form}")
    return name, value
