"""`hindcast init DATA`: write the resource of a first training on some data."""

from pathlib import Path
from typing import Annotated

import typer

from hindcast.cli.command import command
from hindcast.cli.data_options import ReadFlags
from hindcast.cli.screen import Screen


@command
def init(
    dataset: Annotated[list[str], typer.Argument(metavar="DATA", help="Folders, files, globs or URIs.")],
    read: ReadFlags,
    screen: Screen,
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write. Default: the data's name with .yaml."
        ),
    ] = None,
    updates: Annotated[
        int | None,
        typer.Option(min=1, help="Updates to train for. Default: 20 passes, from 500 to 10,000 updates."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Write the YAML of a first training on data of any kind, with comments: columns, missing values, algorithm.

    Columns of a table are recognised by their names and values; --schema names those that are not.
    """
    from hindcast.cli.progress import progress_bar
    from hindcast.errors import OutputConflict
    from hindcast.run.new_training import make_training

    with progress_bar(screen, "reading the data") as hooks:
        training = make_training(read.make_reading(dataset), updates=updates, hooks=hooks)
    file = output or Path(f"{training.name}.yaml")
    if file.exists() and not overwrite:
        raise OutputConflict(f"{file} already exists: pass --output with another file, or --overwrite.")
    file.write_text(training.text, encoding="utf-8")
    for note in training.notes:
        screen.note(note)
    screen.show_result(
        {"file": str(file), "name": training.name, "notes": list(training.notes)},
        f"{file}: OfflineTraining/{training.name}; next: hindcast run {file}",
    )
