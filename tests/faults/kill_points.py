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
_NUMBER = re.compile(
    r"(?<=\.)[0-9a-f]{8}(?=\.tmp)|[0-9a-f]*[0-9][0-9a-f]*"
)  # a random name may have no digit
_LINE = "file operations:"


def die_at(point: str | None, folder: str) -> None:
    """Kill this process at a point; with None, print at its end how many operations of each kind there were."""
    counts = Counter[str]()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not str(arguments[0]).startswith(folder):
            return
        kind = f"{event} .{_NUMBER.sub('#', str(arguments[0]).removeprefix(folder))}"
        counts[kind] += 1
        if f"{kind} {counts[kind]}" == point:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    if point is None:
        atexit.register(lambda: [print(_LINE, count, kind, flush=True) for kind, count in counts.items()])


def points(output: str, rng: np.random.Generator, num_repeats: int = 1) -> list[str]:
    """Of what a process without a point printed: `each` of every kind of operation, in random order."""
    counts = _counts(output)
    chosen_points = [f"{kind} {rng.integers(1, count + 1)}" for kind, count in counts * num_repeats]
    return [chosen_points[i] for i in rng.permutation(len(chosen_points))]


def points_on_the_way(output: str, rng: np.random.Generator, num_repeats: int = 1) -> list[str]:
    """The same for a process that goes on where the one before it was killed: it comes to all of the first round.

    That is one of the first times of every kind, in the order in which they begin; the other rounds are as `points`.
    """
    first = [f"{kind} {rng.integers(1, min(count, 3) + 1)}" for kind, count in _counts(output)]
    return first + points(output, rng, num_repeats - 1)


def _counts(output: str) -> list[tuple[str, int]]:
    """The kinds of operation, in the order in which they began, and how many of each there were."""
    matches = re.findall(rf"^{_LINE} (\d+) (.*)$", output, re.MULTILINE)
    return [(kind, int(count)) for count, kind in matches]
