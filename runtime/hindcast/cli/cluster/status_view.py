"""One screen that explains a resource, from top to bottom. Pure."""

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
RUNS_SHOWN: Final = 5
READY_SHOWN: Final = 4
"""Of a pool."""
SILENT_SECONDS: Final = 90

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
_WITH_PODS: Final = ("Starting", "Running", "Suspending")
_METRICS: Final = {
    "loss": "loss",
    "episodeReturnMean": "return",
    "estimatedReturn": "estimated return",
    "validationLoss": "validation loss",
    "timestepsPerSecond": "timesteps/s",
    "dataWaitShare": "waits for data",
}
_SCORES: Final = {"bestEpisodeReturnMean": "return", "bestEstimatedReturn": "estimated return"}


def views(found: Explanation, steps: list[NextStep]) -> Iterator[RenderableType]:
    """What `hindcast status` shows."""
    yield Text.assemble((str(found), "bold"), ("  in ", "dim"), found.namespace)
    yield _facts(found)
    if any(pool.pods for pool in found.pools) or found.state in _WITH_PODS:
        yield _pools(found.pools)
    if found.runs:
        yield _runs(found)
    yield from _next(steps)


def screen(found: Explanation, steps: list[NextStep]) -> RenderableType:
    return Group(*(Text(view) if isinstance(view, str) else view for view in views(found, steps)))


# -- the facts ------------------------------------------------------------------------------------------------


def _facts(found: Explanation) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    why = found.message or ("The operator has not seen it yet." if found.state == UNSEEN else None)
    facts: Mapping[str, RenderableType | None] = {
        "state": _state(found),
        "why": Text(why) if why else None,
        "note": Text("\n".join(found.notes), style="yellow") if found.notes else None,
        "progress": _progress(found),
        "metrics": _metrics(found.progress.get("metrics") or {}),
        "verdict": Text(found.progress["verdict"]) if found.progress.get("verdict") else None,
        "checkpoint": _checkpoint(found.checkpoint, found.now),
        "output": _output(found.output),
        "retries": _retries(found),
    }
    for label, value in facts.items():
        if value is not None:
            table.add_row(label, value)
    return Padding(table, (0, 0, 1, 2), expand=False)


def _state(found: Explanation) -> Text:
    colour = _COLOURS.get(found.state, "cyan")
    text = Text.assemble((found.state, colour))
    if found.reason and found.reason != found.state:
        text.append(f" ({found.reason})", style="dim")
    if found.since is not None:
        text.append(f" since {found.since:%Y-%m-%d %H:%M:%S} UTC, {age(found.since, found.now)}", style="dim")
    return text


def _progress(found: Explanation) -> RenderableType | None:
    progress = found.progress
    if not progress:
        return None
    parts = []
    if "percentage" in progress and not found.is_finished:
        parts.append(formatting.as_percentage(progress["percentage"] / 100))
    if progress.get("summary"):
        parts.append(progress["summary"])
    if "estimatedRemainingSeconds" in progress and not found.is_finished:
        parts.append(f"about {formatting.duration(progress['estimatedRemainingSeconds'])} left")
    text = Text("  ".join(parts))
    updated = parse_optional_time(progress.get("lastReportTime"))
    if updated is not None and found.state in ("Running", "Suspending"):
        silent = (found.now - updated).total_seconds() > SILENT_SECONDS
        text.append(f"  reported {age(updated, found.now)} ago", style="yellow" if silent else "dim")
    if "percentage" not in progress or found.is_finished:
        return text
    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=100, completed=progress["percentage"], width=BAR_WIDTH), text)
    return bar


def _metrics(metrics: Mapping[str, float]) -> Text | None:
    named = [name for name in _METRICS if name in metrics]
    others = [name for name in metrics if name not in _METRICS]
    texts = []
    for name in (*named, *others):
        shown = formatting.as_percentage if name.endswith("Share") else formatting.count
        texts.append(f"{_METRICS.get(name, name)} {shown(metrics[name])}")
    return Text("  ".join(texts)) if texts else None


def _checkpoint(checkpoint: Mapping[str, Any], now: datetime) -> Text | None:
    if not checkpoint:
        return None
    about = []
    if "iteration" in checkpoint:
        about.append(f"iteration {formatting.integer(checkpoint['iteration'])}")
    saved = parse_optional_time(checkpoint.get("saveTime"))
    if saved is not None:
        about.append(f"{age(saved, now)} old")
    text = Text(str(checkpoint["path"]))
    if about:
        text.append(f" ({', '.join(about)})")
    if checkpoint.get("bestPath"):
        text.append(f"\nbest: {checkpoint['bestPath']}")
        for name, what in _SCORES.items():
            if name in checkpoint:
                text.append(f" ({what} {formatting.significant(checkpoint[name])})")
    return text


