"""Pictures of recorded data: returns, lengths, actions, and the part of their space that observations visit."""

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
MAX_EVEN_RATIO = 1.25


def data_plots(summary: Summary) -> dict[str, Picture | None]:
    """Draw the pictures of a dataset: `returns`, `lengths`, and one of each action leaf (the first four)."""
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
    spread: ValueDistribution | None, verb: str, unit: str, comparative: str, axis: str
) -> Picture | None:
    """Draw a histogram of returns or lengths; None if they are unknown."""
    if spread is None:
        return None
    middle = f"{formatting.significant(spread.median)}{unit}"
    title = f"Half of the recorded episodes {verb} {middle} or {comparative}"
    if spread.median == spread.max:
        title = f"At least half of the episodes {verb} {middle}, the maximum in the data"
    if spread.min == spread.max:
        title = f"Every recorded episode {verb}s {middle}"
    mean, deviation, low, high = map(
        formatting.significant, (spread.mean, spread.std, spread.min, spread.max)
    )
    statistics = f": mean {mean} ± {deviation}, from {low} to {high}"
    caption = formatting.plural(spread.count, "episode") + (statistics if spread.min < spread.max else "")

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
    if len(edges) == 2:  # a single value: a bar as wide as the picture would hide where it is
        centre = edges.mean()
        axes.set_xlim(centre - 4, centre + 4)
        axes.set_xticks([centre])


def _mark_median(axes: Axes, theme: Theme, spread: ValueDistribution) -> None:
    if spread.min == spread.max:
        return
    axes.axvline(spread.median, color=theme.reference, linewidth=1.4, dashes=(5, 3))
    low, high = axes.get_xlim()
    is_label_left = spread.median > (low + high) / 2
    axes.annotate(
        f"median {formatting.significant(spread.median)}",
        (spread.median, 1.0),
        xytext=(-5 if is_label_left else 5, -2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if is_label_left else "left",
        va="top",
        fontsize=9.5,
        fontweight="bold",
        color=theme.reference,
    )


def action_plot(summary: Summary, leaf: ActionLeaf) -> Picture | None:
    """Draw the frequency of each discrete action, or the distribution of each dimension of continuous ones."""
    if leaf.values is not None:
        return _discrete_plot(summary, leaf.name, _count_values(summary, leaf))
    if leaf.dimensions:
        return _box_plot(summary, leaf)
    return None


def _count_values(summary: Summary, leaf: ActionLeaf) -> dict[int, int]:
    """Count all values of the space, including those never taken if the space is known."""
    counts = dict(leaf.values or {})
    space = summary.action_space or {}
    if leaf.name == "actions" and space.get("type") == "Discrete":
        first = int(space.get("start", 0))
        counts = {value: counts.get(value, 0) for value in range(first, first + int(space["n"]))} | counts
    return counts


def _discrete_plot(summary: Summary, name: str, counts: dict[int, int]) -> Picture:
    total = sum(counts.values())
    plotted_values = sorted(sorted(counts, key=lambda value: counts[value], reverse=True)[:MAX_BARS])
    shares = np.array([100 * counts[value] / total for value in plotted_values])
    caption = f"Share of {formatting.count(summary.sampled_timesteps)} timesteps"
    if len(plotted_values) < len(counts):
        caption += f"; the {len(plotted_values)} most frequent of {len(counts)} values"

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "action" if name == "actions" else name, "% of timesteps")
        _share_bars(axes, theme, shares)
        axes.set_xticks(range(len(plotted_values)), [str(value) for value in plotted_values])
        axes.set_ylim(0, 1.12 * shares.max())
        if len(plotted_values) <= LABELLED_BARS:
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
    total, most_frequent = sum(counts.values()), max(counts, key=lambda value: counts[value])
    unused = sum(count == 0 for count in counts.values())
    if unused:
        return f"{unused} of {len(counts)} {what}s {'is' if unused == 1 else 'are'} never taken"
    share = counts[most_frequent] / total
    if share * len(counts) < MAX_EVEN_RATIO:
        return f"Every {what} is taken about equally often"
    return f"The most frequent {what}, {most_frequent}, is taken in {formatting.as_percentage(share)} of timesteps"


