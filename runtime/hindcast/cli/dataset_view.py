"""Renders a dataset's summary on the terminal: facts, distributions, tables of dimensions, problems."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hindcast import formatting
from hindcast.datasets.inspection.statistics import ValueDistribution
from hindcast.datasets.inspection.summary import (
    ActionLeaf,
    ColumnProfile,
    DataProblem,
    ObservationLeaf,
    Summary,
)
from hindcast.datasets.inspection.summary_text import describe_coverage, make_facts

BAR_WIDTH = 32
MAX_ROWS = 12
MAX_PROBLEMS_PER_KIND = 10
_ANSWER_COLOURS = {"improve": "green", "clone": "yellow", "unusable": "red"}
_COLOURS = {"error": "bold red", "warning": "yellow", "info": "dim"}


def render_summary(name: str, summary: Summary) -> Iterator[RenderableType]:
    """Yield the output of `hindcast inspect` from top to bottom."""
    yield Text(name, style="bold")
    yield _facts_table(summary)
    if summary.verdict is not None:
        yield Text(f"Verdict: {summary.verdict.sentence}\n", style=_ANSWER_COLOURS[summary.verdict.answer])
    yield from render_columns(summary.table_columns)
    if summary.returns is not None:
        yield from distribution_bars("Returns", summary.returns)
    if summary.lengths is not None:
        yield from distribution_bars("Lengths (timesteps)", summary.lengths)
    for action_leaf in summary.actions:
        yield from _action_views(action_leaf)
    for observation_leaf in summary.observations:
        yield from _observation_views(observation_leaf)
    if summary.coverage is not None:
        yield Text(f"Coverage: {describe_coverage(summary.coverage)}\n")
    yield from _problem_lines(summary.problems)


def _facts_table(summary: Summary) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for label, value in make_facts(summary).items():
        table.add_row(label, Text(value))
    return Padding(table, (0, 0, 1, 2), expand=False)


def _action_views(leaf: ActionLeaf) -> Iterator[RenderableType]:
    if leaf.values is not None:
        yield from value_bars(leaf.name, leaf.values)
        return
    rows = [
        (
            name,
            *map(
                formatting.significant,
                (distribution.min, distribution.mean, distribution.std, distribution.max),
            ),
        )
        for name, distribution in zip(leaf.dimension_names, leaf.dimensions, strict=True)
    ]
    yield from _dimension_table(leaf.name, len(leaf.dimensions), ("min", "mean", "std", "max"), rows)


def _observation_views(leaf: ObservationLeaf) -> Iterator[RenderableType]:
    if leaf.values_seen is not None:
        yield Text(
            f"{leaf.name}: {formatting.integer(leaf.values_seen)} of "
            f"{formatting.plural(leaf.values or 0, 'value')} seen\n"
        )
        return
    if leaf.is_image:
        num_constant = leaf.constant_dimensions
        remark = (
            f"; {formatting.integer(num_constant)} of {leaf.dimensions} never change" if num_constant else ""
        )
        yield Text(f"{leaf.name}: images, {leaf.image_range}{remark}; --html FILE shows some\n")
        return
    has_missing = any(leaf.missing)
    rows = [
        (
            name,
            _format_optional(low),
            _format_optional(high),
            "" if share is None else formatting.as_percentage(share),
            *([formatting.as_percentage(missing)] if has_missing else []),
        )
        for name, low, high, share, missing in zip(
            leaf.dimension_names, leaf.low, leaf.high, leaf.share_of_space, leaf.missing, strict=True
        )
    ]
    titles = ("min", "max", "of the space", *(["missing"] if has_missing else []))
    yield from _dimension_table(leaf.name, leaf.dimensions, titles, rows)


def render_columns(columns: Sequence[ColumnProfile]) -> Iterator[RenderableType]:
    """Yield a table of the columns of a table: what they hold, and what they are read as."""
    if not columns:
        return
    yield Text(f"Columns of the table: {len(columns)}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("column", "type", "missing", "example", "read as"):
        table.add_column(title)
    for column in columns:
        example = f"{column.example}, in all rows" if column.constant else column.example
        missing = formatting.as_percentage(column.missing) if column.missing else ""
        table.add_row(column.name, column.type, missing, example, column.role or "")
    yield Padding(table, (0, 0, 1, 2), expand=False)


def _dimension_table(
    name: str, count: int, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[RenderableType]:
    """Show a table with a row for each of at most `MAX_ROWS` dimensions of a leaf.

    If the summary has a row for every dimension, the table shows the first `MAX_ROWS` of them. A leaf of many
    dimensions, such as an image, has rows for 64 of them only; the table then shows `MAX_ROWS` of these 64 rows, evenly
    spread.

    Args:
        name: name of the leaf.
        count: number of dimensions that the leaf has.
        columns: titles of the columns after the dimension's index.
        rows: a row for each dimension in the summary, beginning with the dimension's index.
    """
    remark = f", the first {MAX_ROWS}" if count > MAX_ROWS else ""
    if count > len(rows):
        remark = f", {MAX_ROWS} of them"
        rows = [rows[i * (len(rows) - 1) // (MAX_ROWS - 1)] for i in range(MAX_ROWS)]
    yield Text(f"{name}: {formatting.plural(count, 'dimension')}{remark}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("dimension", *columns):
        table.add_column(column, justify="right")
    for row in rows[:MAX_ROWS]:
        table.add_row(*row)
    yield Padding(table, (0, 0, 1, 2), expand=False)


def _format_optional(value: float | None) -> str:
    return "" if value is None else formatting.significant(value)


def _problem_lines(problems: Sequence[DataProblem]) -> Iterator[RenderableType]:
    """Yield a line for each of the first ten problems of a severity and kind, then the numbers of further problems."""
    num_seen: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        num_seen[problem.severity, problem.kind] += 1
        if num_seen[problem.severity, problem.kind] <= MAX_PROBLEMS_PER_KIND:
            yield _problem_line(problem.severity, problem.message, problem.kind)
    for (severity, kind), count in num_seen.items():
        if count > MAX_PROBLEMS_PER_KIND:
            yield _problem_line(
                severity,
                f"and {formatting.integer(count - MAX_PROBLEMS_PER_KIND)} more; --json lists all",
                kind,
            )


def _problem_line(severity: str, message: str, kind: str) -> Text:
    return Text.assemble((f"{severity}: ", _COLOURS[severity]), message, (f" [{kind}]", "dim"))


# -- histograms, drawn with block characters ------------------------------------------------------------------------


def distribution_bars(title: str, distribution: ValueDistribution) -> Iterator[RenderableType]:
    """Show a distribution's statistics in a line, and its histogram."""
    low, high = formatting.significant(distribution.min), formatting.significant(distribution.max)
    mean, deviation = formatting.significant(distribution.mean), formatting.significant(distribution.std)
    median = formatting.significant(distribution.median)
    yield Text(f"{title}: mean {mean} ± {deviation}, median {median}, from {low} to {high}")
    edges, counts = _merge_bins(distribution)
    yield _bar_table([_bin_label(*ends) for ends in itertools.pairwise(edges)], counts)


