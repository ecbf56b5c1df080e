"""Pictures of observations: which part of their space is visited, and what each dimension ranges over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindcast import formatting
from hindcast.datasets.inspection.summary import Coverage, ObservationLeaf, Summary
from hindcast.report.canvas import Picture, Theme, style_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_BARS = 32


def coverage_plots(summary: Summary) -> dict[str, Picture | None]:
    """`coverage`, and the ranges of each observation leaf whose space has bounds (the first four)."""
    pictures: dict[str, Picture | None] = {"coverage": _grid(summary.coverage) if summary.coverage else None}
    for leaf in summary.observations[:4]:
        pictures[f"range-{leaf.name.replace('/', '-')}"] = _ranges(leaf)
    return pictures


def _grid(coverage: Coverage) -> Picture | None:
    counts = np.array(coverage.counts, dtype=np.float64)
    if counts.shape[1] == 1:
        return None
    title = f"Observations cover {formatting.share(coverage.occupied)} of the cells of their plane"
    caption = (
        f"{formatting.count(coverage.observations)} observations along the first two principal components, "
        f"{formatting.share(coverage.explained)} of the variance; evenness "
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
    if len(known) > MAX_BARS:
        known = [known[i] for i in np.linspace(0, len(known) - 1, MAX_BARS).round().astype(int)]
    shares = np.array([100 * share for _, share in known])
    what = "observations" if leaf.name == "obs" else leaf.name
    least, most = formatting.share(shares.min() / 100), formatting.share(shares.max() / 100)
    title = f"Dimensions of {what} cover {least} to {most} of their bounds"
    if least == most:
        title = f"Each bounded dimension of {what} covers {most} of its bounds"
    of = formatting.plural(leaf.dimensions, "dimension")
    caption = f"Range seen over the width of the space's bounds, {len(known)} of {of}"

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "dimension", "% of the bounds")
        places = np.arange(len(known))
        axes.bar(places, shares, 0.7, color=theme.main)
        step = -(-len(known) // 16)
        axes.set_xticks(
            places[::step], [str(index) for index, _ in known[::step]], fontsize=9.5 if step == 1 else 7
        )
        axes.set_xlim(-0.8, len(known) - 0.2)
        axes.set_ylim(0, max(100.0, 1.08 * shares.max()))

    return Picture(title, caption, draw, height=2.8)
