"""The page of a verdict: is a policy better than the recorded one, where does it act differently, what is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hindcast import formatting
from hindcast.evaluate.action_comparison import ActionComparison, ActionElement
from hindcast.evaluate.offline import MAX_CALIBRATION_ERROR
from hindcast.evaluate.verdict import compared_behaviour
from hindcast.report.canvas import Picture, Theme, style_axes
from hindcast.report.page import Command, Page, Section, Table, Tile, write_single_file
from hindcast.report.text import python_code
from hindcast.storage.location import Location

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VERDICT_FILE: Final = "verdict.html"
_MAX_PICTURES: Final = 4
"""Number of action elements with a picture of their frequencies."""
_DESCRIPTIONS: Final = {
    "is": "recorded returns, weighted by importance ratios",
    "wis": "recorded returns, weighted by importance ratios, normalised",
    "pdis": "recorded rewards, weighted by importance ratios",
    "pdwis": "recorded rewards, weighted by importance ratios, normalised",
    "dm": "a model of the returns, fitted to the data",
    "dr": "the model, corrected by ratios",
    "wdr": "the model, corrected by normalised ratios",
}
_RECORDED: Final = "recorded policy"
_CONTINUED: Final = "recorded, continued"
_CONTINUATION: Final = "cut-off episodes continued by the evaluated policy"


@dataclass(frozen=True)
class Judgement:
    """An offline evaluation of a policy, as a page shows it.

    Attributes:
        evaluation: `OfflineReport.to_json`, with a verdict.
        actions: comparison of the policy's actions with the recorded ones.
        policy: location of the policy.
        data: name of the recorded episodes.
        gamma: discount of the returns.
        num_trained: number of the data's episodes that trained the policy and were left out; None if unknown.
        note: a sentence about the episodes; empty for none.
    """

    evaluation: Mapping[str, Any]
    actions: ActionComparison
    policy: str
    data: str
    gamma: float
    num_trained: int | None
    note: str = ""


def write_verdict_page(file: Location, judgement: Judgement, run: str | None = None) -> str:
    """Write the page as one file, and return its path or URI.

    Args:
        file: the file.
        judgement: the evaluation.
        run: run folder of the policy, for commands; None without one.
    """
    verdict = judgement.evaluation["verdict"]
    page = Page(
        kind="Verdict on a policy from recorded episodes, without an environment",
        name=judgement.policy if run is None else run,
        outcome=formatting.capitalise(verdict["sentence"]),
        tiles=_tiles(judgement),
        sections=verdict_sections(judgement),
        tables=verdict_tables(judgement),
        commands=_commands(judgement, run),
    )
    return write_single_file(file, page)


def verdict_sections(judgement: Judgement) -> list[Section]:
    """Return the pictures of a judgement: estimates, and how often each action is taken."""
    return [
        Section(
            "Is the policy better, and what does it do differently?",
            {"verdict": estimates_picture(judgement.evaluation), **action_pictures(judgement.actions)},
        )
    ]


def verdict_tables(judgement: Judgement) -> list[Table]:
    """Return the tables of a judgement: states, estimates, the episodes, and what cannot be known."""
    return [
        *action_tables(judgement.actions),
        _estimates_table(judgement.evaluation),
        _evidence_table(judgement),
        limits_table(judgement.evaluation),
    ]


def _tiles(judgement: Judgement) -> list[Tile]:
    evaluation = judgement.evaluation
    verdict, name = evaluation["verdict"], evaluation["verdict"]["estimate"]
    tiles = []
    if verdict["difference"] is not None:
        note = f"90 % interval {_interval_text(verdict['interval'])}"
        tiles.append(Tile("Policy minus recorded policy", _signed(verdict["difference"]), note))
    if name is not None:
        estimate = evaluation["estimates"][name]
        tiles.append(
            Tile("Policy's return", formatting.significant(estimate["value"]), f"estimated by {name}")
        )
    recorded, note = _recorded_return(evaluation)
    tiles.append(Tile("Recorded policy's return", formatting.significant(recorded["value"]), note))
    note = "may have trained it" if judgement.num_trained is None else "none trained the policy"
    tiles.append(Tile("Episodes that judge", formatting.integer(evaluation["episodes"]), note))
    if evaluation["effective_episodes"] is not None:
        effective = formatting.significant(evaluation["effective_episodes"])
        tiles.append(Tile("Effective episodes", effective, "by overlap of the two policies"))
    if (agreement := judgement.actions.agreement) is not None:
        note = f"of timesteps; {formatting.as_percentage(agreement.by_chance)} by chance"
        tiles.append(Tile("Same action as recorded", formatting.as_percentage(agreement.share), note))
    return tiles


def _recorded_return(evaluation: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the recorded policy's return that the verdict compares with, and a note."""
    recorded = compared_behaviour(evaluation, evaluation["verdict"]["estimate"])
    is_continued = recorded is not evaluation["behaviour"]
    return recorded, _CONTINUATION if is_continued else "as recorded"