def _box_plot(summary: Summary, leaf: ActionLeaf) -> Picture:
    plotted = leaf.dimensions[:MAX_DIMENSIONS]
    columns = min(3, len(plotted))
    rows = math.ceil(len(plotted) / columns)
    minimum, maximum = min(part.min for part in leaf.dimensions), max(part.max for part in leaf.dimensions)
    what = "actions" if leaf.name == "actions" else leaf.name
    dimensions = formatting.plural(len(leaf.dimensions), "dimension")
    title = (
        f"Recorded {what} are between {formatting.significant(minimum)} and {formatting.significant(maximum)}"
    )
    caption = (
        f"Histogram of {formatting.count(summary.sampled_timesteps)} timesteps, a panel for each dimension"
    )
    if len(plotted) < len(leaf.dimensions):
        caption += f"; the first {len(plotted)} of {dimensions}"

    def draw(figure: Figure, theme: Theme) -> None:
        grid = np.atleast_1d(figure.subplots(rows, columns, sharex=True)).ravel()
        for index, axes in enumerate(grid):
            if index >= len(plotted):
                axes.axis("off")
                continue
            _panel(axes, theme, f"{index}", plotted[index])
        for axes in grid[max(0, len(plotted) - columns) : len(plotted)]:
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
    axes.set_title(title, loc="left", fontsize=8.5, color=theme.muted_ink, pad=3)


def coverage_plots(summary: Summary) -> dict[str, Picture | None]:
    """Draw `coverage`, and the ranges of each observation leaf with bounds (the first four)."""
    pictures: dict[str, Picture | None] = {"coverage": _grid(summary.coverage) if summary.coverage else None}
    for leaf in summary.observations[:MAX_LEAVES]:
        pictures[f"range-{leaf.name.replace('/', '-')}"] = _ranges(leaf)
    return pictures


def _grid(coverage: Coverage) -> Picture | None:
    counts = np.array(coverage.counts, dtype=np.float64)
    if counts.shape[1] == 1:
        return None
    title = f"Observations visit {formatting.as_percentage(coverage.occupied_share)} of the grid's cells"
    caption = (
        f"{formatting.count(coverage.observations)} observations on a grid of the first two principal components, "
        f"{formatting.as_percentage(coverage.explained_variance)} of the variance; evenness "
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
        bar.ax.tick_params(colors=theme.muted_ink, labelsize=9, length=0, which="both")
        bar.set_label("observations in a cell", fontsize=9.5, color=theme.muted_ink)

    return Picture(title, caption, draw)


def _ranges(leaf: ObservationLeaf) -> Picture | None:
    """Draw bars of the share of its bounds that each dimension covers."""
    shares_by_dimension = [
        (index, share)
        for index, share in zip(leaf.shown_dimensions, leaf.share_of_space, strict=True)
        if share is not None
    ]
    if not shares_by_dimension:
        return None
    if len(shares_by_dimension) > MAX_RANGES:
        shares_by_dimension = [
            shares_by_dimension[i]
            for i in np.linspace(0, len(shares_by_dimension) - 1, MAX_RANGES).round().astype(int)
        ]
    shares = np.array([100 * share for _, share in shares_by_dimension])
    what = "observations" if leaf.name == "obs" else leaf.name
    min_share, max_share = (
        formatting.as_percentage(shares.min() / 100),
        formatting.as_percentage(shares.max() / 100),
    )
    title = f"Dimensions of {what} cover {min_share} to {max_share} of their bounds"
    if min_share == max_share:
        title = f"Each bounded dimension of {what} covers {max_share} of its bounds"
    num_dimensions = formatting.plural(leaf.dimensions, "dimension")
    caption = (
        f"Range seen over the width of the space's bounds, {len(shares_by_dimension)} of {num_dimensions}"
    )

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "dimension", "% of the bounds")
        _share_bars(axes, theme, shares)
        step = -(-len(shares_by_dimension) // 16)
        names = [str(index) for index, _ in shares_by_dimension[::step]]
        axes.set_xticks(range(0, len(shares_by_dimension), step), names, fontsize=9.5 if step == 1 else 7)
        axes.set_ylim(0, max(100.0, 1.08 * shares.max()))

    return Picture(title, caption, draw, height=2.8)
