"""Points at which a process kills itself (SIGKILL): the n-th file operation of a kind in its output folder."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
from collections import Counter
from typing import Any

import numpy as np

_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link"}
# A random temporary name may have no digit, so it is matched by its place in the file name.
_NUMBER = re.compile(r"(?<=\.)[0-9a-f]{8}(?=\.tmp)|[0-9a-f]*[0-9][0-9a-f]*")
_LINE_PREFIX = "file operations:"


def arrange_kill_at_point(point: str | None, folder: str) -> None:
    """Make this process kill itself at a point; if None, print at its end how often each kind of operation occurred.

    A point is `<event> .<path in the folder, with # for numbers> <number of the occurrence>`.
    """
    counts = Counter[str]()

    def count_operation(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not str(arguments[0]).startswith(folder):
            return
        kind = f"{event} .{_NUMBER.sub('#', str(arguments[0]).removeprefix(folder))}"
        counts[kind] += 1
        if f"{kind} {counts[kind]}" == point:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count_operation)
    if point is None:
        atexit.register(
            lambda: [print(_LINE_PREFIX, count, kind, flush=True) for kind, count in counts.items()]
        )


def choose_points(output: str, rng: np.random.Generator, num_repeats: int = 1) -> list[str]:
    """Choose `num_repeats` points of every kind of operation in a process's output, in random order."""
    counts = _parse_counts(output)
    chosen_points = [f"{kind} {rng.integers(1, count + 1)}" for kind, count in counts * num_repeats]
    return [chosen_points[i] for i in rng.permutation(len(chosen_points))]


def choose_reachable_points(output: str, rng: np.random.Generator, num_repeats: int = 1) -> list[str]:
    """Choose points for processes that each resume where the previous one was killed.

    The first round has one of the first three occurrences of every kind, in the order in which the kinds first occur,
    so that every one of them is reached; the other rounds are as in `choose_points`.
    """
    first_round = [f"{kind} {rng.integers(1, min(count, 3) + 1)}" for kind, count in _parse_counts(output)]
    return first_round + choose_points(output, rng, num_repeats - 1)


def _parse_counts(output: str) -> list[tuple[str, int]]:
    """Parse the kinds of operation, in order of first occurrence, with their counts."""
    matches = re.findall(rf"^{_LINE_PREFIX} (\d+) (.*)$", output, re.MULTILINE)
    return [(kind, int(count)) for count, kind in matches]
