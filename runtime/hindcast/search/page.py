"""The HTML page of a search: its winner, a table of all trials, and a picture of their metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from hindcast import formatting
from hindcast.api import OfflineTraining
from hindcast.report.canvas import Label, Picture, Theme, draw_end_labels, style_axes
from hindcast.report.page import Command, Page, Section, Table, Tile, write_single_file
from hindcast.report.text import python_code, resource_yaml
from hindcast.report.verdict_page import Judgement, verdict_sections, verdict_tables
from hindcast.search.results import Run, Search, Trial, format_with_interval
from hindcast.search.trials import LOSS_METRIC
from hindcast.storage.location import resolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_FILE: Final = "search.html"
_MAX_LABELLED_TRIALS: Final = 30
"""Number of trials up to which the picture's axis has a label for each trial."""


def write_search_page(search: Search, base: OfflineTraining, judgement: Judgement | None = None) -> None:
    """Write `search.html` into the folder of a search.

    Args:
        search: the search.
        base: the training whose settings were varied.
        judgement: evaluation of the winner on episodes that no trial has seen; None without one.
    """
    page = Page(
        kind=f"Search over {', '.join(search.trials[0].setting)} of an OfflineTraining",
        name=base.metadata.name,
        outcome=formatting.capitalise(search.sentence),
        tiles=list(_tiles(search)),
        sections=[
            Section("The trials compared", {"trials": trials_picture(search)}),
            *([] if judgement is None else verdict_sections(judgement)),
        ],
        tables=[trials_table(search), *([] if judgement is None else verdict_tables(judgement))],
        commands=_commands(search),
        spec=resource_yaml(search.training or base),
    )
    write_single_file(resolve(search.report), page)


def trials_table(search: Search) -> Table:
    """Return a table with a row for each run, best trial first."""
    has_several_seeds = len(search.trials[0].runs) > 1
    mean_column = ("mean",) if has_several_seeds else ()
    columns = ("trial", *search.trials[0].setting, "seed", *mean_column, search.metric, "interval")
    rows = [_run_row(trial, run, has_several_seeds) for trial in search.trials for run in trial.runs]
    return Table("All trials, best first", (*columns, "verdict", "updates", "time", "run folder"), rows)


def trials_picture(search: Search) -> Picture | None:
    """Return a picture of each run's value with its interval, best trial first; None if no trial has a value."""
    ranked_trials = [trial for trial in search.trials if any(run.value is not None for run in trial.runs)]
    if search.best is None:
        return None
    behaviour = next((run.behaviour for run in search.best.runs if run.behaviour is not None), None)

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "trial, best first", _metric_label(search.metric))
        for position, trial in enumerate(ranked_trials):
            _draw_trial(axes, position, trial, theme.main if trial is search.best else theme.muted_ink)
        labels = []
        if behaviour is not None:
            axes.axhline(behaviour, color=theme.series[2], linewidth=1.2)
            labels.append(Label(behaviour, "recorded policy", theme.series[2]))
        if search.confirmation is not None and search.confirmation.value is not None:
            # The winner is at position 0.
            axes.plot([0], [search.confirmation.value], color=theme.reference, marker="D", markersize=6)
            if search.confirmation.behaviour is not None:
                axes.plot(
                    [0], [search.confirmation.behaviour], color=theme.series[2], marker="D", markersize=6
                )
            labels.append(Label(search.confirmation.value, "winner, unseen", theme.reference))
        if len(ranked_trials) <= _MAX_LABELLED_TRIALS:
            axes.set_xticks(range(len(ranked_trials)), [str(trial.number) for trial in ranked_trials])
        else:
            axes.set_xticks([])
        axes.set_xlim(-0.6, len(ranked_trials) - 0.4)
        draw_end_labels(axes, labels)

    return Picture(_headline(search, search.best), _caption(search, behaviour is not None), draw)


