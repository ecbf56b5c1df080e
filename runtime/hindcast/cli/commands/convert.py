"""`hindcast convert SRC… DST`: the same data in another format."""

from typing import Annotated

import typer

from hindcast.cli.command import command
from hindcast.cli.data_options import ReadFlags, WriteFlags, show, watching
from hindcast.cli.options import with_options
from hindcast.cli.screen import Screen


@command
@with_options(read=ReadFlags, write=WriteFlags)
def convert(
    sources: Annotated[list[str], typer.Argument(metavar="SRC…", help="Folders, files, globs or URIs.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="A new folder, or one to resume.")],
    read: ReadFlags,
    write: WriteFlags,
    screen: Screen,
) -> None:
    """Convert data to another format, then read the result back and compare.

    After an interruption, the same command resumes. Data that the format cannot hold are refused, never dropped.
    """
    from hindcast.datasets.curate.operations import convert_data

    target = write.target(destination)
    with watching(screen, "convert") as watch:
        written = convert_data(read.reading(sources), target, watch)
    show(screen, sources, written)
