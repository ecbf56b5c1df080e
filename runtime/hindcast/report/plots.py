"""Pictures of a run: returns during training, losses, and the use of time.

Each public function `…_picture` returns a `Picture`, or None if the run has no data for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindcast import formatting
from hindcast.report.canvas import Label, Picture, Theme, draw_end_labels, format_ticks, style_axes
from hindcast.report.curves import F64, TIMERS, UNTIMED_LABEL, Curves, Line, ReturnCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANELS = 5  # of the losses' picture
MAX_MARKED_POINTS = 40  # points of a line up to which each has a marker
MIN_SMOOTHED_POINTS = 80  # number of points from which a line's running mean is drawn, too
_TIMELINE_LABELS = {
    "wait": "waiting for data",
    "read": "reading",
    "prelearn": "pre-learning",
    "copy": "copying",
}


@dataclass(frozen=True)
class RecordedReturns:
    """Statistics of the returns of recorded episodes; `deviation` is the standard deviation."""

    mean: float
    deviation: float
    minimum: float
    maximum: float


def return_picture(
    curves: Curves, *, stop: float | None = None, recorded: RecordedReturns | None = None
) -> Picture | None:
    """Return a picture of the evaluation return over training iterations, with its min-max band.

    Args:
        curves: curves of the run.
        stop: return at which the training stops, drawn as a line.
        recorded: returns of the recorded episodes, drawn as a band of one standard deviation around their mean.
    """
    curve = curves.evaluation
    if curve is None:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        axes = _make_iteration_axes(figure, theme, curves, "return of an episode")
        _draw_reference_lines(axes, theme, stop, recorded)
        _draw_return_curve(axes, theme, curve)
        _add_end_labels(axes, theme, [_make_end_label("policy", curve.mean, theme.main)], stop, recorded)

    return Picture(_return_title(curve, stop, "iteration"), _return_caption(curve), draw)


def estimate_picture(curves: Curves, *, stop: float | None = None) -> Picture | None:
    """Return a picture of the return estimated from held-out episodes, and of the recorded policy's return.

    Args:
        curves: curves of the run.
        stop: estimate at which the training stops, drawn as a line.
    """
    curve = curves.estimate
    if curve is None:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        axes = _make_iteration_axes(figure, theme, curves, "discounted return")
        axes.axhline(curve.behaviour, color=theme.series[2], linewidth=1.2)
        _draw_reference_lines(axes, theme, stop, None)
        _draw_return_curve(axes, theme, curve)
        behaviour = _make_end_label("recorded policy", [curve.behaviour], theme.series[2])
        _add_end_labels(
            axes, theme, [_make_end_label(curve.name, curve.mean, theme.main), behaviour], stop, None
        )

    caption = (
        f"Return estimated by {curve.name} on {formatting.plural(curve.episodes, 'held-out episode')}, with a "
        "90 % interval; green: the recorded policy's return on the same episodes"
    )
    return Picture(formatting.capitalise(curve.verdict), caption, draw)


def expert_picture(
    curves: Curves, *, stop: float | None = None, algorithm: str | None = None
) -> Picture | None:
    """Return a picture of the expert's return over timesteps: in evaluation, and in the episodes that it learned from.

    Args:
        curves: curves of the expert's training.
        stop: return at which the expert's training stops, drawn as a line.
        algorithm: the expert's algorithm, for the title; None if unknown.
    """
    curve, sampling = curves.evaluation_by_timesteps, curves.sampling_return
    if curve is None:
        return None
    policy_name = f"{algorithm} expert" if algorithm else "expert that recorded the data"
    title = _return_title(curve, stop, "timesteps", policy_name)

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "timesteps played while learning", "return of an episode")
        _draw_reference_lines(axes, theme, stop, None)
        axes.plot(sampling.x, sampling.y, color=theme.muted_ink, linewidth=1.2)
        _draw_return_curve(axes, theme, curve)
        labels = [_make_end_label("evaluated", curve.mean, theme.main)]
        if len(sampling.y):
            labels.append(_make_end_label("learning", sampling.y, theme.muted_ink))
        _add_end_labels(axes, theme, labels, stop, None)

    caption = f"{_return_caption(curve)}; grey: the episodes that the expert learned from"
    return Picture(title, caption if len(sampling.y) else _return_caption(curve), draw)


def loss_picture(curves: Curves) -> Picture | None:
    """Return a picture of the first four loss terms and the norm of the gradients, one panel each, over iterations."""
    panels: dict[str, Line] = dict(list(curves.losses.items())[: MAX_PANELS - 1])
    if curves.gradient_norm is not None:
        panels["gradient_norm"] = curves.gradient_norm
    if not panels:
        return None
    first_name = next(iter(panels))

    def draw(figure: Figure, theme: Theme) -> None:
        grid = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
        for index, (axes, (name, line)) in enumerate(zip(grid, panels.items(), strict=True)):
            style_axes(axes, theme)
            format_ticks(axes, is_x_integer=True)
            axes.locator_params(axis="y", nbins=4)
            # The last colour is grey, as the norm of the gradients.
            colour = (
                theme.muted_ink if name == "gradient_norm" else theme.series[index % (len(theme.series) - 1)]
            )
            _draw_series(axes, line, colour)
            if name == "total_loss" and len(curves.validation.y):
                _draw_series(axes, curves.validation, theme.reference)
            axes.set_title(
                name.replace("_", " "), loc="left", fontsize=9.5, fontweight="bold", color=colour, pad=3
            )
        grid[-1].set_xlabel(_iteration_axis_label(curves), fontsize=10, color=theme.muted_ink)

    caption = "Mean over the updates of an iteration" + _smoothing_note(panels[first_name])
    if first_name == "total_loss" and len(curves.validation.y):
        caption += "; orange: over all held-out timesteps"
    height = 3.5 if len(panels) <= 2 else 1.45 * len(panels) + 0.4
    return Picture(_trend_title(first_name, panels[first_name]), caption, draw, height)


def value_picture(curves: Curves) -> Picture | None:
    """Return a picture of the critics' mean value of the recorded actions over training iterations."""
    line, initial = curves.mean_q, curves.initial_value
    if line is None:
        return None

    def draw(figure: Figure, theme: Theme) -> None:
        axes = _make_iteration_axes(figure, theme, curves, "mean Q")
        _draw_series(axes, line, theme.main)
        if len(initial.y):
            _draw_series(axes, initial, theme.reference)

    caption = (
        "Discounted return that the critics expect; values beyond any possible return mean divergence"
        + _smoothing_note(line)
    )
    if len(initial.y):
        caption += "; orange: for the policy's own actions in the initial states of held-out episodes"
    return Picture(_trend_title("mean Q", line), caption, draw)


