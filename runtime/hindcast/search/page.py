"""The page of a search: its winner, all trials as a table, and one picture of their metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from hindcast import formatting
from hindcast.api import OfflineTraining
from hindcast.report.canvas import Label, Picture, Theme, end_labels, style_axes
from hindcast.report.page import Command, Page, Section, Table, Tile, write_single_file
from hindcast.report.text import resource_yaml
from hindcast.search.results import Run, Search, Trial, with_interval
from hindcast.search.space import yaml_value
from hindcast.search.trials import LOSS
from hindcast.storage.location import resolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_FILE: Final = "search.html"
_NAMED: Final = 30
"""Most trials that the picture names on its axis."""


def write_search_page(found: Search, base: OfflineTraining) -> None:
    """Write `search.html` into the folder of a search.

    Args:
        found: the search.
        base: the training that it varied.
    """
    page = Page(
        kind=f"Search over {', '.join(found.trials[0].setting)} of an OfflineTraining",
        name=base.metadata.name,
        outcome=found.sentence[0].upper() + found.sentence[1:],
        tiles=list(_tiles(found)),
        sections=[Section("The trials compared", {"trials": trials_picture(found)})],
        tables=[trials_table(found)],
        commands=_commands(found),
        spec=resource_yaml(found.training or base),
    )
    write_single_file(resolve(found.report), page)


def trials_table(found: Search) -> Table:
    """A row for each run, the best trial first."""
    several = len(found.trials[0].runs) > 1
    means = ("mean",) if several else ()
    columns = ("trial", *found.trials[0].setting, "seed", *means, found.by, "interval")
    rows = [_row(trial, run, several) for trial in found.trials for run in trial.runs]
    return Table("All trials, best first", (*columns, "verdict", "updates", "time", "run folder"), rows)


def trials_picture(found: Search) -> Picture | None:
    """The value of each run with its interval, best trial first; None where no trial has one."""
    ranked = [trial for trial in found.trials if any(run.figure is not None for run in trial.runs)]
    if found.best is None:
        return None
    behaviour = next((run.behaviour for run in found.best.runs if run.behaviour is not None), None)

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "trial, best first", _axis(found.by))
        for place, trial in enumerate(ranked):
            _draw_trial(axes, place, trial, theme.main if trial is found.best else theme.muted_ink)
        labels = []
        if behaviour is not None:
            axes.axhline(behaviour, color=theme.series[2], linewidth=1.2)
            labels.append(Label(behaviour, "behaviour", theme.series[2]))
        if found.confirmation is not None and found.confirmation.figure is not None:
            axes.plot([0], [found.confirmation.figure], color=theme.reference, marker="D", markersize=6)
            if found.confirmation.behaviour is not None:
                axes.plot(
                    [0], [found.confirmation.behaviour], color=theme.series[2], marker="D", markersize=6
                )
            labels.append(Label(found.confirmation.figure, "winner, unseen", theme.reference))
        if len(ranked) <= _NAMED:
            axes.set_xticks(range(len(ranked)), [str(trial.number) for trial in ranked])
        else:
            axes.set_xticks([])
        axes.set_xlim(-0.6, len(ranked) - 0.4)
        end_labels(axes, labels)

    return Picture(_finding(found, found.best), _caption(found, behaviour is not None), draw)


def _draw_trial(axes: Axes, place: int, trial: Trial, colour: str) -> None:
    """A point with its interval for each run, and a bar for the mean of several."""
    runs = [(run.figure, run.interval) for run in trial.runs if run.figure is not None]
    for number, (figure, interval) in enumerate(runs):
        at = place + 0.5 * ((number + 0.5) / len(runs) - 0.5)
        axes.plot([at, at], list(interval or (figure, figure)), color=colour, linewidth=1.2, alpha=0.6)
        axes.plot([at], [figure], color=colour, marker="o", markersize=4)
    if trial.figure is not None and len(runs) > 1:
        axes.plot([place - 0.3, place + 0.3], [trial.figure, trial.figure], color=colour, linewidth=2)


def _finding(found: Search, best: Trial) -> str:
    said = f"Trial {best.number} is best: {found.by} {formatting.significant(best.figure or 0.0)}"
    if found.confirmation is None or found.confirmation.figure is None:
        return said
    return (
        f"{said}, and {formatting.significant(found.confirmation.figure)} on episodes that no trial has seen"
    )


def _caption(found: Search, has_behaviour: bool) -> str:
    several = len(found.trials[0].runs) > 1
    said = "Each run on the held-out episodes" + ("" if found.by == LOSS else ", with a 90 % interval")
    said += "; bars: means over seeds" if several else ""
    said += "; green: the behaviour policy's return on the same episodes" if has_behaviour else ""
    return said + ("; diamonds: the same on episodes that no trial has seen" if found.confirmation else "")


def _axis(by: str) -> str:
    return "validation loss" if by == LOSS else f"discounted return, estimated by {by}"


def _row(trial: Trial, run: Run, several: bool) -> Sequence[str]:
    mean = (with_interval(trial.figure, None),) if several else ()
    return (
        str(trial.number),
        *map(yaml_value, trial.setting.values()),
        str(run.seed),
        *mean,
        with_interval(run.figure, None),
        "" if run.interval is None else " to ".join(map(formatting.significant, run.interval)),
        run.error or run.verdict or "",
        "" if run.updates is None else formatting.integer(run.updates),
        "" if run.seconds is None else formatting.duration(run.seconds),
        run.folder,
    )


def _tiles(found: Search) -> Iterator[Tile]:
    best, confirmed = found.best, found.confirmation
    runs = [run for trial in found.trials for run in trial.runs]
    if best is not None:
        yield Tile("Best trial", str(best.number), f"of {len(found.trials)}")
        yield Tile(
            _axis(found.by).capitalize(), formatting.significant(best.figure or 0.0), "held-out episodes"
        )
    if confirmed is not None:
        note = formatting.plural(confirmed.episodes, "episode")
        yield Tile("Winner on unseen episodes", with_interval(confirmed.figure, None), note)
    if best is not None and (behaviour := best.runs[0].behaviour) is not None:
        yield Tile("Behaviour policy", formatting.significant(behaviour), "held-out episodes")
    failed = sum(run.error is not None for run in runs)
    yield Tile("Runs", formatting.integer(len(runs)), f"{failed} without a value" if failed else "")
    yield Tile("Time of training", formatting.duration(sum(run.seconds or 0.0 for run in runs)))


def _commands(found: Search) -> list[Command]:
    curves = Command("Compare the curves of all runs", f"tensorboard --logdir {found.folder}")
    if found.run is None:
        return [curves]
    path = found.run.checkpoint
    return [
        Command("Copy the winner's checkpoint: the same command with", "--take FOLDER"),
        Command("Train the winner's settings on all episodes: the same command with", "--retrain FOLDER"),
        Command("Use it in Python", f'from hindcast import Policy\n\npolicy = Policy.load("{path}")'),
        Command("Export it", f"hindcast export {path} FOLDER"),
        curves,
    ]
