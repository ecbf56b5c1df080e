"""`hindcast run FILE…`: carry out the resources of YAML files, here."""

from pathlib import Path
from typing import Annotated

import typer

from hindcast.cli.command import command
from hindcast.cli.failures import INTERRUPTED
from hindcast.cli.screen import Screen


@command
def run(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="YAML files with resources.")],
    screen: Screen,
) -> None:
    """Record and train, in the order the resources need each other. Run it again to go on or to see the end.

    With --json each resource that ends prints a line of JSON.
    """
    finish_run(files, screen)


def finish_run(files: list[Path], screen: Screen) -> None:
    """Carry out all resources of files, reporting to the screen; exit with 130 where that was interrupted."""
    from hindcast.api import load_resources

    loaded = load_resources(files)

    from hindcast.cli.progress import reporting
    from hindcast.run.carry_out import carry_out

    with reporting(screen) as reporter:
        outcomes = carry_out(loaded, reporter)
    if any(outcome.state == "Interrupted" for outcome in outcomes):
        raise typer.Exit(INTERRUPTED)
