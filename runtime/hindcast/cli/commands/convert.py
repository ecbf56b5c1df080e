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
    destination: Annotated[str, typer.Argument(metavar="DST", help="A new folder or one to go on in.")],
    read: ReadFlags,
    write: WriteFlags,
    screen: Screen,
) -> None:
    """Write data of any kind in another format, and read them back to compare.

    Interrupted or killed, the same command goes on where it was. Nothing is dropped in silence: what a format cannot
    hold is refused.
    """
    from hindcast.datasets.curate.operations import convert_data

    target = write.target(destination)
    with watching(screen, "convert") as watch:
        written = convert_data(read.reading(sources), target, watch)
    show(screen, sources, written)
