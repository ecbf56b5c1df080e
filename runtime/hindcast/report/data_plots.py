"""Pictures of recorded data: returns, lengths, actions, and the part of their space that observations visit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hindcast import formatting
from hindcast.datasets.inspection.frames import Frames
from hindcast.datasets.inspection.statistics import ValueDistribution
from hindcast.datasets.inspection.summary import ActionLeaf, Coverage, ObservationLeaf, Summary
from hindcast.report.canvas import WIDTH, Picture, Theme, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_DIMENSIONS = 9  # panels of a picture of continuous actions
MAX_DISCRETE_BARS = 20  # bars of a picture of discrete actions
MAX_LISTED_VALUES = 10_000  # size of a space up to which values that never occur are listed, too
MAX_RANGES = 32  # bars of a picture of observation ranges
MAX_LEAVES = 4  # leaves of actions, and of observations, that have pictures
MAX_LABELLED_BARS = 12  # bars up to which each bar shows its percentage
_FRAMES_PER_ROW = 4
MAX_EVEN_RATIO = 1.25
"""Frequency of the most frequent action over the mean frequency, below which all actions count as equally frequent."""


def data_pictures(summary: Summary) -> dict[str, Picture | None]:
    """Return the pictures of a dataset: `returns`, `lengths`, and of the first four leaves of actions and of images.

    A picture is None if the data have no values for it.
    """
    pictures: dict[str, Picture | None] = {
        "returns": _histogram_picture(summary.returns, "return", "", "more", "return of an episode"),
        "lengths": _histogram_picture(
            summary.lengths, "last", " timesteps", "longer", "length of an episode (timesteps)"
        ),
    }
    for leaf in summary.actions[:MAX_LEAVES]:
        pictures[leaf.name.replace("/", "-")] = action_picture(summary, leaf)
    for name, frames in list(summary.frames.items())[:MAX_LEAVES]:
        subject = f"{name} of {frames.episode}"
        pictures[f"frames-{name.replace('/', '-')}"] = frames_picture(
            frames, "An episode as it was recorded", subject
        )
    return pictures


def frames_picture(frames: Frames, title: str, subject: str) -> Picture:
    """Return a picture of frames in a row or two, with their timesteps.

    Args:
        frames: the frames.
        title: title of the picture.
        subject: what the images are, for the caption.
    """
    columns = min(_FRAMES_PER_ROW, len(frames.images))
    rows = math.ceil(len(frames.images) / columns)
    height, width = frames.images[0].shape[:2]
    caption = f"{subject}: {len(frames.images)} of {formatting.plural(frames.num_observations, 'image')}"

    def draw(figure: Figure, theme: Theme) -> None:
        grid = np.atleast_1d(figure.subplots(rows, columns)).ravel()
        for axes in grid[len(frames.images) :]:
            axes.axis("off")
        for axes, image, timestep in zip(grid, frames.images, frames.timesteps, strict=False):
            axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_color(theme.grid)  # a white image has an edge on white paper, too
            axes.set_title(f"t = {timestep:,}", fontsize=8.5, color=theme.muted_ink, pad=3)

    return Picture(title, caption, draw, height=min(6.0, rows * (WIDTH / columns * height / width + 0.2)))


def _histogram_picture(
    distribution: ValueDistribution | None, verb: str, unit: str, comparative: str, axis_label: str
) -> Picture | None:
    """Return a picture with a histogram of returns or lengths.

    Args:
        distribution: the returns or lengths; None if they are unknown.
        verb: verb of the title: "return" or "last".
        unit: unit after a number in the title, with a leading space.
        comparative: "more" or "longer", as in "return 5 or more".
        axis_label: label of the x axis.

    Returns:
        The picture; None without a distribution.
    """
    if distribution is None:
        return None
    median_text = f"{formatting.significant(distribution.median)}{unit}"
    title = f"Half of the recorded episodes {verb} {median_text} or {comparative}"
    if distribution.median == distribution.max:
        title = f"At least half of the episodes {verb} {median_text}, the maximum in the data"
    if distribution.min == distribution.max:
        title = f"Every recorded episode {verb}s {median_text}"
    mean, deviation, low, high = map(
        formatting.significant, (distribution.mean, distribution.std, distribution.min, distribution.max)
    )
    statistics = f": mean {mean} ± {deviation}, from {low} to {high}"
    caption = formatting.plural(distribution.count, "episode") + (
        statistics if distribution.min < distribution.max else ""
    )

    def draw(figure: Figure, theme: Theme) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots()
        style_axes(axes, theme, axis_label, "episodes")
        _draw_histogram_bars(axes, theme, distribution)
        axes.set_ylim(0, 1.14 * max(distribution.counts))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        _mark_median(axes, theme, distribution)

    return Picture(title, caption, draw)


def _draw_histogram_bars(axes: Axes, theme: Theme, distribution: ValueDistribution) -> None:
    edges = np.array(distribution.edges)
    axes.bar(
        edges[:-1], distribution.counts, np.diff(edges), align="edge", color=theme.main,
        edgecolor=theme.paper, linewidth=0.8,
    )  # fmt: skip
    if len(edges) == 2:  # a single value: a bar as wide as the picture would hide where it is
        centre = edges.mean()
        width = edges[1] - edges[0]
        axes.set_xlim(centre - 4 * width, centre + 4 * width)
        axes.set_xticks([centre])


def _mark_median(axes: Axes, theme: Theme, distribution: ValueDistribution) -> None:
    if distribution.min == distribution.max:
        return
    axes.axvline(distribution.median, color=theme.reference, linewidth=1.4, dashes=(5, 3))
    low, high = axes.get_xlim()
    is_label_left = distribution.median > (low + high) / 2
    axes.annotate(
        f"median {formatting.significant(distribution.median)}",
        (distribution.median, 1.0),
        xytext=(-5 if is_label_left else 5, -2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if is_label_left else "left",
        va="top",
        fontsize=9.5,
        fontweight="bold",
        color=theme.reference,
    )


def action_picture(summary: Summary, leaf: ActionLeaf) -> Picture | None:
    """Return a picture of the frequency of each discrete action, or of each dimension's distribution.

    None if the leaf has neither.
    """
    if leaf.values is not None:
        return _discrete_picture(summary, leaf.name, _count_values(summary, leaf))
    if leaf.dimensions:
        return _continuous_picture(summary, leaf)
    return None


def _count_values(summary: Summary, leaf: ActionLeaf) -> dict[int, int]:
    """Return value -> number of occurrences; if the space is known, with 0 for each value that never occurs."""
    counts = dict(leaf.values or {})
    space = summary.action_space or {}
    if leaf.name == "actions" and space.get("type") == "Discrete" and int(space["n"]) <= MAX_LISTED_VALUES:
        first = int(space.get("start", 0))
        counts = {value: counts.get(value, 0) for value in range(first, first + int(space["n"]))} | counts
    return counts


def _discrete_picture(summary: Summary, name: str, counts: dict[int, int]) -> Picture:
    total = sum(counts.values())
    plotted_values = sorted(sorted(counts, key=lambda value: counts[value], reverse=True)[:MAX_DISCRETE_BARS])
    percentages = np.array([100 * counts[value] / total for value in plotted_values])
    caption = f"Share of {formatting.count(summary.sampled_timesteps)} timesteps"
    if len(plotted_values) < len(counts):
        caption += f"; the {len(plotted_values)} most frequent of {len(counts)} values"

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "action" if name == "actions" else name, "% of timesteps")
        _draw_percentage_bars(axes, theme, percentages)
        axes.set_xticks(range(len(plotted_values)), [str(value) for value in plotted_values])
        axes.set_ylim(0, 1.12 * percentages.max())
        if len(plotted_values) <= MAX_LABELLED_BARS:
            for position, percentage in enumerate(percentages):
                axes.annotate(
                    formatting.as_percentage(percentage / 100), (position, percentage),
                    xytext=(0, 3), textcoords="offset points",
                    ha="center", fontsize=9.5, fontweight="bold", color=theme.ink,
                )  # fmt: skip

    return Picture(_discrete_title(name, counts), caption, draw)


def _draw_percentage_bars(axes: Axes, theme: Theme, percentages: NDArray[np.float64]) -> None:
    axes.bar(np.arange(len(percentages)), percentages, 0.7, color=theme.main)
    axes.set_xlim(-0.8, len(percentages) - 0.2)


def _discrete_title(name: str, counts: dict[int, int]) -> str:
    noun = "action" if name == "actions" else f"value of {name}"
    total, most_frequent = sum(counts.values()), max(counts, key=lambda value: counts[value])
    num_unused = sum(count == 0 for count in counts.values())
    if num_unused:
        return f"{num_unused} of {len(counts)} {noun}s {'is' if num_unused == 1 else 'are'} never taken"
    share = counts[most_frequent] / total
    if share * len(counts) < MAX_EVEN_RATIO:
        return f"Every {noun} is taken about equally often"
    return f"The most frequent {noun}, {most_frequent}, is taken in {formatting.as_percentage(share)} of timesteps"


def _continuous_picture(summary: Summary, leaf: ActionLeaf) -> Picture:
    plotted_dimensions = leaf.dimensions[:MAX_DIMENSIONS]
    columns = min(3, len(plotted_dimensions))
    rows = math.ceil(len(plotted_dimensions) / columns)
    minimum = min(dimension.min for dimension in leaf.dimensions)
    maximum = max(dimension.max for dimension in leaf.dimensions)
    noun = "actions" if leaf.name == "actions" else leaf.name
    dimensions = formatting.plural(len(leaf.dimensions), "dimension")
    title = (
        f"Recorded {noun} are between {formatting.significant(minimum)} and {formatting.significant(maximum)}"
    )
    caption = (
        f"Histogram of {formatting.count(summary.sampled_timesteps)} timesteps, a panel for each dimension"
    )
    if len(plotted_dimensions) < len(leaf.dimensions):
        caption += f"; the first {len(plotted_dimensions)} of {dimensions}"

    def draw(figure: Figure, theme: Theme) -> None:
        grid = np.atleast_1d(figure.subplots(rows, columns, sharex=True)).ravel()
        for index, axes in enumerate(grid):
            if index >= len(plotted_dimensions):
                axes.axis("off")
                continue
            _draw_panel(axes, theme, leaf.dimension_names[index], plotted_dimensions[index])
        for axes in grid[max(0, len(plotted_dimensions) - columns) : len(plotted_dimensions)]:
            axes.tick_params(axis="x", labelbottom=True)

    return Picture(title, caption, draw, height=max(2.6, 1.25 * rows + 0.4))


def _draw_panel(axes: Axes, theme: Theme, name: str, distribution: ValueDistribution) -> None:
    style_axes(axes, theme)
    axes.locator_params(axis="x", nbins=3)
    axes.grid(visible=False)
    axes.set_yticks([])
    _draw_histogram_bars(axes, theme, distribution)
    axes.axvline(distribution.mean, color=theme.reference, linewidth=1.2, dashes=(5, 3))
    mean = round(distribution.mean, 2) + 0.0  # adding 0.0 turns -0.0 into 0.0
    label = f"dimension {name}" if name.isdigit() else name
    title = f"{label}, mean {formatting.significant(mean)}"
    axes.set_title(title, loc="left", fontsize=8.5, color=theme.muted_ink, pad=3)


def coverage_pictures(summary: Summary) -> dict[str, Picture | None]:
    """Return `coverage`, and `range-<leaf>` for each of the first four observation leaves that are no images.

    A picture is None if the summary has no coverage in two dimensions, or if the leaf has no bounds.
    """
    pictures: dict[str, Picture | None] = {
        "coverage": _coverage_picture(summary.coverage) if summary.coverage else None
    }
    for leaf in [leaf for leaf in summary.observations if not leaf.is_image][:MAX_LEAVES]:
        pictures[f"range-{leaf.name.replace('/', '-')}"] = _range_picture(leaf)
    return pictures


def _coverage_picture(coverage: Coverage) -> Picture | None:
    counts = np.array(coverage.counts, dtype=np.float64)
    if counts.shape[1] == 1:  # the grid has one dimension
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
        colour_bar = figure.colorbar(image, ax=axes, pad=0.02)
        colour_bar.outline.set_visible(False)
        colour_bar.ax.yaxis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if counts.max() < 100 else (1.0,))
        )
        colour_bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.count(value)))
        colour_bar.ax.yaxis.set_minor_formatter(NullFormatter())
        colour_bar.ax.tick_params(colors=theme.muted_ink, labelsize=9, length=0, which="both")
        colour_bar.set_label("observations in a cell", fontsize=9.5, color=theme.muted_ink)

    return Picture(title, caption, draw)


def _range_picture(leaf: ObservationLeaf) -> Picture | None:
    """Return a picture with a bar for each bounded dimension: the share of its bounds that the data cover."""
    shares_by_dimension = [
        (name, share)
        for name, share in zip(leaf.dimension_names, leaf.share_of_space, strict=True)
        if share is not None
    ]
    if not shares_by_dimension:
        return None
    if len(shares_by_dimension) > MAX_RANGES:
        shares_by_dimension = [
            shares_by_dimension[i]
            for i in np.linspace(0, len(shares_by_dimension) - 1, MAX_RANGES).round().astype(int)
        ]
    percentages = np.array([100 * share for _, share in shares_by_dimension])
    noun = "observations" if leaf.name == "obs" else leaf.name
    min_share = formatting.as_percentage(percentages.min() / 100)
    max_share = formatting.as_percentage(percentages.max() / 100)
    title = f"Dimensions of {noun} cover {min_share} to {max_share} of their bounds"
    if min_share == max_share:
        title = f"Each bounded dimension of {noun} covers {max_share} of its bounds"
    num_dimensions = formatting.plural(leaf.dimensions, "dimension")
    caption = (
        f"Recorded range as a fraction of the space's bounds, {len(shares_by_dimension)} of {num_dimensions}"
    )

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "dimension", "% of the bounds")
        _draw_percentage_bars(axes, theme, percentages)
        bars_per_tick = -(-len(shares_by_dimension) // 16)  # rounded up, so that there are at most 16 ticks
        names = [name for name, _ in shares_by_dimension[::bars_per_tick]]
        font_size = 9.5 if bars_per_tick == 1 else 7
        axes.set_xticks(range(0, len(shares_by_dimension), bars_per_tick), names, fontsize=font_size)
        axes.set_ylim(0, max(100.0, 1.08 * percentages.max()))

    return Picture(title, caption, draw, height=2.8)
