"""Pictures of a run: returns during training, losses, and the use of time.

Each function returns a `Picture`, or None if the run has no data for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindcast import formatting
from hindcast.report.canvas import Label, Picture, Theme, end_labels, short_numbers, style_axes
from hindcast.report.curves import F64, REST_LABEL, TIMERS, Curves, Line, ReturnCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 5
MAX_MARKERS = 40
MIN_SMOOTHED = 80


@dataclass(frozen=True)
class RecordedReturns:
    """Returns of recorded episodes: mean, standard deviation, extremes."""

    mean: float
    deviation: float
    minimum: float
    maximum: float


def return_plot(
    curves: Curves, *, stop: float | None = None, recorded: RecordedReturns | None = None
) -> Picture | None:
    """Draw the evaluation return over training iterations, with its min-max band.

    Args:
        stop: return at which the training stops, drawn as a line.
        recorded: the recorded episodes' returns, drawn as a reference band of one standard deviation.
    """
    curve = curves.evaluation
    if curve is None:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        axes = _over_iterations(figure, theme, curves, "return of an episode")
        _reference_lines(axes, theme, stop, recorded)
        _return_line(axes, theme, curve)
        _add_end_labels(axes, theme, [_label("policy", curve.mean, theme.main)], stop, recorded)

    return Picture(_return_title(curve, stop, "iteration"), _return_caption(curve), draw)


def estimate_plot(curves: Curves, *, stop: float | None = None) -> Picture | None:
    """Draw the return estimated from held-out episodes, with its interval and the recorded policy's return.

    Args:
        stop: estimate at which the training stops, drawn as a line.
    """
    curve = curves.estimate
    if curve is None:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        axes = _over_iterations(figure, theme, curves, "discounted return")
        axes.axhline(curve.behaviour, color=theme.series[2], linewidth=1.2)
        _reference_lines(axes, theme, stop, None)
        _return_line(axes, theme, curve)
        behaviour = _label("recorded policy", [curve.behaviour], theme.series[2])
        _add_end_labels(axes, theme, [_label(curve.name, curve.mean, theme.main), behaviour], stop, None)

    caption = (
        f"Return estimated by {curve.name} on {formatting.plural(curve.episodes, 'held-out episode')}, with a "
        "90 % interval; green: the recorded policy's return on the same episodes"
    )
    return Picture(curve.verdict[0].upper() + curve.verdict[1:], caption, draw)


def expert_plot(curves: Curves, *, stop: float | None = None, algorithm: str | None = None) -> Picture | None:
    """Draw the expert's return over timesteps: in evaluation, and in the episodes it learned from."""
    curve, sampling = curves.evaluation_by_timesteps, curves.sampling
    if curve is None:
        return None
    who = f"{algorithm} expert" if algorithm else "expert that recorded the data"
    title = _return_title(curve, stop, "timesteps", who)

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "timesteps played while learning", "return of an episode")
        _reference_lines(axes, theme, stop, None)
        axes.plot(sampling.x, sampling.y, color=theme.muted_ink, linewidth=1.2)
        _return_line(axes, theme, curve)
        labels = [_label("evaluated", curve.mean, theme.main)]
        if len(sampling.y):
            labels.append(_label("learning", sampling.y, theme.muted_ink))
        _add_end_labels(axes, theme, labels, stop, None)

    caption = f"{_return_caption(curve)}; grey: the episodes it learned from"
    return Picture(title, caption if len(sampling.y) else _return_caption(curve), draw)


def loss_plot(curves: Curves) -> Picture | None:
    """Draw the loss terms and the norm of the gradients, one panel each, over training iterations."""
    panels: dict[str, Line] = dict(list(curves.losses.items())[: MAX_PANELS - 1])
    if curves.gradient_norm is not None:
        panels["gradient_norm"] = curves.gradient_norm
    if not panels:
        return None
    first = next(iter(panels))

    def draw(figure: Figure, theme: Theme) -> None:
        grid = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
        for index, (axes, (name, line)) in enumerate(zip(grid, panels.items(), strict=True)):
            style_axes(axes, theme)
            short_numbers(axes, whole_x=True)
            axes.locator_params(axis="y", nbins=4)
            colour = (
                theme.muted_ink if name == "gradient_norm" else theme.series[index % (len(theme.series) - 1)]
            )
            _series(axes, line, colour)
            if name == "total_loss" and len(curves.validation.y):
                _series(axes, curves.validation, theme.reference)
            axes.set_title(
                name.replace("_", " "), loc="left", fontsize=9.5, fontweight="bold", color=colour, pad=3
            )
        grid[-1].set_xlabel(_iteration_axis(curves), fontsize=10, color=theme.muted_ink)

    caption = "Mean over the updates of an iteration" + _smoothing_note(panels[first])
    if first == "total_loss" and len(curves.validation.y):
        caption += "; orange: over all held-out timesteps"
    height = 3.5 if len(panels) <= 2 else 1.45 * len(panels) + 0.4
    return Picture(_trend(first, panels[first]), caption, draw, height)