def time_picture(curves: Curves) -> Picture | None:
    """Return a picture of a stacked bar of the run's time by activity and, below it, the timesteps per second."""
    seconds = curves.seconds_by_activity
    if not seconds:
        return None
    total = sum(seconds.values())
    speed = curves.speed
    longest = max(seconds, key=lambda label: seconds[label])
    title = f"{formatting.as_percentage(seconds[longest] / total)} of the time went into {longest}"
    caption = f"Wall time of the run: {formatting.duration(total)}"
    if len(speed.y):
        caption += f"; median {formatting.count(float(np.median(speed.y)))} timesteps a second"
    has_speed, timeline = len(speed.y) >= 2, curves.timeline
    if timeline:
        caption += "; below: one iteration of the learner that waited longest"
    if curves.bottleneck:
        caption += f". {curves.bottleneck}"

    def draw(figure: Figure, theme: Theme) -> None:
        height_ratios = [1.0, *([1.5] if has_speed else []), *([1.5] if timeline else [])]
        panels = iter(
            figure.subplots(len(height_ratios), 1, height_ratios=height_ratios, squeeze=False)[:, 0]
        )
        _draw_time_bar(next(panels), theme, seconds)
        if has_speed:
            speed_axes = next(panels)
            style_axes(speed_axes, theme, _iteration_axis_label(curves), "timesteps / s")
            format_ticks(speed_axes, is_x_integer=True)
            _draw_series(speed_axes, speed, theme.main)
            speed_axes.set_ylim(0, 1.15 * speed.y.max())
        if timeline:
            _draw_timeline(next(panels), theme, timeline)

    return Picture(title, caption, draw, 1.5 + 2.0 * has_speed + 2.0 * bool(timeline))