def value_bars(name: str, counts: Mapping[int, int]) -> Iterator[RenderableType]:
    """Show how often each value of a discrete action occurs."""
    values = sorted(sorted(counts, key=lambda value: counts[value], reverse=True)[:MAX_ROWS])
    remark = f", the {len(values)} most frequent of {len(counts)}" if len(values) < len(counts) else ""
    yield Text(f"{name}: how often each value is taken{remark}")
    yield _bar_table([str(value) for value in values], [counts[value] for value in values])


def draw_bar(share: float) -> str:
    """Return a bar of up to `BAR_WIDTH` blocks, in eighths; any share above zero has at least one eighth."""
    eighths = max(round(share * BAR_WIDTH * 8), 1 if share > 0 else 0)
    # The slice is empty if no eighth remains after the whole blocks.
    return "█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1 : eighths % 8]


def _bin_label(low: float, high: float) -> str:
    """Return a bin's label; the label of a bin around a single integer is that integer."""
    if high - low == 1 and low % 1 == 0.5:
        return formatting.significant(low + 0.5)
    return f"{formatting.significant(low)} to {formatting.significant(high)}"


def _merge_bins(distribution: ValueDistribution) -> tuple[Sequence[float], Sequence[int]]:
    """Return edges and counts of the bins, after merging neighbours so that there are at most `MAX_ROWS` bins."""
    bins_per_row = -(-len(distribution.counts) // MAX_ROWS)  # rounded up
    counts = [
        sum(distribution.counts[i : i + bins_per_row])
        for i in range(0, len(distribution.counts), bins_per_row)
    ]
    return [*distribution.edges[:-1:bins_per_row], distribution.edges[-1]], counts


def _bar_table(labels: Sequence[str], counts: Sequence[int]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(style="cyan")
    table.add_column(justify="right")
    total, max_count = sum(counts), max(counts)
    for label, count in zip(labels, counts, strict=True):
        table.add_row(
            label,
            draw_bar(count / max_count),
            f"{formatting.integer(count)}  {formatting.as_percentage(count / total)}",
        )
    return Padding(table, (0, 0, 1, 2), expand=False)
