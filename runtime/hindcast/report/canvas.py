"""The visual style of all pictures: a figure with its finding as title, in a light and a dark theme.

The colours are from Okabe and Ito (2008), distinguishable with any colour vision; the dark theme has lighter
variants. Figures are built from matplotlib's objects alone, without pyplot and its global state.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from hindcast import formatting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH = 6.0  # inches
DPI = 200
TITLE_CHARACTERS = 60  # maximum per line, as for captions
CAPTION_CHARACTERS = 70


@dataclass(frozen=True)
class Theme:
    """Colours of a theme, as hex.

    Attributes:
        name: "light" or "dark".
        paper: background.
        ink: text.
        muted_ink: secondary text and axes.
        grid: grid lines.
        series: lines and bars, in order of use.
    """

    name: str
    paper: str
    ink: str
    muted_ink: str
    grid: str
    series: tuple[str, ...]

    @property
    def main(self) -> str:
        """Colour of the picture's subject."""
        return self.series[0]

    @property
    def reference(self) -> str:
        """Colour of what the subject is compared with."""
        return self.series[1]


LIGHT = Theme(
    "light", "#ffffff", "#1c2127", "#66707b", "#e7eaee",
    ("#0072B2", "#D55E00", "#009E73", "#B0548A", "#C28500", "#56B4E9", "#8a939c"),
)  # fmt: skip
DARK = Theme(
    "dark", "#171b21", "#e9ecf0", "#98a2ad", "#2b313a",
    ("#56B4E9", "#FF8A4C", "#35C49A", "#E39BC4", "#F0C04A", "#9BD3F5", "#7d8792"),
)  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A picture that can be drawn in either theme.

    Attributes:
        title: the finding, as a sentence.
        caption: description of what the picture shows.
        draw: draws into a figure that has only the title and the caption.
        height: height of the figure below title and caption, in inches.
    """

    title: str
    caption: str
    draw: Callable[[Figure, Theme], None]
    height: float = 3.5


@dataclass(frozen=True)
class Label:
    """A label at the right end of a line, in the line's colour; `y` in data units."""

    y: float
    text: str
    colour: str


def render(picture: Picture, theme: Theme) -> bytes:
    """Draw the picture as a PNG, 1200 pixels wide."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _blank_figure(picture, theme)
    picture.draw(figure, theme)
    buffer = io.BytesIO()
    # `savefig` would draw the figure twice. Compression level 4 is as small as the default of 6, and faster.
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None}, pil_kwargs={"compress_level": 4})
    return buffer.getvalue()


def _blank_figure(picture: Picture, theme: Theme) -> Figure:
    """Return a figure with title and caption, and space for the picture below them."""
    from matplotlib.figure import Figure

    title = textwrap.wrap(picture.title, TITLE_CHARACTERS)
    caption = textwrap.wrap(picture.caption, CAPTION_CHARACTERS)
    # The margins, then the lines of the title, then those of the caption.
    head_inches = 0.21 + 0.21 * len(title) + 0.17 * len(caption)
    total_inches = picture.height + head_inches
    figure = Figure(figsize=(WIDTH, total_inches), dpi=DPI, facecolor=theme.paper)
    figure.set_layout_engine(
        "constrained",
        rect=(0.0, 0.0, 1.0, 1 - head_inches / total_inches),
        h_pad=0.07,
        w_pad=0.09,
        hspace=0.06,
    )
    top = 1 - 0.14 / total_inches
    figure.text(
        0.02, top, "\n".join(title), fontsize=12, fontweight="bold", color=theme.ink, va="top",
        linespacing=1.25, in_layout=False,
    )  # fmt: skip
    figure.text(
        0.02, top - (0.21 * len(title) + 0.03) / total_inches, "\n".join(caption), fontsize=9.5, color=theme.muted_ink,
        va="top", linespacing=1.3, in_layout=False,
    )  # fmt: skip
    return figure


def style_axes(axes: Axes, theme: Theme, x_label: str = "", y_label: str = "") -> None:
    """Style axes: no frame, a light horizontal grid, labels, short tick numbers."""
    axes.set_facecolor(theme.paper)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.muted_ink)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.muted_ink, labelsize=9.5, length=0, pad=5)
    axes.tick_params(axis="x", length=3, color=theme.muted_ink)
    axes.set_xlabel(x_label, fontsize=10, color=theme.muted_ink)
    axes.set_ylabel(y_label, fontsize=10, color=theme.muted_ink)
    format_ticks(axes)


def format_ticks(axes: Axes, *, is_x_integer: bool = False) -> None:
    """Format tick labels such as `12k`; with `is_x_integer`, the x axis has ticks at integers only."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for axis, is_integer in ((axes.xaxis, is_x_integer), (axes.yaxis, False)):
        axis.set_major_locator(
            MaxNLocator(nbins=9 if is_integer else 6, integer=is_integer, steps=[1, 2, 2.5, 5, 10])
        )
        axis.set_major_formatter(FuncFormatter(partial(_tick_label, axis)))


def _tick_label(axis: Axis, value: float, _: object) -> str:
    """Return the label of a tick: `0.25`, `1,500`; on an axis that reaches 10,000, `0`, `5k`, `12k`."""
    low, high = axis.get_view_interval()
    if value and max(abs(low), abs(high)) >= 10_000:
        return formatting.count(value)
    return f"{value:,.6g}"


def draw_end_labels(axes: Axes, labels: Sequence[Label], font_size: float = 9.5) -> None:
    """Write labels right of the axes, moved apart if they overlap. Call it after the axes' limits are set."""
    low, high = axes.get_ylim()
    gap = 1.35 * font_size / 72 * DPI / axes.bbox.height
    sorted_labels = sorted(labels, key=lambda label: label.y)
    heights = [(label.y - low) / (high - low) for label in sorted_labels]
    for label, height in zip(sorted_labels, spread_apart(heights, gap), strict=True):
        axes.text(
            1.015, height, label.text, transform=axes.transAxes, color=label.colour, fontsize=font_size,
            va="center", fontweight="bold", clip_on=False,
        )  # fmt: skip


def spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights as little as possible so that they are at least `gap` apart and at most 1."""
    # After subtracting `gap` from a height for each label below it, the heights only have to ascend. This is isotonic
    # regression, which replaces each descending run of heights by the run's mean.
    runs: list[list[float]] = []
    for num_below, height in enumerate(heights):
        runs.append([height - gap * num_below])
        while len(runs) > 1 and fmean(runs[-1]) < fmean(runs[-2]):
            runs[-2:] = [runs[-2] + runs[-1]]
    means = [fmean(run) for run in runs for _ in run]
    spread_heights = [mean + gap * below for below, mean in enumerate(means)]
    overshoot = max(0.0, spread_heights[-1] - 1.0) if spread_heights else 0.0
    return [height - overshoot for height in spread_heights]