def _return_title(
    curve: ReturnCurve, stop: float | None, unit: str, policy_name: str = "trained policy"
) -> str:
    best = curve.best_index
    passing_points = np.flatnonzero(curve.mean >= stop) if stop is not None else np.array([], np.int64)
    if stop is not None and len(passing_points):
        position = curve.x[passing_points[0]]
        target = formatting.significant(stop)
        return f"The {policy_name} passes a return of {target} at {_position_text(position, unit)}"
    best_text = f"{formatting.significant(curve.mean[best])} at {_position_text(curve.x[best], unit)}"
    if stop is not None:
        return f"The {policy_name} stays below {formatting.significant(stop)}: at best {best_text}"
    return f"The {policy_name} reaches a best mean return of {best_text}"


def _position_text(position: float, unit: str) -> str:
    return f"{formatting.count(position)} timesteps" if unit == "timesteps" else f"{unit} {position:.0f}"


def _return_caption(curve: ReturnCurve) -> str:
    episodes = f" over {formatting.plural(curve.episodes, 'episode')}" if curve.episodes else ""
    return f"Return in evaluation: mean{episodes}, with min-max band"


def _make_iteration_axes(figure: Figure, theme: Theme, curves: Curves, y_label: str) -> Axes:
    """Add one panel to a figure and return its axes; the x axis shows training iterations."""
    axes = figure.subplots()
    style_axes(axes, theme, _iteration_axis_label(curves), y_label)
    format_ticks(axes, is_x_integer=True)
    return axes


def _iteration_axis_label(curves: Curves) -> str:
    if not curves.timesteps or not curves.iterations:
        return "training iteration"
    return f"training iteration ({formatting.count(curves.timesteps / curves.iterations)} timesteps each)"


def _draw_reference_lines(
    axes: Axes, theme: Theme, stop: float | None, recorded: RecordedReturns | None
) -> None:
    if recorded is not None:
        low = max(recorded.mean - recorded.deviation, recorded.minimum)
        high = min(recorded.mean + recorded.deviation, recorded.maximum)
        axes.axhspan(low, high, color=theme.series[2], alpha=0.13, linewidth=0)
        axes.axhline(recorded.mean, color=theme.series[2], linewidth=1.2)
    if stop is not None:
        axes.axhline(stop, color=theme.reference, linewidth=1.2, dashes=(5, 3))


def _draw_return_curve(axes: Axes, theme: Theme, curve: ReturnCurve) -> None:
    if len(curve.x) == 1:
        error_bars = [curve.mean - curve.low, curve.high - curve.mean]
        axes.errorbar(curve.x, curve.mean, yerr=error_bars, color=theme.main, fmt="o", capsize=4)
        axes.set_xlim(curve.x[0] - 1, curve.x[0] + 1)
        return
    axes.fill_between(curve.x, curve.low, curve.high, color=theme.main, alpha=0.18, linewidth=0)
    marker = "o" if len(curve.x) <= MAX_MARKED_POINTS else ""
    axes.plot(curve.x, curve.mean, color=theme.main, linewidth=2, marker=marker, markersize=4)


def _make_end_label(name: str, values: F64 | Sequence[float], colour: str) -> Label:
    """Return the label of a line, at its last value."""
    return Label(values[-1], f"{name} {formatting.significant(values[-1])}", colour)


def _add_end_labels(
    axes: Axes, theme: Theme, labels: list[Label], stop: float | None, recorded: RecordedReturns | None
) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.02 * (high - low))
    if stop is not None:
        labels.append(_make_end_label("stop at", [stop], theme.reference))
    if recorded is not None:
        text = f"data {formatting.significant(recorded.mean)} ± {formatting.significant(recorded.deviation)}"
        labels.append(Label(recorded.mean, text, theme.series[2]))
    draw_end_labels(axes, labels)


def _trend_title(name: str, line: Line) -> str:
    label = formatting.capitalise(name.replace("_", " "))
    first, last = line.y[0], line.y[-1]
    if len(line.y) == 1:
        return f"{label} {formatting.significant(first)} in the only iteration"
    if last == first:
        return f"{label} begins and ends at {formatting.significant(first)}"
    verb = "falls" if last < first else "rises"
    return f"{label} {verb} from {formatting.significant(first)} to {formatting.significant(last)}"