def value_plot(curves: Curves) -> Picture | None:
    """Draw the mean value of the recorded actions by the critics, over training iterations."""
    line, initial = curves.mean_q, curves.initial_value
    if line is None:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        axes = _over_iterations(figure, theme, curves, "mean Q")
        _series(axes, line, theme.main)
        if len(initial.y):
            _series(axes, initial, theme.reference)

    caption = (
        "Discounted return that the critics expect; values beyond any possible return mean divergence"
        + _smoothing_note(line)
    )
    if len(initial.y):
        caption += "; orange: for the policy's own actions in the initial states of held-out episodes"
    return Picture(_trend("mean Q", line), caption, draw)


def time_plot(curves: Curves) -> Picture | None:
    """Draw a stacked bar of the run's time by activity, and the timesteps per second below it."""
    shares = curves.time_shares
    if not shares:
        return None
    total = sum(shares.values())
    speed = curves.speed
    largest = max(shares, key=lambda label: shares[label])
    title = f"{formatting.as_percentage(shares[largest] / total)} of the time went into {largest}"
    caption = f"Wall time of the run: {formatting.duration(total)}"
    if len(speed.y):
        caption += f"; median {formatting.count(float(np.median(speed.y)))} timesteps a second"

    def draw(figure: Figure, theme: Theme) -> None:
        if len(speed.y) < 2:
            _time_bar(figure.subplots(), theme, shares)
            return
        bar, line = figure.subplots(2, 1, height_ratios=[1, 1.5])
        _time_bar(bar, theme, shares)
        style_axes(line, theme, _iteration_axis(curves), "timesteps / s")
        short_numbers(line, whole_x=True)
        _series(line, speed, theme.main)
        line.set_ylim(0, 1.15 * speed.y.max())

    return Picture(title, caption, draw, 3.5 if len(speed.y) >= 2 else 1.5)


def _return_title(curve: ReturnCurve, stop: float | None, unit: str, who: str = "trained policy") -> str:
    best = curve.best
    passing = np.flatnonzero(curve.mean >= stop) if stop is not None else np.array([], np.int64)
    if stop is not None and len(passing):
        at = curve.x[passing[0]]
        return f"The {who} passes a return of {formatting.significant(stop)} at {_position_text(at, unit)}"
    where = f"{formatting.significant(curve.mean[best])} at {_position_text(curve.x[best], unit)}"
    if stop is not None:
        return f"The {who} stays below {formatting.significant(stop)}: at best {where}"
    return f"The {who} reaches a best mean return of {where}"


def _position_text(at: float, unit: str) -> str:
    return f"{formatting.count(at)} timesteps" if unit == "timesteps" else f"{unit} {at:.0f}"


def _return_caption(curve: ReturnCurve) -> str:
    episodes = f" over {formatting.plural(curve.episodes, 'episode')}" if curve.episodes else ""
    return f"Return in evaluation: mean{episodes}, with min-max band"


def _over_iterations(figure: Figure, theme: Theme, curves: Curves, y: str) -> Axes:
    """Return the axes of a figure with one panel, over training iterations."""
    axes = figure.subplots()
    style_axes(axes, theme, _iteration_axis(curves), y)
    short_numbers(axes, whole_x=True)
    return axes


def _iteration_axis(curves: Curves) -> str:
    if not curves.timesteps or not curves.iterations:
        return "training iteration"
    return f"training iteration ({formatting.count(curves.timesteps / curves.iterations)} timesteps each)"


def _reference_lines(axes: Axes, theme: Theme, stop: float | None, recorded: RecordedReturns | None) -> None:
    if recorded is not None:
        low = max(recorded.mean - recorded.deviation, recorded.minimum)
        high = min(recorded.mean + recorded.deviation, recorded.maximum)
        axes.axhspan(low, high, color=theme.series[2], alpha=0.13, linewidth=0)
        axes.axhline(recorded.mean, color=theme.series[2], linewidth=1.2)
    if stop is not None:
        axes.axhline(stop, color=theme.reference, linewidth=1.2, dashes=(5, 3))


