"""A dataset's summary on the terminal: tables, and histograms drawn with blocks."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hindcast import words
from hindcast.store.inspect import ActionLeaf, Summary
from hindcast.store.statistics import Distribution

BAR_WIDTH = 32
MAX_ROWS = 12
_COLOURS = {"error": "bold red", "warning": "yellow", "info": "dim"}


def views(name: str, summary: Summary) -> Iterator[RenderableType]:
    """What `hindcast inspect` shows, from top to bottom."""
    yield Text(name, style="bold")
    yield _facts(summary)
    if summary.returns is not None:
        yield from _spread("Returns", summary.returns)
    if summary.lengths is not None:
        yield from _spread("Lengths (timesteps)", summary.lengths)
    for leaf in summary.actions:
        yield from _actions(leaf)
    for problem in summary.problems:
        yield Text.assemble((f"{problem.severity}: ", _COLOURS[problem.severity]), problem.message)


def _facts(summary: Summary) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    sampled = summary.sampled_episodes < summary.episodes
    facts: Mapping[str, str | None] = {
        "episodes": words.whole(summary.episodes),
        "timesteps": words.whole(summary.timesteps),
        "looked at": words.plural(summary.sampled_episodes, "episode") if sampled else None,
        "size": f"{words.size(summary.bytes)} in {words.plural(summary.files, 'file')}",
        "environment": summary.environment,
        "observations": words.space(summary.observation_space),
        "actions": words.space(summary.action_space),
        "columns": ", ".join(f"{name} {what}" for name, what in summary.columns.items()),
        "ends": f"{words.share(summary.terminated)} terminated, {words.share(summary.truncated)} truncated",
        "rewards": _rewards(summary),
        "action_logp": "recorded" if summary.has_logp else "not recorded",
        "digest": summary.digest[:16],
    }
    for label, value in facts.items():
        if value is not None:
            table.add_row(label, Text(value))
    return Padding(table, (0, 0, 1, 2), expand=False)


def _rewards(summary: Summary) -> str | None:
    rewards = summary.rewards
    if rewards is None:
        return None
    zero = "" if summary.zero_rewards is None else f", {words.share(summary.zero_rewards)} of them zero"
    return f"{words.significant(rewards.min)} to {words.significant(rewards.max)}{zero}"


def _spread(title: str, spread: Distribution) -> Iterator[RenderableType]:
    low, high = words.significant(spread.min), words.significant(spread.max)
    mean, deviation = words.significant(spread.mean), words.significant(spread.std)
    middle = words.significant(spread.median)
    yield Text(f"{title}: mean {mean} ± {deviation}, median {middle}, from {low} to {high}")
    edges, counts = _merged(spread)
    yield _bars([_bin(*ends) for ends in itertools.pairwise(edges)], counts)


def _bin(low: float, high: float) -> str:
    """A bin's name; a bin around a single integer is called by it."""
    if high - low == 1 and low % 1 == 0.5:
        return words.significant(low + 0.5)
    return f"{words.significant(low)} to {words.significant(high)}"


def _merged(spread: Distribution) -> tuple[Sequence[float], Sequence[int]]:
    """Neighbouring bins together, so that they fit on a screen."""
    step = -(-len(spread.counts) // MAX_ROWS)
    counts = [sum(spread.counts[i : i + step]) for i in range(0, len(spread.counts), step)]
    return [*spread.edges[:-1:step], spread.edges[-1]], counts


def _actions(leaf: ActionLeaf) -> Iterator[RenderableType]:
    if leaf.values is not None:
        yield from _values(leaf.name, leaf.values)
        return
    yield Text(f"{leaf.name}: {words.plural(len(leaf.dimensions), 'dimension')}")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("dimension", "min", "mean", "std", "max"):
        table.add_column(column, justify="right")
    for index, spread in enumerate(leaf.dimensions[:MAX_ROWS]):
        figures = (spread.min, spread.mean, spread.std, spread.max)
        table.add_row(str(index), *(words.significant(figure) for figure in figures))
    yield Padding(table, (0, 0, 1, 2), expand=False)


def _values(name: str, counts: Mapping[int, int]) -> Iterator[RenderableType]:
    shown = sorted(sorted(counts, key=lambda value: counts[value], reverse=True)[:MAX_ROWS])
    more = f", the {len(shown)} most frequent of {len(counts)}" if len(shown) < len(counts) else ""
    yield Text(f"{name}: how often each value is taken{more}")
    yield _bars([str(value) for value in shown], [counts[value] for value in shown])


def _bars(labels: Sequence[str], counts: Sequence[int]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(style="cyan")
    table.add_column(justify="right")
    total, most = sum(counts), max(counts)
    for label, count in zip(labels, counts, strict=True):
        table.add_row(label, bar(count / most), f"{words.whole(count)}  {words.share(count / total)}")
    return Padding(table, (0, 0, 1, 2), expand=False)


def bar(share: float) -> str:
    """A bar of up to `BAR_WIDTH` blocks, in eighths; anything above zero shows."""
    eighths = max(round(share * BAR_WIDTH * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1 : eighths % 8]
