"""How the commands on data read and write, and what they say when they are done."""

import json
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindcast.datasets.curate.target import Target
    from hindcast.datasets.curate.writing import Written
    from hindcast.datasets.prepare.reading import Reading
    from hindcast.datasets.watch import Watch

Format = Literal["Auto", "Parquet", "JSON", "CSV", "SampleBatch", "Minari", "D4RL"]
_READING = "How the source is read"
_WRITING = "How the destination is written"


@dataclass(frozen=True)
class ReadFlags:
    """What is read of the sources; as the fields of a training's input."""

    form: Annotated[
        Format, typer.Option("--format", help="What the source's files are.", rich_help_panel=_READING)
    ] = "Auto"
    schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=THEIRS",
            help="A column that has another name there, such as obs=observation. Repeatable.",
            rich_help_panel=_READING,
        ),
    ] = None
    rows: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            "--rows",
            metavar="COMPARISON",
            help="Timesteps to read, such as 'rewards > 0'. Repeatable: all must hold.",
            rich_help_panel=_READING,
        ),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Columns to read. Default: all.", rich_help_panel=_READING),
    ] = None
    read_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Of the format's own reader, as under readOptions, such as 'delimiter=;'. The value is JSON, or else "
            "text. Repeatable.",
            rich_help_panel=_READING,
        ),
    ] = None
    order: Annotated[
        Literal["Auto", "Time", "Stored", "Chain"],
        typer.Option(help="What orders the rows of an episode.", rich_help_panel=_READING),
    ] = "Auto"
    gaps: Annotated[
        Literal["Refuse", "Split"],
        typer.Option(help="When timesteps are missing.", rich_help_panel=_READING),
    ] = "Refuse"
    duplicates: Annotated[
        Literal["Drop", "Refuse"],
        typer.Option(help="When rows repeat others.", rich_help_panel=_READING),
    ] = "Drop"
    unfinished: Annotated[
        Literal["Keep", "Drop", "Refuse"],
        typer.Option(help="When an episode ends neither terminated nor truncated.", rich_help_panel=_READING),
    ] = "Keep"
    actions_normalized: Annotated[
        bool | None,
        typer.Option(
            "--actions-normalized/--actions-of-environment",
            help="Whether Box actions lie in [-1, 1], as a policy gives them. Default: as the data say.",
            rich_help_panel=_READING,
        ),
    ] = None
    ignore_final_observation: Annotated[
        bool,
        typer.Option(
            "--ignore-final-observation",
            help="Read data without next observations: an episode's last one is zeros then.",
            rich_help_panel=_READING,
        ),
    ] = False

    def reading(self, paths: Sequence[str]) -> "Reading":
        """The paths, read so."""
        from hindcast.api.filter_term import parse_filter
        from hindcast.api.input import PrepareSpec
        from hindcast.datasets.prepare.reading import Reading
        from hindcast.formats.format import ReadOptions

        options = ReadOptions(
            schema=dict(
                _pair("--schema", text, "NAME=THEIRS, such as obs=observation") for text in self.schema or ()
            ),
            columns=None if self.columns is None else [name.strip() for name in self.columns.split(",")],
            filter=[parse_filter(text) for text in self.rows or ()],
            ignore_final_observation=self.ignore_final_observation,
            options=dict(map(_read_option, self.read_option or ())),
        )
        prepare = PrepareSpec(
            order=self.order, gaps=self.gaps, duplicates=self.duplicates, unfinished=self.unfinished
        )
        return Reading(tuple(paths), self.form, options, prepare, self.actions_normalized)


@dataclass(frozen=True)
class WriteFlags:
    """How it is written; as the fields of a recording's output."""

    to: Annotated[
        str,
        typer.Option(
            help="Episodes, MessagePack (RLlib's episodes), Columns (a row per timestep), JSON, CSV or SampleBatch.",
            rich_help_panel=_WRITING,
        ),
    ] = "Episodes"
    rows_per_file: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most rows of a file, in whole episodes. Default: no limit.", rich_help_panel=_WRITING
        ),
    ] = None
    file_size: Annotated[str, typer.Option(help="Most bytes of a file, about.", rich_help_panel=_WRITING)] = (
        "128Mi"
    )
    compression: Annotated[
        Literal["lz4", "zstd", "none"] | None,
        typer.Option(help="Of the files. Default: lz4 for Parquet, none for text.", rich_help_panel=_WRITING),
    ] = None
    compress_columns: Annotated[
        str,
        typer.Option(
            help="Of SampleBatch: columns that are packed, such as obs,new_obs.", rich_help_panel=_WRITING
        ),
    ] = ""
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace data of ours that lie there.", rich_help_panel=_WRITING),
    ] = False

    def target(self, folder: str) -> "Target":
        """The folder, written so."""
        from hindcast.api.quantity import parse_bytes
        from hindcast.datasets.curate.target import Target
        from hindcast.errors import SpecError
        from hindcast.storage.location import resolve

        try:
            size = parse_bytes(self.file_size)
        except ValueError as error:
            raise SpecError(f"--file-size {error}") from error
        packed = tuple(name.strip() for name in self.compress_columns.split(",") if name.strip())
        return Target(
            resolve(folder), self.to, self.rows_per_file, max(1, size), self.compression, self.replace, packed
        )


@contextmanager
def watching(screen: Screen, name: str) -> "Iterator[Watch]":
    """Progress on the screen, and Ctrl-C as a request to stop at the next safe point."""
    from hindcast.cli.progress import reporting
    from hindcast.datasets.watch import Watch
    from hindcast.report.events import Progress
    from hindcast.run.interruption import interruptible

    with reporting(screen) as reporter, interruptible() as interruption:

        def progress(stage: str, done: int, total: int) -> None:
            unit = "rows" if stage == "Preparing" else "timesteps"
            reporter.progress(Progress(name, stage, done, total, unit))

        yield Watch(progress, lambda message: reporter.note(name, message), interruption.check)


def show(screen: Screen, sources: Sequence[str], *written: "Written") -> None:
    """What came out, where it is, and its checksum."""
    from hindcast import formatting

    document: dict[str, Any] = {"sources": list(sources), "written": [asdict(one) for one in written]}
    lines = [
        f"{one.folder}: {formatting.plural(one.episodes, 'episode')}, "
        f"{formatting.plural(one.timesteps, 'timestep')} as {one.format}, {formatting.size(one.bytes)} in "
        f"{formatting.plural(one.files, 'file')}, verified (content {one.checksum[:16]})"
        + (", was there already" if one.state == "AlreadyFinished" else "")
        for one in written
    ]
    screen.result(document, *lines)


def _read_option(text: str) -> tuple[str, Any]:
    name, value = _pair("--read-option", text, "NAME=VALUE, such as 'delimiter=;'")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _pair(option: str, text: str, form: str) -> tuple[str, str]:
    from hindcast.errors import SpecError

    name, equals, theirs = (part.strip(" ") for part in text.partition("="))
    if not (name and equals and theirs):
        raise SpecError(f"{option} {text!r} is no pair: give it as {form}")
    return name, theirs