def estimates_picture(evaluation: Mapping[str, Any]) -> Picture:
    """Return a picture of all estimates and the recorded policy's return, and of the difference that decides."""
    verdict = evaluation["verdict"]
    rows = {_RECORDED: evaluation["behaviour"]}
    if evaluation["behaviour_continued"] is not None:
        rows[_CONTINUED] = evaluation["behaviour_continued"]
    rows |= evaluation["estimates"]
    has_difference = verdict["interval"] is not None

    def draw(figure: Figure, theme: Theme) -> None:
        heights = [max(1.0, len(rows)), 1.0] if has_difference else [1.0]
        grid = np.atleast_1d(figure.subplots(len(heights), 1, height_ratios=heights))
        names = list(rows)
        colours = [
            theme.reference
            if name.startswith("recorded")
            else theme.main
            if name == verdict["estimate"]
            else theme.muted_ink
            for name in names
        ]
        _draw_intervals(
            grid[0], theme, names, [(row["value"], row["interval"]) for row in rows.values()], colours
        )
        grid[0].set_xlabel("discounted return", fontsize=10, color=theme.muted_ink)
        if has_difference:
            interval = verdict["difference"], verdict["interval"]
            _draw_intervals(grid[1], theme, ["difference"], [interval], [theme.main])
            grid[1].axvline(0.0, color=theme.reference, linewidth=1.4, dashes=(5, 3))
            grid[1].set_xlabel(
                "policy minus recorded policy, on the same episodes", fontsize=10, color=theme.muted_ink
            )

    caption = "Points with 90 % intervals; orange: the recorded policy" + (
        f"; blue: {verdict['estimate']}, which decides" if verdict["estimate"] else ""
    )
    title = _title(verdict)
    return Picture(title, caption, draw, height=0.9 + 0.34 * len(rows) + (0.9 if has_difference else 0.0))


def _title(verdict: Mapping[str, Any]) -> str:
    if verdict["difference"] is None:
        return "No verdict is possible"
    if verdict["answer"] == "unknown":
        return "The policy may be better or worse than the recorded policy"
    return f"The policy is probably {verdict['answer']} than the recorded policy"


def _draw_intervals(
    axes: Axes,
    theme: Theme,
    names: Sequence[str],
    values: Sequence[tuple[float, Sequence[float] | None]],
    colours: Sequence[str],
) -> None:
    """Draw a row for each name, from the top, with a point and its interval."""
    style_axes(axes, theme)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=theme.grid, linewidth=0.8)
    for position, ((value, interval), colour) in enumerate(zip(values, colours, strict=True)):
        if interval is not None:
            axes.plot(list(interval), [position, position], color=colour, linewidth=2.2, alpha=0.6)
        axes.plot([value], [position], color=colour, marker="o", markersize=6)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def action_pictures(actions: ActionComparison) -> dict[str, Picture | None]:
    """Return a picture of each of the first action elements: how often each value is taken."""
    return {
        f"action-{index}": _action_picture(element)
        for index, element in enumerate(actions.elements[:_MAX_PICTURES])
    }


def _action_picture(element: ActionElement) -> Picture:
    recorded, policy = 100 * np.array(element.recorded), 100 * np.array(element.policy)

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, element.name, "% of timesteps")
        positions = np.arange(len(recorded))
        axes.bar(positions - 0.2, recorded, 0.38, color=theme.reference)
        axes.bar(positions + 0.2, policy, 0.38, color=theme.main)
        label_style: dict[str, Any] = (
            {} if element.is_discrete else {"rotation": 35, "ha": "right", "fontsize": 8}
        )
        axes.set_xticks(positions, element.values, **label_style)

    return Picture(_action_title(element), "Orange: recorded policy; blue: policy, in the same states", draw)


def _action_title(element: ActionElement) -> str:
    if not element.is_discrete:
        policy, recorded = map(formatting.significant, (element.policy_mean, element.recorded_mean))
        return f"{formatting.capitalise(element.name)}: the policy's mean is {policy}, the recorded policy's {recorded}"
    changes = np.abs(np.array(element.policy) - np.array(element.recorded))
    index = int(changes.argmax())
    policy, recorded = map(formatting.as_percentage, (element.policy[index], element.recorded[index]))
    if changes[index] < 0.005:
        return f"The policy takes each {element.name} as often as the recorded policy"
    return (
        f"{formatting.capitalise(element.name)} {element.values[index]}: {policy} of timesteps by the policy, "
        f"{recorded} by the recorded policy"
    )


def action_tables(actions: ActionComparison) -> list[Table]:
    """Return a table of the states in which the policy differs most."""
    columns = ("states", "timesteps", "action", "recorded policy", "policy", "actions that differ")
    rows = [
        (
            state.state,
            formatting.integer(state.timesteps),
            state.element if state.value is None else f"{state.element} {state.value}",
            *(
                f"mean {formatting.significant(number)}"
                if state.value is None
                else formatting.as_percentage(number)
                for number in (state.recorded, state.policy)
            ),
            formatting.as_percentage(state.difference),
        )
        for state in actions.states
    ]
    if rows:
        return [Table("Where the policy differs most", columns, rows)]
    text = "No part of the states stands out: the policy differs alike everywhere, or there are too few timesteps."
    return [Table("Where the policy differs most", (), [("states", text)])]


