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
from hindcast.datasets.inspection.summary import ActionLeaf, DataProblem, ObservationLeaf, Summary
from hindcast.datasets.inspection.summary_text import describe_coverage, make_facts

BAR_WIDTH = 32
MAX_ROWS = 12
MAX_OF_A_KIND = 10
_COLOURS = {"error": "bold red", "warning": "yellow", "info": "dim"}


def views(name: str, summary: Summary) -> Iterator[RenderableType]:
    """Yield the parts of `hindcast inspect` from top to bottom."""
    yield Text(name, style="bold")
    yield _facts(summary)
    if summary.returns is not None:
        yield from spread_bars("Returns", summary.returns)
    if summary.lengths is not None:
        yield from spread_bars("Lengths (timesteps)", summary.lengths)
    for action_leaf in summary.actions:
        yield from _actions(action_leaf)
    for observation_leaf in summary.observations:
        yield from _observations(observation_leaf)
    if summary.coverage is not None:
        yield Text(f"Coverage: {describe_coverage(summary.coverage)}\n")
    yield from _problems(summary.problems)


def _facts(summary: Summary) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for label, value in make_facts(summary).items():
        table.add_row(label, Text(value))
    return Padding(table, (0, 0, 1, 2), expand=False)


def _actions(leaf: ActionLeaf) -> Iterator[RenderableType]:
    if leaf.values is not None:
        yield from value_bars(leaf.name, leaf.values)
        return
    rows = [
        (str(index), *map(formatting.significant, (spread.min, spread.mean, spread.std, spread.max)))
        for index, spread in enumerate(leaf.dimensions)
    ]
    yield from _dimensions(leaf.name, len(leaf.dimensions), ("min", "mean", "std", "max"), rows)


def _observations(leaf: ObservationLeaf) -> Iterator[RenderableType]:
    if leaf.values_seen is not None:
        yield Text(
            f"{leaf.name}: {formatting.integer(leaf.values_seen)} of "
            f"{formatting.plural(leaf.values or 0, 'value')} seen\n"
        )
        return
    rows = [
        (str(index), _number(low), _number(high), "" if share is None else formatting.as_percentage(share))
        for index, low, high, share in zip(
            leaf.shown_dimensions, leaf.low, leaf.high, leaf.share_of_space, strict=True
        )
    ]
    yield from _dimensions(leaf.name, leaf.dimensions, ("min", "max", "of the space"), rows)


def _dimensions(
    name: str, count: int, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> Iterator[RenderableType]:
    """Show a row for each of the first dimensions; for a frame, of a few dimensions spread evenly."""
    more = f", the first {MAX_ROWS}" if count > MAX_ROWS else ""
    if count > len(rows):
        more = f", {MAX_ROWS} of them"
        rows = [rows[i * (len(rows) - 1) // (MAX_ROWS - 1)] for i in range(MAX_ROWS)]
    yield Text(f"{name}: {formatting.plural(count, 'dimension')}{more}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("dimension", *columns):
        table.add_column(column, justify="right")
    for row in rows[:MAX_ROWS]:
        table.add_row(*row)
    yield Padding(table, (0, 0, 1, 2), expand=False)


def _number(value: float | None) -> str:
    return "" if value is None else formatting.significant(value)


def _problems(problems: Sequence[DataProblem]) -> Iterator[RenderableType]:
    """Show one line per problem; after the tenth of a kind, only their number."""
    num_seen: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        num_seen[problem.severity, problem.kind] += 1
        if num_seen[problem.severity, problem.kind] <= MAX_OF_A_KIND:
            yield _line(problem.severity, problem.message, problem.kind)
    for (severity, kind), count in num_seen.items():
        if count > MAX_OF_A_KIND:
            yield _line(
                severity, f"and {formatting.integer(count - MAX_OF_A_KIND)} more; --json lists all", kind
            )


def _line(severity: str, message: str, kind: str) -> Text:
    return Text.assemble((f"{severity}: ", _COLOURS[severity]), message, (f" [{kind}]", "dim"))


# -- histograms, drawn with blocks ------------------------------------------------------------------------


def spread_bars(title: str, spread: ValueDistribution) -> Iterator[RenderableType]:
    """Show a distribution's statistics in a line, and its histogram."""
    low, high = formatting.significant(spread.min), formatting.significant(spread.max)
    mean, deviation = formatting.significant(spread.mean), formatting.significant(spread.std)
    middle = formatting.significant(spread.median)
    yield Text(f"{title}: mean {mean} ± {deviation}, median {middle}, from {low} to {high}")
    edges, counts = _merge_bins(spread)
    yield _bars([_bin(*ends) for ends in itertools.pairwise(edges)], counts)


def value_bars(name: str, counts: Mapping[int, int]) -> Iterator[RenderableType]:
    """Show how often each value of a discrete action occurs."""
    values = sorted(sorted(counts, key=lambda value: counts[value], reverse=True)[:MAX_ROWS])
    more = f", the {len(values)} most frequent of {len(counts)}" if len(values) < len(counts) else ""
    yield Text(f"{name}: how often each value is taken{more}")
    yield _bars([str(value) for value in values], [counts[value] for value in values])


def bar(share: float) -> str:
    """Return a bar of up to `BAR_WIDTH` blocks, in eighths; any share above zero is visible."""
    # A share that rounds to nothing still gets an eighth.
    eighths = max(round(share * BAR_WIDTH * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1 : eighths % 8]


def _bin(low: float, high: float) -> str:
    """Return a bin's label; the label of a bin around a single integer is that integer."""
    if high - low == 1 and low % 1 == 0.5:
        return formatting.significant(low + 0.5)
    return f"{formatting.significant(low)} to {formatting.significant(high)}"


def _merge_bins(spread: ValueDistribution) -> tuple[Sequence[float], Sequence[int]]:
    """Merge neighbouring bins so that they fit on a screen."""
    step = -(-len(spread.counts) // MAX_ROWS)
    counts = [sum(spread.counts[i : i + step]) for i in range(0, len(spread.counts), step)]
    return [*spread.edges[:-1:step], spread.edges[-1]], counts


def _bars(labels: Sequence[str], counts: Sequence[int]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(style="cyan")
    table.add_column(justify="right")
    total, max_count = sum(counts), max(counts)
    for label, count in zip(labels, counts, strict=True):
        table.add_row(
            label,
            bar(count / max_count),
            f"{formatting.integer(count)}  {formatting.as_percentage(count / total)}",
        )
    return Padding(table, (0, 0, 1, 2), expand=False)
