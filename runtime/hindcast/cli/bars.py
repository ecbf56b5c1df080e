"""Histograms on the terminal, drawn with blocks."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hindcast import formatting
from hindcast.datasets.inspection.statistics import Distribution

BAR_WIDTH = 32
MAX_ROWS = 12


def spread_bars(title: str, spread: Distribution) -> Iterator[RenderableType]:
    """A distribution's numbers in a line, and its histogram."""
    low, high = formatting.significant(spread.min), formatting.significant(spread.max)
    mean, deviation = formatting.significant(spread.mean), formatting.significant(spread.std)
    middle = formatting.significant(spread.median)
    yield Text(f"{title}: mean {mean} ± {deviation}, median {middle}, from {low} to {high}")
    edges, counts = _merged(spread)
    yield _bars([_bin(*ends) for ends in itertools.pairwise(edges)], counts)


def value_bars(name: str, counts: Mapping[int, int]) -> Iterator[RenderableType]:
    """How often each value of a discrete action is taken."""
    shown = sorted(sorted(counts, key=lambda value: counts[value], reverse=True)[:MAX_ROWS])
    more = f", the {len(shown)} most frequent of {len(counts)}" if len(shown) < len(counts) else ""
    yield Text(f"{name}: how often each value is taken{more}")
    yield _bars([str(value) for value in shown], [counts[value] for value in shown])


def bar(share: float) -> str:
    """A bar of up to `BAR_WIDTH` blocks, in eighths; anything above zero shows."""
    eighths = max(round(share * BAR_WIDTH * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1 : eighths % 8]


def _bin(low: float, high: float) -> str:
    """A bin's name; a bin around a single integer is called by it."""
    if high - low == 1 and low % 1 == 0.5:
        return formatting.significant(low + 0.5)
    return f"{formatting.significant(low)} to {formatting.significant(high)}"


def _merged(spread: Distribution) -> tuple[Sequence[float], Sequence[int]]:
    """Neighbouring bins together, so that they fit on a screen."""
    step = -(-len(spread.counts) // MAX_ROWS)
    counts = [sum(spread.counts[i : i + step]) for i in range(0, len(spread.counts), step)]
    return [*spread.edges[:-1:step], spread.edges[-1]], counts


def _bars(labels: Sequence[str], counts: Sequence[int]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(style="cyan")
    table.add_column(justify="right")
    total, most = sum(counts), max(counts)
    for label, count in zip(labels, counts, strict=True):
        table.add_row(
            label, bar(count / most), f"{formatting.whole(count)}  {formatting.share(count / total)}"
        )
    return Padding(table, (0, 0, 1, 2), expand=False)
