"""Shared parts of the benchmarks: rivals taking turns, medians, one table and one JSON line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.table import Table


def take_turns(rivals: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each rival `rounds` times after a warm-up, in alternating order, and return its values."""
    results: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds + 1):
        for name in sorted(rivals, reverse=bool(turn % 2)):
            value = rivals[name]()
            if turn:
                results[name].append(value)
    return results


class Rival:
    """A script of `rivals/`, run by another environment's Python: it answers each line with what it measured.

    Between its turns it is stopped, with all that it started: it neither works ahead nor takes time from the others.

    Args:
        script: its name there.
        python: the environment's.
        arguments: of the script.
    """

    def __init__(self, script: str, python: str, *arguments: str) -> None:
        command = [python, str(Path(__file__).parent / "rivals" / script), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._read()
        self._send(signal.SIGSTOP)

    def __enter__(self) -> Rival:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._send(signal.SIGCONT)
        self._process.communicate()

    def __call__(self, line: str = "") -> float:
        """One turn of what the line says."""
        assert self._process.stdin is not None
        self._send(signal.SIGCONT)
        print(line, file=self._process.stdin, flush=True)
        answer = self._read()
        self._send(signal.SIGSTOP)
        return float(answer)

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended before it answered")
        return line

    def _send(self, what: signal.Signals) -> None:
        """To all processes of its session."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(process.name)) == self._process.pid:
                    os.kill(int(process.name), what)


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