def _smoothing_note(line: Line) -> str:
    return (
        f"; heavy line: running mean of {_smoothing_window(line)}"
        if len(line.y) >= MIN_SMOOTHED_POINTS
        else ""
    )


def _smoothing_window(line: Line) -> int:
    return max(5, len(line.y) // 20)


def _draw_series(axes: Axes, line: Line, colour: str) -> None:
    if len(line.y) < MIN_SMOOTHED_POINTS:
        marker = "o" if len(line.y) <= MAX_MARKED_POINTS else ""
        axes.plot(line.x, line.y, color=colour, linewidth=1.8, marker=marker, markersize=3.5)
        return
    axes.plot(line.x, line.y, color=colour, linewidth=0.8, alpha=0.4)
    axes.plot(line.x, running_mean(line.y, _smoothing_window(line)), color=colour, linewidth=1.8)


def running_mean(values: F64, window: int) -> F64:
    """Average each value with its neighbours up to `window // 2` positions away; near both ends, with fewer."""
    positions = np.arange(len(values))
    reach = np.minimum(window // 2, np.minimum(positions, positions[::-1]))
    sums = np.cumsum(np.concatenate([[0.0], values]))
    return (sums[positions + reach + 1] - sums[positions - reach]) / (2 * reach + 1)


def _draw_time_bar(axes: Axes, theme: Theme, seconds_by_activity: Mapping[str, float]) -> None:
    """Draw a bar that is divided among the activities, and below it a legend in two columns."""
    total = sum(seconds_by_activity.values())
    colours = _activity_colours(theme, list(seconds_by_activity))
    start = 0.0
    for seconds, colour in zip(seconds_by_activity.values(), colours, strict=True):
        axes.barh(0, seconds, left=start, color=colour, height=0.5, edgecolor=theme.paper, linewidth=1.5)
        start += seconds
    rows = math.ceil(len(seconds_by_activity) / 2)
    activities = zip(seconds_by_activity.items(), colours, strict=True)
    for index, ((label, seconds), colour) in enumerate(activities):
        x, y = 0.52 * (index % 2), -0.62 - 0.42 * (index // 2)
        text = f"{label}: {formatting.duration(seconds)} ({formatting.as_percentage(seconds / total)})"
        axes.scatter([total * (x + 0.008)], [y], s=42, color=colour, marker="s", clip_on=False)
        axes.text(total * (x + 0.03), y, text, fontsize=9.5, color=theme.ink, va="center")
    axes.set_xlim(0, total)
    axes.set_ylim(-0.62 - 0.42 * (rows - 1) - 0.25, 0.28)
    axes.axis("off")


def _draw_timeline(axes: Axes, theme: Theme, timeline: Mapping[str, Sequence[float]]) -> None:
    """Draw the mean number of busy threads of each stage over an iteration, and the share of time spent waiting."""
    seconds = timeline["seconds"][0]
    style_axes(axes, theme, "seconds of one iteration", "busy threads")
    # "waiting for data" has the same colour as in the bar of activities.
    for (stage, label), colour in zip(_TIMELINE_LABELS.items(), theme.series[1:], strict=False):
        values = timeline.get(stage, [0.0])
        x = (np.arange(len(values)) + 0.5) * seconds / len(values)
        if stage == "wait":
            axes.fill_between(x, values, color=colour, alpha=0.35, linewidth=0)
        axes.plot(x, values, color=colour, linewidth=1.5, label=label)
    axes.set_xlim(0, seconds)
    axes.set_ylim(
        0, 1.3 * max(1.0, *(max(values) for stage, values in timeline.items() if stage != "seconds"))
    )
    axes.legend(fontsize=9.5, frameon=False, labelcolor=theme.ink, ncols=4, loc="upper right")


def _activity_colours(theme: Theme, labels: Sequence[str]) -> list[str]:
    """Return the activities' colours: an activity has the same colour in every report; untimed seconds are grey."""
    timer_labels = list(TIMERS.values())
    return [
        theme.series[-1] if label == UNTIMED_LABEL else theme.series[timer_labels.index(label)]
        for label in labels
    ]