def _return_line(axes: Axes, theme: Theme, curve: ReturnCurve) -> None:
    if len(curve.x) == 1:
        spans = [curve.mean - curve.low, curve.high - curve.mean]
        axes.errorbar(curve.x, curve.mean, yerr=spans, color=theme.main, fmt="o", capsize=4)
        axes.set_xlim(curve.x[0] - 1, curve.x[0] + 1)
        return
    axes.fill_between(curve.x, curve.low, curve.high, color=theme.main, alpha=0.18, linewidth=0)
    marker = "o" if len(curve.x) <= MAX_MARKERS else ""
    axes.plot(curve.x, curve.mean, color=theme.main, linewidth=2, marker=marker, markersize=4)


def _label(what: str, values: F64 | Sequence[float], colour: str) -> Label:
    """Return the label of a line, at its last value."""
    return Label(values[-1], f"{what} {formatting.significant(values[-1])}", colour)


def _add_end_labels(
    axes: Axes, theme: Theme, labels: list[Label], stop: float | None, recorded: RecordedReturns | None
) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.02 * (high - low))
    if stop is not None:
        labels.append(_label("stop at", [stop], theme.reference))
    if recorded is not None:
        text = f"data {formatting.significant(recorded.mean)} ± {formatting.significant(recorded.deviation)}"
        labels.append(Label(recorded.mean, text, theme.series[2]))
    end_labels(axes, labels)


def _trend(name: str, line: Line) -> str:
    label = name.replace("_", " ")
    label = label[0].upper() + label[1:]
    first, last = line.y[0], line.y[-1]
    if len(line.y) == 1:
        return f"{label} {formatting.significant(first)} in the only iteration"
    verb = "falls" if last < first else "rises" if last > first else "stays"
    return f"{label} {verb} from {formatting.significant(first)} to {formatting.significant(last)}"


def _smoothing_note(line: Line) -> str:
    return f"; heavy line: running mean of {_window(line)}" if len(line.y) >= MIN_SMOOTHED else ""


def _window(line: Line) -> int:
    return max(5, len(line.y) // 20)


def _series(axes: Axes, line: Line, colour: str) -> None:
    if len(line.y) < MIN_SMOOTHED:
        marker = "o" if len(line.y) <= MAX_MARKERS else ""
        axes.plot(line.x, line.y, color=colour, linewidth=1.8, marker=marker, markersize=3.5)
        return
    axes.plot(line.x, line.y, color=colour, linewidth=0.8, alpha=0.4)
    axes.plot(line.x, running_mean(line.y, _window(line)), color=colour, linewidth=1.8)


def running_mean(values: F64, window: int) -> F64:
    """Average each value with those at most `window // 2` positions away; the window shrinks towards both ends."""
    places = np.arange(len(values))
    reach = np.minimum(window // 2, np.minimum(places, places[::-1]))
    sums = np.cumsum(np.concatenate([[0.0], values]))
    return (sums[places + reach + 1] - sums[places - reach]) / (2 * reach + 1)


def _time_bar(axes: Axes, theme: Theme, shares: Mapping[str, float]) -> None:
    total = sum(shares.values())
    colours = _share_colours(theme, list(shares))
    start = 0.0
    for (_, seconds), colour in zip(shares.items(), colours, strict=True):
        axes.barh(0, seconds, left=start, color=colour, height=0.5, edgecolor=theme.paper, linewidth=1.5)
        start += seconds
    rows = math.ceil(len(shares) / 2)
    for index, ((label, seconds), colour) in enumerate(zip(shares.items(), colours, strict=True)):
        x, y = 0.52 * (index % 2), -0.62 - 0.42 * (index // 2)
        text = f"{label}: {formatting.duration(seconds)} ({formatting.as_percentage(seconds / total)})"
        axes.scatter([total * (x + 0.008)], [y], s=42, color=colour, marker="s", clip_on=False)
        axes.text(total * (x + 0.03), y, text, fontsize=9.5, color=theme.ink, va="center")
    axes.set_xlim(0, total)
    axes.set_ylim(-0.62 - 0.42 * (rows - 1) - 0.25, 0.28)
    axes.axis("off")


def _share_colours(theme: Theme, labels: Sequence[str]) -> list[str]:
    """Return the colours: the same for an activity in every report, grey for the rest."""
    timer_labels = list(TIMERS.values())
    return [
        theme.series[-1] if label == REST_LABEL else theme.series[timer_labels.index(label)]
        for label in labels
    ]
