"""Renders the screen that explains a resource. Reads neither the cluster nor the clock."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hindcast import formatting
from hindcast.cli.cluster.explain import (
    DEFAULT_RETRIES,
    UNSEEN,
    Explanation,
    PodRow,
    PoolRow,
)
from hindcast.cli.cluster.next_step import NextStep
from hindcast_operator.times import parse_optional_time

BAR_WIDTH: Final = 30
MAX_ATTEMPTS: Final = 5
"""Attempts to list."""
MAX_READY_PODS: Final = 4
"""Ready pods to list per pool."""
SILENT_SECONDS: Final = 90
"""Seconds since the last progress report after which its age is highlighted."""

_COLOURS: Final = {
    "Running": "green",
    "Succeeded": "green",
    "Failed": "bold red",
    "Stalled": "bold red",
    "Retrying": "yellow",
    "Lost": "yellow",
    "Suspended": "magenta",
    "Suspending": "magenta",
}
_STATES_WITH_PODS: Final = ("Starting", "Running", "Suspending")
_METRIC_LABELS: Final = {
    "loss": "loss",
    "episodeReturnMean": "return",
    "estimatedReturn": "estimated return",
    "validationLoss": "validation loss",
    "timestepsPerSecond": "timesteps/s",
    "dataWaitShare": "waits for data",
    "learnerPeakBytes": "learner memory",
}
_METRIC_FORMATS: Final = {"dataWaitShare": formatting.as_percentage, "learnerPeakBytes": formatting.size}
_SCORE_LABELS: Final = {"bestEpisodeReturnMean": "return", "bestEstimatedReturn": "estimated return"}


def render_explanation(explanation: Explanation, steps: list[NextStep]) -> Iterator[RenderableType]:
    """Yield the output of `hindcast status` from top to bottom."""
    yield Text.assemble((str(explanation), "bold"), ("  in ", "dim"), explanation.namespace)
    yield _facts_table(explanation)
    if any(pool.pods for pool in explanation.pools) or explanation.state in _STATES_WITH_PODS:
        yield _pool_table(explanation.pools)
    if explanation.attempts:
        yield _attempt_table(explanation)
    yield from _next_step_lines(steps)


def render_screen(explanation: Explanation, steps: list[NextStep]) -> RenderableType:
    """Return the output of `hindcast status` as one renderable, for a live display."""
    return Group(
        *(Text(view) if isinstance(view, str) else view for view in render_explanation(explanation, steps))
    )


# -- the facts ------------------------------------------------------------------------------------------------


def _facts_table(explanation: Explanation) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    message = explanation.message or (
        "The operator has not seen it yet." if explanation.state == UNSEEN else None
    )
    facts: Mapping[str, RenderableType | None] = {
        "state": _state_text(explanation),
        "why": Text(message) if message else None,
        "note": Text("\n".join(explanation.notes), style="yellow") if explanation.notes else None,
        "progress": _progress_view(explanation),
        "metrics": _metrics_text(explanation.progress.get("metrics") or {}),
        "verdict": Text(explanation.progress["verdict"]) if explanation.progress.get("verdict") else None,
        "checkpoint": _checkpoint_text(explanation.checkpoint, explanation.now),
        "output": _output_text(explanation.output),
        "retries": _retries_text(explanation),
    }
    for label, value in facts.items():
        if value is not None:
            table.add_row(label, value)
    return Padding(table, (0, 0, 1, 2), expand=False)


def _state_text(explanation: Explanation) -> Text:
    colour = _COLOURS.get(explanation.state, "cyan")
    text = Text.assemble((explanation.state, colour))
    if explanation.reason and explanation.reason != explanation.state:
        text.append(f" ({explanation.reason})", style="dim")
    if explanation.since is not None:
        text.append(
            f" since {explanation.since:%Y-%m-%d %H:%M:%S} UTC, {format_span(explanation.since, explanation.now)}",
            style="dim",
        )
    return text


def _progress_view(explanation: Explanation) -> RenderableType | None:
    progress = explanation.progress
    if not progress:
        return None
    texts = []
    if "percentage" in progress and not explanation.is_finished:
        texts.append(formatting.as_percentage(progress["percentage"] / 100))
    if progress.get("summary"):
        texts.append(progress["summary"])
    if "estimatedRemainingSeconds" in progress and not explanation.is_finished:
        texts.append(f"about {formatting.duration(progress['estimatedRemainingSeconds'])} left")
    text = Text("  ".join(texts))
    update_time = parse_optional_time(progress.get("lastReportTime"))
    if update_time is not None and explanation.state in ("Running", "Suspending"):
        is_silent = (explanation.now - update_time).total_seconds() > SILENT_SECONDS
        text.append(
            f"  reported {format_span(update_time, explanation.now)} ago",
            style="yellow" if is_silent else "dim",
        )
    if "percentage" not in progress or explanation.is_finished:
        return text
    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=100, completed=progress["percentage"], width=BAR_WIDTH), text)
    return bar


def _metrics_text(metrics: Mapping[str, float]) -> Text | None:
    known_names = [name for name in _METRIC_LABELS if name in metrics]
    other_names = [name for name in metrics if name not in _METRIC_LABELS]
    texts = []
    for name in (*known_names, *other_names):
        format_value = _METRIC_FORMATS.get(name, formatting.count)
        texts.append(f"{_METRIC_LABELS.get(name, name)} {format_value(metrics[name])}")
    return Text("  ".join(texts)) if texts else None


def _checkpoint_text(checkpoint: Mapping[str, Any], now: datetime) -> Text | None:
    if not checkpoint:
        return None
    details = []
    if "iteration" in checkpoint:
        details.append(f"iteration {formatting.integer(checkpoint['iteration'])}")
    save_time = parse_optional_time(checkpoint.get("saveTime"))
    if save_time is not None:
        details.append(f"{format_span(save_time, now)} old")
    text = Text(str(checkpoint["path"]))
    if details:
        text.append(f" ({', '.join(details)})")
    if checkpoint.get("bestPath"):
        text.append(f"\nbest: {checkpoint['bestPath']}")
        for name, label in _SCORE_LABELS.items():
            if name in checkpoint:
                text.append(f" ({label} {formatting.significant(checkpoint[name])})")
    return text


def _output_text(output: Mapping[str, Any]) -> Text | None:
    if not output:
        return None
    counts = [
        formatting.plural(output[name], name[:-1]) for name in ("episodes", "timesteps") if name in output
    ]
    counts += [formatting.size(output["bytes"])] if "bytes" in output else []
    return Text(str(output["path"]) + (f" ({', '.join(counts)})" if counts else ""))


def _retries_text(explanation: Explanation) -> Text | None:
    if not explanation.attempts:
        return None
    max_retries = explanation.retries_allowed
    limit = (
        f"{DEFAULT_RETRIES}, unless the platform overrides it" if max_retries is None else str(max_retries)
    )
    return Text(f"{explanation.retries} used of {limit}")


# -- pools and pods -------------------------------------------------------------------------------------------


def _pool_table(pools: tuple[PoolRow, ...]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for title in ("pool", "pods", "each"):
        table.add_column(title, no_wrap=True)
    table.add_column("memory", style="dim", ratio=1)
    lines: list[RenderableType] = []
    for pool in pools:
        colour = "green" if pool.is_complete else "yellow"
        desired_text = "" if pool.desired is None else f" of {pool.desired}"
        count_text = Text(f"{pool.num_ready}{desired_text} ready", style=colour)
        table.add_row(pool.pool, count_text, _size_text(pool.size), pool.reasons.get("memory", ""))
        lines += _pod_lines(pool)
    views: list[RenderableType] = [table]
    if lines:
        views += [Text(""), *lines]
    return Padding(Group(*views), (0, 0, 1, 2))


def _size_text(size: Mapping[str, Any]) -> str:
    texts = []
    if "cpu" in size:
        texts.append(f"{size['cpu']:g} CPU")
    if size.get("gpus"):
        texts.append(f"{size['gpus']:g} GPU")
    if "memory" in size:
        texts.append(str(size["memory"]))
    return ", ".join(texts)


def _pod_lines(pool: PoolRow) -> Iterator[RenderableType]:
    """Yield a line for each pod that is not ready or has a problem, and for the first `MAX_READY_PODS` other pods."""
    ready_pods = [pod for pod in pool.pods if pod.ready and pod.problem is None]
    # A single pod is not hidden: the line "and 1 more" would take as much space.
    hidden_pods = ready_pods[MAX_READY_PODS:] if len(ready_pods) > MAX_READY_PODS + 1 else []
    for pod in pool.pods:
        if pod not in hidden_pods:
            yield _pod_line(pod)
    if hidden_pods:
        yield Text(f"and {len(hidden_pods)} more in {pool.pool}, all ready", style="dim")


def _pod_line(pod: PodRow) -> RenderableType:
    restarts = f", {formatting.plural(pod.restarts, 'restart')}" if pod.restarts else ""
    phase = pod.phase if pod.ready or pod.phase != "Running" else "Running, not ready"
    colour = "green" if pod.ready or pod.phase == "Succeeded" else "yellow"
    node = f" on {pod.node}" if pod.node else ""
    line = Text.assemble(pod.name, "  ", (phase, colour), (f"{node}{restarts}", "dim"))
    if pod.problem is None:
        return line
    return Group(line, Padding(Text(pod.problem, style="red"), (0, 0, 0, 2)))


# -- attempts -------------------------------------------------------------------------------------------------


def _attempt_table(explanation: Explanation) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("attempt", "outcome", "began", "took"):
        table.add_column(title, no_wrap=True)
    table.add_column("why", overflow="fold")
    for attempt in explanation.attempts[:MAX_ATTEMPTS]:
        start = parse_optional_time(attempt.get("startTime"))
        end = parse_optional_time(attempt.get("endTime"))
        outcome = attempt.get("outcome")
        table.add_row(
            f"r{attempt['revision']}-{attempt['attempt']}",
            Text(outcome or "in progress", style=_COLOURS.get(str(outcome), "cyan")),
            "" if start is None else f"{format_span(start, explanation.now)} ago",
            "" if start is None else format_span(start, end or explanation.now),
            _outcome_reason(attempt),
        )
    views: list[RenderableType] = [table]
    num_older = len(explanation.attempts) - MAX_ATTEMPTS
    if num_older > 0:
        views.append(Text(f"and {num_older} earlier", style="dim"))
    return Padding(Group(*views), (0, 0, 1, 2))


def _outcome_reason(attempt: Mapping[str, Any]) -> str:
    reason, message = attempt.get("reason"), attempt.get("message")
    if reason in (None, attempt.get("outcome")):
        return str(message or "")
    return f"{reason}: {message}" if message else str(reason)


def _next_step_lines(steps: list[NextStep]) -> Iterator[RenderableType]:
    """Yield the next steps; each command is a line of its own, not wrapped, so that a user can copy it."""
    for index, step in enumerate(steps):
        label = "  next  " if index == 0 else " " * 8
        if step.text:
            table = Table.grid()
            table.add_row(Text(label, style="dim"), Text(step.text))
            yield table
        if step.command:
            yield f"{' ' * 8 if step.text else label}{step.command}"


def format_span(start: datetime, end: datetime) -> str:
    """Format a time span in its two largest units: `12 s`, `2 min 4 s`, `3 h 12 min`, `2 d 3 h`."""
    seconds = max(round((end - start).total_seconds()), 0)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 86400:
        return formatting.duration(seconds)
    days, remaining_seconds = divmod(seconds, 86400)
    return f"{days} d {remaining_seconds // 3600} h"