def _estimates_table(evaluation: Mapping[str, Any]) -> Table:
    rows = [(_RECORDED, *_estimate_cells(evaluation["behaviour"]), "as recorded")]
    if evaluation["behaviour_continued"] is not None:
        rows.append(
            (
                _CONTINUED,
                *_estimate_cells(evaluation["behaviour_continued"]),
                f"{_CONTINUATION}; compared with dm, dr and wdr",
            )
        )
    decisive = evaluation["verdict"]["estimate"]
    rows += [
        (name, *_estimate_cells(estimate), _DESCRIPTIONS[name] + ("; decides" if name == decisive else ""))
        for name, estimate in evaluation["estimates"].items()
    ]
    rows += [(name, "none", "none", reason) for name, reason in evaluation["not_estimated"].items()]
    if decisive is not None:
        cells = (
            _signed(evaluation["verdict"]["difference"]),
            _interval_text(evaluation["verdict"]["interval"]),
        )
        rows.append(("difference", *cells, f"policy minus recorded policy, by {decisive}"))
    return Table("Estimates of the discounted return", ("", "return", "90 % interval", "how"), rows)


def _estimate_cells(estimate: Mapping[str, Any]) -> tuple[str, str]:
    return formatting.significant(estimate["value"]), _interval_text(estimate["interval"])


def _interval_text(interval: Sequence[float] | None) -> str:
    return "none" if interval is None else " to ".join(map(formatting.significant, interval))


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else ''}{formatting.significant(value)}"


def _evidence_table(judgement: Judgement) -> Table:
    evaluation, calibration = judgement.evaluation, judgement.evaluation["calibration"]
    trained = "none of the data's episodes"
    if judgement.num_trained is None:
        trained = "not known: if some of these episodes trained the policy, the estimates are too high"
    elif judgement.num_trained:
        trained = f"{judgement.num_trained:,} more episodes of the data, which are left out"
    logp = "recorded"
    if calibration is not None:
        fit = "well" if calibration["error"] <= MAX_CALIBRATION_ERROR else "badly"
        logp = f"not recorded; a clone of the recorded policy fits {fit} (calibration error {calibration['error']:.2f})"
    size = ", ".join(formatting.plural(evaluation[f"{noun}s"], noun) for noun in ("episode", "timestep"))
    rows = [
        ("policy", f"{judgement.policy}, {formatting.acting(evaluation['explore'])}"),
        ("judged by", f"{judgement.data}: {size}" + (f"; {judgement.note}" if judgement.note else "")),
        ("trained by", trained),
        ("discount", formatting.discount(judgement.gamma, evaluation.get("is_timed", False))),
        ("log-probabilities", logp),
    ]
    return Table("Who was judged, and by what", (), rows)


def limits_table(evaluation: Mapping[str, Any] | None = None) -> Table:
    """Return a table of what an evaluation by recorded episodes cannot know; None for a gate."""
    rows = [
        (
            "hidden causes",
            "If something that is not in the observations moved both the recorded actions and the outcomes, all "
            "numbers here are confounded, however narrow their intervals are.",
        ),
        (
            "drift",
            "The estimates hold for the time of the recording. If the world has changed since, they do not.",
        ),
    ]
    if evaluation is None:
        return Table("What these numbers cannot know", (), rows)
    if evaluation["under_recorded"]:
        counts = ", ".join(
            f"{action} ({count} times)" for action, count in evaluation["under_recorded"].items()
        )
        rows.append(
            (
                "rare actions",
                f"The policy takes actions that were hardly recorded: {counts}. Their harm is unknown.",
            )
        )
    if evaluation["behaviour_continued"] is not None:
        rows.append(
            (
                "cut-off episodes",
                "Some episodes were cut off. What would have followed is the model's guess, not a record.",
            )
        )
    if evaluation["calibration"] is not None:
        rows.append(
            (
                "the clone",
                "The recorded policy's probabilities are estimates too, so a verdict is provisional at most.",
            )
        )
    return Table("What these numbers cannot know", (), rows)


def _commands(judgement: Judgement, run: str | None) -> list[Command]:
    path = judgement.policy
    more_data = Command(
        "Record more episodes, with log-probabilities: serve the recorded policy to the application, or log its "
        "decisions with action_logp (docs/logging.md), then repeat",
        f"hindcast evaluate {run or path} --data {judgement.data} --data LOG",
    )
    if judgement.evaluation["verdict"]["answer"] != "better":
        tune = Command(
            "Try other settings, chosen and confirmed by held-out episodes",
            "hindcast tune FILE --over config.lr=1e-4,1e-3",
        )
        return [more_data, tune]
    return [
        Command(
            "Before it acts alone, let a growing log of the recorded policy confirm it: add evaluation.gate to the "
            "training (docs/evaluation.md), then as often as you like",
            f"hindcast gate {run or path} --data LOG",
        ),
        more_data,
        Command("Export it; the export acts as it was judged here", f"hindcast export {run or path} FOLDER"),
        Command("Use it in Python", python_code(path, judgement.evaluation["explore"])),
    ]
