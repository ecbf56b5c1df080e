"""`hindcast tune FILE --over PATH=VALUE,…`: search for settings without an environment."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hindcast.cli.command import add_module_folders, command
from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from rich.table import Table

    from hindcast.search import Search, Trial


@command
def tune(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file with one OfflineTraining.")],
    *,
    screen: Screen,
    over: Annotated[
        list[str],
        typer.Option(
            metavar="PATH=VALUES",
            help="Path below spec and the values to try, separated by commas (config.lr=1e-4,1e-3), or "
            "uniform(LOW,HIGH) or loguniform(LOW,HIGH). Repeatable.",
        ),
    ],
    trials: Annotated[
        int | None, typer.Option(min=1, help="Random draws. Default: every combination of the values.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each trial, with different seeds; their mean is compared.")
    ] = 1,
    by: Annotated[
        str | None,
        typer.Option(
            help="Estimate to compare the trials by, or validationLoss. Default: the first of "
            "evaluation.offline.estimates."
        ),
    ] = None,
    confirm: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Share of the episodes that no trial sees, on which the winner is evaluated once more; 0 omits this "
            "evaluation. Default: evaluation.offline.setAside, or 0.1.",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Folder of the search. Default: <checkpoint.path>/<name>-search.")
    ] = None,
    take: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Copy the winner's checkpoint here.")
    ] = None,
    retrain: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Train the winner's settings on all episodes, in this folder."),
    ] = None,
) -> None:
    """Train with different settings and choose by held-out episodes, without an environment.

    Run the command again to resume: finished trials are not repeated.
    """
    from hindcast.cli.progress import open_reporter
    from hindcast.errors import SpecError
    from hindcast.search import retrain as train_again
    from hindcast.search import search
    from hindcast.search import take as copy_checkpoint
    from hindcast.search.space import parse_search_space

    add_module_folders([file])
    with open_reporter(screen) as reporter:
        result = search(
            file,
            parse_search_space(over),
            output=output,
            trials=trials,
            seeds=seeds,
            by=by,
            confirm=confirm,
            reporter=reporter,
        )
    if result.best is None:
        raise SpecError(f"{result.sentence.rstrip('.')}. All trials are in {result.report}.")
    document: dict[str, Any] = result.to_json()
    lines = [result.sentence, f"report: {result.report}"]
    if take is not None:
        document["taken"] = copy_checkpoint(result, take)
        lines.append(f"checkpoint: {take}")
    if retrain is not None:
        with open_reporter(screen) as reporter:
            outcome = train_again(result, retrain, reporter)
        document["retrained"] = outcome.folder
        lines.append(f"retrained on all episodes: {outcome.folder}")
    screen.show_result(document, _table(result), *lines)


def _table(search: "Search") -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2))
    table.add_column("trial", justify="right", style="dim")
    for path in search.trials[0].setting:
        table.add_column(path)
    table.add_column(search.metric, justify="right")
    table.add_column("interval" if len(search.trials[0].runs) == 1 else "seeds")
    table.add_column("verdict", overflow="fold")
    for trial in search.trials:
        table.add_row(*_row(trial))
    return table


def _row(trial: "Trial") -> list[str]:
    from hindcast.formatting import as_yaml, significant
    from hindcast.search.results import format_with_interval

    errors = [run.error for run in trial.runs if run.error is not None]
    bounds = [run.value for run in trial.runs if run.value is not None]
    if len(trial.runs) == 1:
        bounds = list(trial.runs[0].interval or ())
    spread = f"{significant(min(bounds))} to {significant(max(bounds))}" if bounds else ""
    verdict = trial.runs[0].verdict if len(trial.runs) == 1 else None
    return [
        str(trial.number),
        *map(as_yaml, trial.setting.values()),
        format_with_interval(trial.value, None),
        spread,
        errors[0] if errors else verdict or "",
    ]
