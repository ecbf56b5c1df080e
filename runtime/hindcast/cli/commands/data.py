"""`hindcast convert` and `hindcast data …`: create datasets from existing datasets."""

from typing import Annotated, Literal

import typer

from hindcast.cli.command import command
from hindcast.cli.data_options import ReadFlags, WriteFlags, show_progress, show_written
from hindcast.cli.screen import Screen

Sources = Annotated[list[str], typer.Argument(metavar="SRC…", help="Folders, files, globs or URIs.")]
Source = Annotated[str, typer.Argument(metavar="SRC", help="Folder, file, glob or URI.")]
Destination = Annotated[str, typer.Argument(metavar="DST", help="A new folder, or one to resume.")]
Seed = Annotated[int, typer.Option(min=0, help="A different seed selects different episodes.")]

data = typer.Typer(help="Merge, split, filter and sample datasets.", no_args_is_help=True)


@command
def convert(
    sources: Sources,
    destination: Destination,
    read: ReadFlags,
    write: WriteFlags,
    screen: Screen,
) -> None:
    """Convert data to another format, then read the result back and compare.

    After an interruption, the same command resumes. Data that the format cannot hold are refused, never dropped.
    """
    from hindcast.datasets.curate.operations import convert_data

    target = write.make_target(destination)
    with show_progress(screen, "convert") as hooks:
        result = convert_data(read.make_reading(sources), target, hooks)
    show_written(screen, sources, result)


@command
def merge(
    sources: Sources,
    destination: Destination,
    *,
    read: ReadFlags,
    write: WriteFlags,
    screen: Screen,
    on_conflict: Annotated[
        Literal["Refuse", "Rename"],
        typer.Option(
            help="What to do when different episodes share an id: Rename gives the later episode the id <id>-2."
        ),
    ] = "Refuse",
) -> None:
    """Merge several datasets into one. Identical episodes with the same id count once."""
    from hindcast.datasets.curate.operations import merge_data

    target = write.make_target(destination)
    readings = [read.make_reading([source]) for source in sources]
    with show_progress(screen, "data merge") as hooks:
        result = merge_data(readings, target, on_conflict, hooks)
    show_written(screen, sources, result)


@command
def split(
    source: Source,
    training_folder: Annotated[
        str,
        typer.Argument(
            metavar="DST_A", help="Folder for the training data: all episodes that do not go to DST_B."
        ),
    ],
    validation_folder: Annotated[
        str, typer.Argument(metavar="DST_B", help="Folder for the validation data.")
    ],
    *,
    read: ReadFlags,
    write: WriteFlags,
    screen: Screen,
    validation: Annotated[float, typer.Option(help="Share of the episodes that goes to DST_B.")] = 0.1,
    seed: Seed = 0,
) -> None:
    """Split a dataset by episode, for example into training and validation data.

    The split depends only on the seed and the episode ids, not on format, files or order.
    """
    from hindcast.datasets.curate.operations import split_data

    targets = write.make_target(training_folder), write.make_target(validation_folder)
    with show_progress(screen, "data split") as hooks:
        results = split_data(
            read.make_reading([source]), *targets, fraction=validation, seed=seed, hooks=hooks
        )
    show_written(screen, [source], *results)


@command
def filter_(
    source: Source,
    destination: Destination,
    *,
    read: ReadFlags,
    write: WriteFlags,
    screen: Screen,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMPARISON",
            help="Condition on an episode's return, length, terminated, truncated or eps_id, such as "
            "'return >= 100'. "
            "Repeatable: all must hold.",
        ),
    ] = None,
    top: Annotated[
        float | None,
        typer.Option(
            help="Keep only this share of the episodes that satisfy --where, such as 0.1: those with the highest "
            "returns; of equal returns, the earlier ones."
        ),
    ] = None,
) -> None:
    """Keep the episodes selected by --where and --top, which see only the timesteps that --rows selects."""
    from hindcast.datasets.curate.operations import convert_data

    target = write.make_target(destination)
    with show_progress(screen, "data filter") as hooks:
        result = convert_data(
            read.make_reading([source]), target, hooks, lambda dataset: dataset.filter(*where or (), top=top)
        )
    show_written(screen, [source], result)


@command
def sample(
    source: Source,
    destination: Destination,
    *,
    read: ReadFlags,
    write: WriteFlags,
    screen: Screen,
    episodes: Annotated[int | None, typer.Option(help="Number of episodes.")] = None,
    timesteps: Annotated[
        int | None, typer.Option(help="Draw episodes until they have this many timesteps.")
    ] = None,
    fraction: Annotated[float | None, typer.Option(help="Share of the episodes.")] = None,
    seed: Seed = 0,
) -> None:
    """Draw episodes at random, without replacement: --episodes, --timesteps or --fraction says how many."""
    from hindcast.datasets.curate.operations import convert_data

    target = write.make_target(destination)
    with show_progress(screen, "data sample") as hooks:
        result = convert_data(
            read.make_reading([source]),
            target,
            hooks,
            lambda dataset: dataset.sample(episodes, timesteps=timesteps, fraction=fraction, seed=seed),
        )
    show_written(screen, [source], result)


for _name, _function in (("merge", merge), ("split", split), ("filter", filter_), ("sample", sample)):
    data.command(_name)(_function)
