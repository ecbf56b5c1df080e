"""`hindcast inspect DATASET`: what a dataset holds, and what is wrong with it."""

from typing import Annotated

import typer

from hindcast.cli.command import command
from hindcast.cli.screen import Screen


@command
def inspect(
    dataset: Annotated[list[str], typer.Argument(metavar="DATASET", help="Folders, files, globs or URIs.")],
    screen: Screen,
    timesteps: Annotated[
        int, typer.Option(min=1, help="About how many timesteps to read for the distributions.")
    ] = 1_000_000,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 when a problem of severity error is found.")
    ] = False,
) -> None:
    """Show a dataset's counts, spaces, distributions of returns, lengths and actions, and problems."""
    from hindcast.cli.dataset_view import views
    from hindcast.errors import DataError
    from hindcast.store.dataset import open_dataset
    from hindcast.store.inspect import summarise

    summary = summarise(open_dataset(dataset), timesteps)
    name = ", ".join(dataset)
    screen.result({"dataset": name, **summary.model_dump(mode="json", by_alias=True)}, *views(name, summary))
    errors = [problem for problem in summary.problems if problem.severity == "error"]
    if strict and errors:
        raise DataError(
            f"{name} has {len(errors)} problem(s) of severity error, the first: {errors[0].message}"
        )