def _draw_trial(axes: Axes, position: int, trial: Trial, colour: str) -> None:
    """Draw a point with its interval for each run, and a bar for the mean of several runs."""
    runs = [(run.value, run.interval) for run in trial.runs if run.value is not None]
    for run_index, (value, interval) in enumerate(runs):
        # Runs stand side by side within the trial's slot, so that their intervals do not overlap.
        x = position + 0.5 * ((run_index + 0.5) / len(runs) - 0.5)
        axes.plot([x, x], list(interval or (value, value)), color=colour, linewidth=1.2, alpha=0.6)
        axes.plot([x], [value], color=colour, marker="o", markersize=4)
    if trial.value is not None and len(runs) > 1:
        axes.plot([position - 0.3, position + 0.3], [trial.value, trial.value], color=colour, linewidth=2)


def _headline(search: Search, best: Trial) -> str:
    text = f"Trial {best.number} is best: {search.metric} {format_with_interval(best.value, None)}"
    if search.confirmation is None or search.confirmation.value is None:
        return text
    return (
        f"{text}, and {formatting.significant(search.confirmation.value)} on episodes that no trial has seen"
    )


def _caption(search: Search, has_behaviour: bool) -> str:
    has_several_seeds = len(search.trials[0].runs) > 1
    text = "Each run on the held-out episodes" + (
        "" if search.metric == LOSS_METRIC else ", with a 90 % interval"
    )
    text += "; bars: means over seeds" if has_several_seeds else ""
    text += "; green: the recorded policy's return on the same episodes" if has_behaviour else ""
    return text + ("; diamonds: the same on episodes that no trial has seen" if search.confirmation else "")


def _metric_label(metric: str) -> str:
    return "validation loss" if metric == LOSS_METRIC else f"discounted return, estimated by {metric}"


def _run_row(trial: Trial, run: Run, has_several_seeds: bool) -> Sequence[str]:
    mean_cell = (format_with_interval(trial.value, None),) if has_several_seeds else ()
    return (
        str(trial.number),
        *map(formatting.as_yaml, trial.setting.values()),
        str(run.seed),
        *mean_cell,
        format_with_interval(run.value, None),
        "" if run.interval is None else " to ".join(map(formatting.significant, run.interval)),
        run.error or run.verdict or "",
        "" if run.updates is None else formatting.integer(run.updates),
        "" if run.seconds is None else formatting.duration(run.seconds),
        run.folder,
    )


def _tiles(search: Search) -> Iterator[Tile]:
    best, confirmation = search.best, search.confirmation
    runs = [run for trial in search.trials for run in trial.runs]
    if best is not None:
        yield Tile("Best trial", str(best.number), f"of {len(search.trials)}")
        yield Tile(
            _metric_label(search.metric).capitalize(),
            format_with_interval(best.value, None),
            "held-out episodes",
        )
    if confirmation is not None:
        note = formatting.plural(confirmation.episodes, "episode")
        yield Tile("Winner on unseen episodes", format_with_interval(confirmation.value, None), note)
    if best is not None and (behaviour := best.runs[0].behaviour) is not None:
        yield Tile("Recorded policy", formatting.significant(behaviour), "held-out episodes")
    num_failed = sum(run.error is not None for run in runs)
    yield Tile("Runs", formatting.integer(len(runs)), f"{num_failed} without a value" if num_failed else "")
    yield Tile("Training time", formatting.duration(sum(run.seconds or 0.0 for run in runs)))


def _commands(search: Search) -> list[Command]:
    curves = Command("Compare the curves of all runs", f"tensorboard --logdir {search.folder}")
    if search.run is None:
        return [curves]
    path = search.run.checkpoint
    assert path is not None
    evaluation = search.training.spec.evaluation if search.training is not None else None
    explore = evaluation is not None and evaluation.judges_samples
    return [
        Command("Copy the winner's checkpoint: repeat the command of the search with", "--take FOLDER"),
        Command(
            "Train the winner's settings on all episodes: repeat the command of the search with",
            "--retrain FOLDER",
        ),
        Command("Use the winner's policy in Python", python_code(path, explore)),
        Command("Export the winner's policy", f"hindcast export {path} FOLDER"),
        curves,
    ]
