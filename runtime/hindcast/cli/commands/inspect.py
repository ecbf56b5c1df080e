"""`hindcast inspect DATASET`: show a dataset's content and problems."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hindcast.cli.command import command
from hindcast.cli.data_options import ReadFlags
from hindcast.cli.failures import failure_document, report_failure
from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from hindcast.datasets.inspection.summary import Summary
    from hindcast.datasets.prepare.reading import Reading
    from hindcast.errors import DataError


@command
def inspect(
    dataset: Annotated[list[str], typer.Argument(metavar="DATASET", help="Folders, files, globs or URIs.")],
    read: ReadFlags,
    screen: Screen,
    *,
    timesteps: Annotated[
        int, typer.Option(min=1, help="Approximate number of timesteps to read, spread over the dataset.")
    ] = 1_000_000,
    read_all: Annotated[
        bool, typer.Option("--full", help="Read everything, and verify checksums of recordings.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 when a problem of severity error is found.")
    ] = False,
    strict_warnings: Annotated[
        bool, typer.Option("--strict-warnings", help="Exit with 3 when an error or a warning is found.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write an HTML page with plots.")
    ] = None,
) -> None:
    """Show a dataset's counts, spaces, distributions, coverage, and problems.

    Data that are not complete, ordered episodes are prepared first, as for a training.
    """
    from hindcast.cli.dataset_view import render_summary
    from hindcast.cli.progress import progress_bar
    from hindcast.datasets.inspection.inspecting import inspect_data
    from hindcast.errors import DataError

    name = ", ".join(dataset)
    with progress_bar(screen, "inspecting the data") as hooks:
        limit, reading = None if read_all else timesteps, read.make_reading(dataset)
        try:
            summary = inspect_data(reading, sample_limit=limit, hooks=hooks)
        except DataError:
            _show_columns(reading, screen)
            raise
    if html is not None:
        from hindcast.report.writing import write_dataset_page

        screen.note(f"page: {write_dataset_page(str(html), reading, summary)}")
    failure = _problem_failure(
        name, summary, is_strict=strict or strict_warnings, include_warnings=strict_warnings
    )
    document = {"dataset": name, **summary.to_json()}
    if failure is not None:
        document["error"] = failure_document(failure, str(failure), failure.exit_code)
    screen.show_result(document, *render_summary(name, summary))
    if failure is not None:
        raise typer.Exit(report_failure(failure, "inspect", screen.without_json()))


def _show_columns(reading: "Reading", screen: Screen) -> None:
    """Show the columns of a table that cannot be read without a schema, and how to get one."""
    from hindcast.cli.dataset_view import render_columns
    from hindcast.datasets.inspection.column_roles import read_profile
    from hindcast.errors import DataError

    if screen.flags.quiet or screen.flags.json:
        return
    try:
        profile = read_profile(reading)
    except DataError:
        return
    if profile is None:
        return
    screen.err.print(*render_columns(profile.columns))
    if profile.nested_steps is not None:
        screen.note(profile.nested_steps)
    elif profile.schema and not profile.missing_roles:
        screen.note(f"hindcast init {reading.name} writes a resource with a schema for these columns")


def _problem_failure(
    name: str, summary: "Summary", *, is_strict: bool, include_warnings: bool
) -> "DataError | None":
    """Return the error with which the command must fail because of the data's problems; None if it succeeds.

    Args:
        name: name of the data.
        summary: summary of the data. Data without episodes always fail.
        is_strict: fail if there are problems, even if there are episodes.
        include_warnings: count warnings as well as errors.
    """
    from hindcast import formatting
    from hindcast.errors import DataError

    severities = ("error", "warning") if include_warnings else ("error",)
    problems = [problem for problem in summary.problems if problem.severity in severities]
    if not problems and not summary.episodes:
        return DataError(f"{name} contains no episodes: record some first")
    if not problems or (summary.episodes and not is_strict):
        return None
    counts = [
        formatting.plural(count, severity)
        for severity in severities
        if (count := sum(problem.severity == severity for problem in problems))
    ]
    return DataError(f"{name} has {' and '.join(counts)}. First: {problems[0].message}")