def _output(output: Mapping[str, Any]) -> Text | None:
    if not output:
        return None
    counts = [
        formatting.plural(output[name], name[:-1]) for name in ("episodes", "timesteps") if name in output
    ]
    counts += [formatting.size(output["bytes"])] if "bytes" in output else []
    return Text(str(output["path"]) + (f" ({', '.join(counts)})" if counts else ""))


def _retries(found: Explanation) -> Text | None:
    if not found.runs:
        return None
    allowed = found.retries_allowed
    limit = f"{DEFAULT_RETRIES}, unless the platform overrides it" if allowed is None else str(allowed)
    return Text(f"{found.retries} used of {limit}")


# -- pools and pods -------------------------------------------------------------------------------------------


def _pools(pools: tuple[PoolRow, ...]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for title in ("pool", "pods", "each"):
        table.add_column(title, no_wrap=True)
    table.add_column("memory", style="dim", no_wrap=True, overflow="ellipsis", ratio=1)
    lines: list[RenderableType] = []
    for pool in pools:
        colour = "green" if pool.is_complete else "yellow"
        of = "" if pool.wanted is None else f" of {pool.wanted}"
        counted = Text(f"{pool.num_ready}{of} ready", style=colour)
        table.add_row(pool.pool, counted, _size(pool.size), pool.reasons.get("memory", ""))
        lines += _pods(pool)
    shown: list[RenderableType] = [table]
    if lines:
        shown += [Text(""), *lines]
    return Padding(Group(*shown), (0, 0, 1, 2))


def _size(size: Mapping[str, Any]) -> str:
    parts = []
    if "cpu" in size:
        parts.append(f"{size['cpu']:g} CPU")
    if size.get("gpus"):
        parts.append(f"{size['gpus']:g} GPU")
    if "memory" in size:
        parts.append(str(size["memory"]))
    return ", ".join(parts)


def _pods(pool: PoolRow) -> Iterator[RenderableType]:
    """Pods that are not ready, all; of the others, as many as are still read."""
    ready = [pod for pod in pool.pods if pod.ready and pod.problem is None]
    hidden = ready[READY_SHOWN:] if len(ready) > READY_SHOWN + 1 else []
    for pod in pool.pods:
        if pod not in hidden:
            yield _pod(pod)
    if hidden:
        yield Text(f"and {len(hidden)} more in {pool.pool}, all ready", style="dim")


def _pod(pod: PodRow) -> RenderableType:
    restarts = f", {formatting.plural(pod.restarts, 'restart')}" if pod.restarts else ""
    phase = pod.phase if pod.ready or pod.phase != "Running" else "Running, not ready"
    colour = "green" if pod.ready or pod.phase == "Succeeded" else "yellow"
    node = f" on {pod.node}" if pod.node else ""
    line = Text.assemble(pod.name, "  ", (phase, colour), (f"{node}{restarts}", "dim"))
    if pod.problem is None:
        return line
    return Group(line, Padding(Text(pod.problem, style="red"), (0, 0, 0, 2)))


# -- attempts -------------------------------------------------------------------------------------------------


def _runs(found: Explanation) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("attempt", "outcome", "began", "took"):
        table.add_column(title, no_wrap=True)
    table.add_column("why", overflow="fold")
    for run in found.runs[:RUNS_SHOWN]:
        began, ended = parse_optional_time(run.get("startTime")), parse_optional_time(run.get("endTime"))
        outcome = run.get("outcome")
        table.add_row(
            f"r{run['revision']}-{run['attempt']}",
            Text(outcome or "in progress", style=_COLOURS.get(str(outcome), "cyan")),
            "" if began is None else f"{age(began, found.now)} ago",
            "" if began is None else age(began, ended or found.now),
            _why(run),
        )
    shown: list[RenderableType] = [table]
    older = len(found.runs) - RUNS_SHOWN
    if older > 0:
        shown.append(Text(f"and {older} before", style="dim"))
    return Padding(Group(*shown), (0, 0, 1, 2))


def _why(run: Mapping[str, Any]) -> str:
    reason, message = run.get("reason"), run.get("message")
    if reason in (None, run.get("outcome")):
        return str(message or "")
    return f"{reason}: {message}" if message else str(reason)


def _next(steps: list[NextStep]) -> Iterator[RenderableType]:
    """Commands are on separate, unwrapped lines, ready to copy."""
    for index, step in enumerate(steps):
        label = "  next  " if index == 0 else " " * 8
        if step.text:
            table = Table.grid()
            table.add_row(Text(label, style="dim"), Text(step.text))
            yield table
        if step.command:
            yield f"{' ' * 8 if step.text else label}{step.command}"


def age(start: datetime, end: datetime) -> str:
    """A time span in its two largest units, without fractions: `12 s`, `2 min 4 s`, `3 h 12 min`, `2 d 3 h`."""
    seconds = max(round((end - start).total_seconds()), 0)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 86400:
        return formatting.duration(seconds)
    days, rest = divmod(seconds, 86400)
    return f"{days} d {rest // 3600} h"
