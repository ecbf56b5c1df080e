"""What the benchmarks share: rivals taking turns, medians, one table and one JSON line."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.table import Table


def take_turns(rivals: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each rival `rounds` times after a warm-up, in alternating order; what each returned."""
    found: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds + 1):
        for name in sorted(rivals, reverse=bool(turn % 2)):
            value = rivals[name]()
            if turn:
                found[name].append(value)
    return found


def ratio(found: Mapping[str, list[float]], ours: str, rival: str) -> float:
    """Median of ours / rival over the pairs of turns."""
    return statistics.median(mine / other for mine, other in zip(found[ours], found[rival], strict=True))


def report(
    title: str,
    unit: str,
    found: Mapping[str, list[float]],
    ours: str,
    targets: Mapping[str, float],
    *,
    floor: float | None = None,
) -> None:
    """Print a table of medians, ours as a ratio to each rival with its target; then the same as JSON.

    Args:
        title: of the table.
        unit: of what was found.
        found: values of each, by who had them.
        ours: who we are.
        targets: least ratio of ours, by rival.
        floor: least value of ours; None for any.
    """
    table = Table("who", unit, "ours / it", "target", title=title)
    line = {"benchmark": title, "unit": unit}
    for name, values in found.items():
        median = statistics.median(values)
        cells = ["", f"≥ {floor:,}" if floor and name == ours else ""]
        if name in targets:
            cells = [f"{ratio(found, ours, name):.2f} x", f"≥ {targets[name]:g} x"]
            line[f"ours_over_{name}"] = f"{ratio(found, ours, name):.3f}"
        table.add_row(name, f"{median:,.0f}", *cells)
        line[name] = f"{median:.1f}"
    console = Console()
    console.print(table)
    console.print_json(json.dumps(line))
