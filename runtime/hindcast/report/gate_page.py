"""The page of a gate: its decision, its evidence after each look, and what the policy does differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from hindcast import formatting
from hindcast.evaluate.action_comparison import ActionComparison
from hindcast.report.canvas import Picture, Theme, style_axes
from hindcast.report.page import Command, Page, Section, Table, Tile, warn_on_failure, write_single_file
from hindcast.report.verdict_page import action_pictures, action_tables, limits_table
from hindcast.storage.location import Location

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GATE_PAGE_FILE: Final = "gate.html"


@warn_on_failure
def write_gate_page(
    file: Location, gate: Mapping[str, Any], actions: ActionComparison, *, run: str, data: str
) -> str:
    """Write the page as one file, and return its path or URI.

    Args:
        file: the file.
        gate: `GateResult.to_json`.
        actions: comparison of the policy's actions with the recorded ones, in the episodes of the last look.
        run: the run folder.
        data: name of the log.
    """
    look = f"hindcast gate {run} --data {data}"
    commands = {
        "undecided": Command("Look again when the log has grown, as often as you like", look),
        "promoted": Command(
            "Serve the policy; it acts as it was tested", f"hindcast serve {run} --log LOG --token-file FILE"
        ),
        "kept": Command(
            "Try other settings, and test them by a gate of their own", "hindcast tune FILE --over …"
        ),
    }
    sections = {"evidence": evidence_picture(gate["looks"], gate["threshold"]), **action_pictures(actions)}
    page = Page(
        kind="Gate: a policy against the recorded policy, on a log that grows",
        name=run,
        outcome=formatting.capitalise(gate["condition"]["message"]),
        tiles=[
            Tile("Decision", gate["decision"]),
            Tile(
                "Evidence",
                formatting.significant(gate["evidence"]),
                f"promoted at {formatting.significant(gate['threshold'])}",
            ),
            Tile(
                "Episodes",
                formatting.integer(gate["episodes"]),
                "none of them known to have trained the policy",
            ),
            Tile("Looks", formatting.integer(len(gate["looks"])), "with new episodes"),
        ],
        sections=[Section("The evidence, and what the policy does differently", sections)],
        tables=[*action_tables(actions), _looks_table(gate["looks"]), limits_table()],
        commands=[
            commands[gate["decision"]],
            Command("Check that the log is sound", f"hindcast inspect {data}"),
        ],
    )
    return write_single_file(file, page)


def evidence_picture(looks: Sequence[Mapping[str, Any]], threshold: float) -> Picture:
    """Return a picture of the evidence after each look, with the threshold of a promotion."""
    last = looks[-1]

    def draw(figure: Figure, theme: Theme) -> None:
        from matplotlib.ticker import FuncFormatter, NullLocator

        axes = figure.subplots()
        style_axes(axes, theme, "episodes", "evidence")
        axes.plot(
            [look["episodes"] for look in looks],
            [max(look["evidence"], 1e-12) for look in looks],
            color=theme.main,
            marker="o",
            markersize=4,
        )
        axes.axhline(threshold, color=theme.reference, linewidth=1.4, dashes=(5, 3))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatting.count(value)))
        axes.yaxis.set_minor_locator(NullLocator())
        bottom, top = axes.get_ylim()
        axes.set_ylim(min(bottom, 0.5), max(top, 2 * threshold))
        axes.set_xlim(left=0)
        axes.annotate(
            "promotion", (0.0, threshold), xytext=(4, 4), xycoords=("axes fraction", "data"),
            textcoords="offset points", fontsize=9.5, fontweight="bold", color=theme.reference,
        )  # fmt: skip

    episodes = formatting.plural(last["episodes"], "episode")
    title = f"Evidence for the policy: {formatting.significant(last['evidence'])} after {episodes}"
    caption = (
        "Capital of a bet on the policy, 1 at first, after each look: it grows only by chance if the policy is not "
        "better; "
        f"the policy is promoted at {formatting.significant(threshold)}"
    )
    return Picture(title, caption, draw)


def _looks_table(looks: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            look["time"],
            formatting.integer(look["new_episodes"]),
            formatting.integer(look["episodes"]),
            formatting.significant(look["evidence"]),
            look["decision"],
        )
        for look in looks
    ]
    return Table("Looks", ("time", "new episodes", "episodes", "evidence", "decision"), rows)
