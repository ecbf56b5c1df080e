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
    """Call each rival once to warm up and then `rounds` times, in alternating order; return its values."""
    results: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds + 1):
        for name in sorted(rivals, reverse=bool(turn % 2)):
            value = rivals[name]()
            if turn:
                results[name].append(value)
    return results


class Rival:
    """A script of `rivals/`, run by the Python of another environment; it answers each line with a measured value.

    Between its turns it is stopped, with all processes that it started, so that it neither works ahead nor takes time
    from the others.

    Args:
        script: file name of the script.
        python: Python interpreter of the environment.
        arguments: command-line arguments of the script.
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
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._send(signal.SIGCONT)
        self._process.communicate()

    def __call__(self, line: str = "") -> float:
        """Send a line to the script, and return the value that it measured."""
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

    def _send(self, signal_number: signal.Signals) -> None:
        """Send a signal to all processes of the session."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(process.name)) == self._process.pid:
                    os.kill(int(process.name), signal_number)


def ratio(results: Mapping[str, list[float]], ours: str, rival: str) -> float:
    """Return the median of `ours` / `rival` over the pairs of turns."""
    return statistics.median(
        our_value / rival_value for our_value, rival_value in zip(results[ours], results[rival], strict=True)
    )


def report(
    title: str,
    unit: str,
    results: Mapping[str, list[float]],
    ours: str,
    targets: Mapping[str, float],
    *,
    floor: float | None = None,
) -> None:
    """Print a table of medians, ours as a ratio to each rival with its target; then the same as JSON.

    Args:
        title: title of the table.
        unit: unit of the values.
        results: measured values, by name.
        ours: name of our values.
        targets: minimum ratio of ours to each rival.
        floor: minimum of our values; None for none.
    """
    table = Table("name", unit, "ours / rival", "target", title=title)
    line = {"benchmark": title, "unit": unit}
    for name, values in results.items():
        median = statistics.median(values)
        cells = ["", f"≥ {floor:,}" if floor and name == ours else ""]
        if name in targets:
            cells = [f"{ratio(results, ours, name):.2f} x", f"≥ {targets[name]:g} x"]
            line[f"ours_over_{name}"] = f"{ratio(results, ours, name):.3f}"
        table.add_row(name, f"{median:,.0f}", *cells)
        line[name] = f"{median:.1f}"
    console = Console()
    console.print(table)
    console.print_json(json.dumps(line))
