"""The page that `hindcast inspect --html` writes."""

from __future__ import annotations

from collections.abc import Sequence

from hindcast import formatting
from hindcast.datasets.inspection.summary import Summary
from hindcast.datasets.inspection.words import coverage_in_words, facts
from hindcast.report.data_plots import coverage_plots, data_plots
from hindcast.report.page import Command, Page, Problem, Section, Table, Tile, write_alone
from hindcast.report.text import recording_tiles, versions_table
from hindcast.storage.location import resolve
from hindcast.version import __version__


def write_dataset_page(file: str, data: Sequence[str], summary: Summary) -> str:
    """Write a dataset's page as one self-contained HTML file.

    Args:
        file: where; a path or a URI.

    Returns:
        The file, as the user wrote it.

    Raises:
        StorageError: it cannot be written.
    """
    known = facts(summary)
    if summary.coverage is not None:
        known["coverage"] = coverage_in_words(summary.coverage)
    page = Page(
        kind="Dataset",
        name=", ".join(data),
        outcome=_outcome(summary),
        tiles=_tiles(summary),
        sections=[Section("What is in the data", {**data_plots(summary), **coverage_plots(summary)})],
        tables=[Table("Facts", (), list(known.items())), *_observations(summary)],
        commands=_commands(data),
        versions=versions_table(),
        footer=f"Written by Hindcast {__version__}. This file needs nothing else.",
        problems=[Problem(found.severity, found.message) for found in summary.problems],
    )
    return write_alone(resolve(file), page)


def _outcome(summary: Summary) -> str:
    counts = [
        formatting.plural(count, severity)
        for severity in ("error", "warning")
        if (count := sum(problem.severity == severity for problem in summary.problems))
    ]
    return f"{' and '.join(counts)} found" if counts else "No errors and no warnings"


def _tiles(summary: Summary) -> list[Tile]:
    tiles = recording_tiles(summary)
    if summary.coverage is not None:
        tiles.append(
            Tile("Cells visited", formatting.share(summary.coverage.occupied), "of the plane of observations")
        )
    if summary.zero_rewards is not None:
        tiles.append(Tile("Rewards that are 0", formatting.share(summary.zero_rewards)))
    return tiles


def _observations(summary: Summary) -> list[Table]:
    columns = ("dimension", "min", "max", "of the space")
    return [
        Table(
            f"Ranges of {leaf.name}",
            columns,
            list(_rows(leaf.shown, leaf.low, leaf.high, leaf.share_of_space)),
        )
        for leaf in summary.observations
    ]


def _rows(*columns: Sequence[float | None]) -> list[tuple[str, str, str, str]]:
    return [
        (str(index), _number(low), _number(high), "no bounds" if share is None else formatting.share(share))
        for index, low, high, share in zip(*columns, strict=True)
    ]


def _number(value: float | None) -> str:
    return "not finite" if value is None else formatting.significant(value)


def _commands(data: Sequence[str]) -> list[Command]:
    paths = " ".join(data)
    inputs = "\n".join(f"  - path: {path}" for path in data)
    return [
        Command("Check every value, for CI", f"hindcast inspect {paths} --full --strict"),
        Command("Train on it: add this to the spec of an OfflineTraining", f"input:\n{inputs}"),
    ]
