"""Pictures of recorded data: returns, lengths, actions, and which part of their space observations visit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.datasets.inspection.statistics import ValueDistribution
from hindcast.datasets.inspection.summary import ActionLeaf, Coverage, ObservationLeaf, Summary
from hindcast.report.canvas import Picture, Theme, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_DIMENSIONS = 9
MAX_BARS = 20
MAX_RANGES = 32
MAX_LEAVES = 4
LABELLED_BARS = 12
EVEN = 1.25


def data_plots(summary: Summary) -> dict[str, Picture | None]:
    """All pictures of a dataset: `returns`, `lengths`, and one of each action leaf (the first four)."""
    pictures: dict[str, Picture | None] = {
        "returns": _histogram(summary.returns, "return", "", "more", "return of an episode"),
        "lengths": _histogram(
            summary.lengths, "last", " timesteps", "longer", "length of an episode (timesteps)"
        ),
    }
    for leaf in summary.actions[:MAX_LEAVES]:
        pictures[leaf.name.replace("/", "-")] = action_plot(summary, leaf)
    return pictures


def _histogram(
    spread: ValueDistribution | None, verb: str, unit: str, more: str, axis: str
) -> Picture | None:
    """How many episodes return, or last, how much; None where that is not known."""
    if spread is None:
        return None
    middle = f"{formatting.significant(spread.median)}{unit}"
    title = f"Half of the recorded episodes {verb} {middle} or {more}"
    if spread.median == spread.max:
        title = f"At least half of the recorded episodes {verb} {middle}, the most seen"
    if spread.min == spread.max:
        title = f"Every recorded episode {verb}s {middle}"
    mean, deviation, low, high = map(
        formatting.significant, (spread.mean, spread.std, spread.min, spread.max)
    )
    several = f": mean {mean} ± {deviation}, from {low} to {high}"
    caption = formatting.plural(spread.count, "episode") + (several if spread.min < spread.max else "")

    def draw(figure: Figure, theme: Theme) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots()
        style_axes(axes, theme, axis, "episodes")
        _bars(axes, theme, spread)
        axes.set_ylim(0, 1.14 * max(spread.counts))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        _mark_median(axes, theme, spread)

    return Picture(title, caption, draw)


def _bars(axes: Axes, theme: Theme, spread: ValueDistribution) -> None:
    edges = np.array(spread.edges)
    axes.bar(
        edges[:-1], spread.counts, np.diff(edges), align="edge", color=theme.main,
        edgecolor=theme.paper, linewidth=0.8,
    )  # fmt: skip
    if len(edges) == 2:  # a single value: a bar as wide as the picture says nothing
        centre = edges.mean()
        axes.set_xlim(centre - 4, centre + 4)
        axes.set_xticks([centre])


def _mark_median(axes: Axes, theme: Theme, spread: ValueDistribution) -> None:
    if spread.min == spread.max:
        return
    axes.axvline(spread.median, color=theme.reference, linewidth=1.4, dashes=(5, 3))
    low, high = axes.get_xlim()
    left = spread.median > (low + high) / 2
    axes.annotate(
        f"median {formatting.significant(spread.median)}",
        (spread.median, 1.0),
        xytext=(-5 if left else 5, -2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if left else "left",
        va="top",
        fontsize=9.5,
        fontweight="bold",
        color=theme.reference,
    )


def action_plot(summary: Summary, leaf: ActionLeaf) -> Picture | None:
    """How often each discrete action is taken, or how each dimension of a continuous one is spread."""
    if leaf.values is not None:
        return _discrete_plot(summary, leaf.name, _with_unused(summary, leaf))
    if leaf.dimensions:
        return _box_plot(summary, leaf)
    return None


def _with_unused(summary: Summary, leaf: ActionLeaf) -> dict[int, int]:
    """Counts of all values of the space, those never taken included, where the space is known."""
    counts = dict(leaf.values or {})
    space = summary.action_space or {}
    if leaf.name == "actions" and space.get("type") == "Discrete":
        first = int(space.get("start", 0))
        counts = {value: counts.get(value, 0) for value in range(first, first + int(space["n"]))} | counts
    return counts


def _discrete_plot(summary: Summary, name: str, counts: dict[int, int]) -> Picture:
    total = sum(counts.values())
    shown = sorted(sorted(counts, key=lambda value: counts[value], reverse=True)[:MAX_BARS])
    shares = np.array([100 * counts[value] / total for value in shown])
    caption = f"Share of {formatting.count(summary.sampled_timesteps)} timesteps"
    if len(shown) < len(counts):
        caption += f"; the {len(shown)} most frequent of {len(counts)} values"

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "action" if name == "actions" else name, "% of timesteps")
        _share_bars(axes, theme, shares)
        axes.set_xticks(range(len(shown)), [str(value) for value in shown])
        axes.set_ylim(0, 1.12 * shares.max())
        if len(shown) <= LABELLED_BARS:
            for place, share in enumerate(shares):
                axes.annotate(
                    formatting.as_percentage(share / 100), (place, share), xytext=(0, 3), textcoords="offset points",
                    ha="center", fontsize=9.5, fontweight="bold", color=theme.ink,
                )  # fmt: skip

    return Picture(_discrete_title(name, counts), caption, draw)


def _share_bars(axes: Axes, theme: Theme, shares: NDArray[np.float64]) -> None:
    axes.bar(np.arange(len(shares)), shares, 0.7, color=theme.main)
    axes.set_xlim(-0.8, len(shares) - 0.2)


def _discrete_title(name: str, counts: dict[int, int]) -> str:
    what = "action" if name == "actions" else f"value of {name}"
    total, most = sum(counts.values()), max(counts, key=lambda value: counts[value])
    unused = sum(count == 0 for count in counts.values())
    if unused:
        return f"{unused} of {len(counts)} {what}s {'is' if unused == 1 else 'are'} never taken"
    share = counts[most] / total
    if share * len(counts) < EVEN:
        return f"Every {what} is taken about equally often"
    return f"The most frequent {what}, {most}, is taken in {formatting.as_percentage(share)} of timesteps"


def _box_plot(summary: Summary, leaf: ActionLeaf) -> Picture:
    shown = leaf.dimensions[:MAX_DIMENSIONS]
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    least, most = min(part.min for part in leaf.dimensions), max(part.max for part in leaf.dimensions)
    what = "actions" if leaf.name == "actions" else leaf.name
    dimensions = formatting.plural(len(leaf.dimensions), "dimension")
    title = f"Recorded {what} are between {formatting.significant(least)} and {formatting.significant(most)}"
    caption = (
        f"Histogram of {formatting.count(summary.sampled_timesteps)} timesteps, a panel for each dimension"
    )
    if len(shown) < len(leaf.dimensions):
        caption += f"; the first {len(shown)} of {dimensions}"

    def draw(figure: Figure, theme: Theme) -> None:
        grid = np.atleast_1d(figure.subplots(rows, columns, sharex=True)).ravel()
        for index, axes in enumerate(grid):
            if index >= len(shown):
                axes.axis("off")
                continue
            _panel(axes, theme, f"{index}", shown[index])
        for axes in grid[max(0, len(shown) - columns) : len(shown)]:
            axes.tick_params(axis="x", labelbottom=True)

    return Picture(title, caption, draw, height=max(2.6, 1.25 * rows + 0.4))


def _panel(axes: Axes, theme: Theme, name: str, spread: ValueDistribution) -> None:
    style_axes(axes, theme)
    axes.locator_params(axis="x", nbins=3)
    axes.grid(visible=False)
    axes.set_yticks([])
    _bars(axes, theme, spread)
    axes.axvline(spread.mean, color=theme.reference, linewidth=1.2, dashes=(5, 3))
    title = f"dimension {name}, mean {formatting.significant(round(spread.mean, 2) + 0.0)}"
    axes.set_title(title, loc="left", fontsize=8.5, color=theme.muted, pad=3)


def coverage_plots(summary: Summary) -> dict[str, Picture | None]:
    """`coverage`, and the ranges of each observation leaf whose space has bounds (the first four)."""
    pictures: dict[str, Picture | None] = {"coverage": _grid(summary.coverage) if summary.coverage else None}
    for leaf in summary.observations[:MAX_LEAVES]:
        pictures[f"range-{leaf.name.replace('/', '-')}"] = _ranges(leaf)
    return pictures


def _grid(coverage: Coverage) -> Picture | None:
    counts = np.array(coverage.counts, dtype=np.float64)
    if counts.shape[1] == 1:
        return None
    title = f"Observations cover {formatting.as_percentage(coverage.occupied)} of the cells of their plane"
    caption = (
        f"{formatting.count(coverage.observations)} observations along the first two principal components, "
        f"{formatting.as_percentage(coverage.explained)} of the variance; evenness "
        f"{formatting.significant(round(coverage.evenness, 2))}"
    )

    def draw(figure: Figure, theme: Theme) -> None:
        from matplotlib.colors import LinearSegmentedColormap, LogNorm
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axes = figure.subplots()
        style_axes(axes, theme, "first component", "second component")
        axes.grid(visible=False)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines["bottom"].set_visible(False)
        colours = LinearSegmentedColormap.from_list("density", [theme.grid, theme.main])
        cells = np.ma.masked_equal(counts.T, 0)
        norm = LogNorm(1, max(2.0, counts.max()))
        image = axes.imshow(
            cells, cmap=colours, norm=norm, origin="lower", aspect="auto", interpolation="nearest"
        )
        bar = figure.colorbar(image, ax=axes, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if counts.max() < 100 else (1.0,)))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.count(value)))
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
        bar.ax.tick_params(colors=theme.muted, labelsize=9, length=0, which="both")
        bar.set_label("observations in a cell", fontsize=9.5, color=theme.muted)

    return Picture(title, caption, draw)


def _ranges(leaf: ObservationLeaf) -> Picture | None:
    """Bars of the share of its bounds that each dimension covers."""
    known = [
        (index, share)
        for index, share in zip(leaf.shown, leaf.share_of_space, strict=True)
        if share is not None
    ]
    if not known:
        return None
    if len(known) > MAX_RANGES:
        known = [known[i] for i in np.linspace(0, len(known) - 1, MAX_RANGES).round().astype(int)]
    shares = np.array([100 * share for _, share in known])
    what = "observations" if leaf.name == "obs" else leaf.name
    least, most = formatting.as_percentage(shares.min() / 100), formatting.as_percentage(shares.max() / 100)
    title = f"Dimensions of {what} cover {least} to {most} of their bounds"
    if least == most:
        title = f"Each bounded dimension of {what} covers {most} of its bounds"
    of = formatting.plural(leaf.dimensions, "dimension")
    caption = f"Range seen over the width of the space's bounds, {len(known)} of {of}"

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "dimension", "% of the bounds")
        _share_bars(axes, theme, shares)
        step = -(-len(known) // 16)
        names = [str(index) for index, _ in known[::step]]
        axes.set_xticks(range(0, len(known), step), names, fontsize=9.5 if step == 1 else 7)
        axes.set_ylim(0, max(100.0, 1.08 * shares.max()))

    return Picture(title, caption, draw, height=2.8)
