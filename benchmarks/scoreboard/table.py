"""Write docs/scoreboard.md and its pictures from the results."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from estimates import estimates_section
from tasks import BATCH, D3RLPY, ENVIRONMENTS, JUDGES, OURS, RLLIB, Environment

from hindcast.evaluate.intervals import student_interval
from hindcast.report.canvas import LIGHT, Picture, Theme, render, style_axes

DOCS = Path(__file__).parents[2] / "docs"
LEVEL = 0.9
LIBRARIES = (OURS, D3RLPY, RLLIB)


@dataclass(frozen=True)
class Score:
    """A score over some seeds, normalised: 0 is a random policy's return, 100 an expert's.

    Attributes:
        mean: mean over the seeds.
        error: standard error of the mean; NaN for one seed.
        seeds: number of seeds.
    """

    mean: float
    error: float
    seeds: int

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Score:
        count = len(values)
        error = float(np.std(values, ddof=1)) / math.sqrt(count) if count > 1 else math.nan
        return cls(float(np.mean(values)), error, count)

    @property
    def half_interval(self) -> float:
        """Half-width of Student's interval; NaN for one seed."""
        return half_width(self.error, self.seeds - 1)

    def __str__(self) -> str:
        half = "" if math.isnan(self.half_interval) else f" ± {self.half_interval:.0f}"
        return f"{self.mean:.0f}{half}"


class Board:
    """The results in one environment.

    Args:
        environment: the environment.
        results: one dictionary per piece, see `training.train`.
        recorded: mean return of each of the data that a seed was trained on, by seed.
    """

    def __init__(
        self,
        environment: Environment,
        results: Sequence[dict[str, Any]],
        recorded: Mapping[int, Mapping[str, float]],
    ) -> None:
        self.environment = environment
        self._recorded = recorded
        self._results = results

    def normalise(self, value: float, seed: int) -> float:
        """Return the score of a return; the random and the expert return of the seed are 0 and 100."""
        recorded = self._recorded[seed]
        worst, best = self.environment.reference_returns or (recorded["random"], recorded["expert"])
        return 100 * (value - worst) / (best - worst)

    def data_score(self, data: str) -> float:
        """Return the mean recorded return over the seeds."""
        return float(np.mean([self.normalise(means[data], seed) for seed, means in self._recorded.items()]))

    def score(
        self, library: str, data: str, algorithm: str, select: Callable[[list[float]], float]
    ) -> Score | None:
        """Return the score over all seeds, or None if there is none; `select` picks one of the evaluations' means."""
        key = (library, data, algorithm)
        values = [
            self.normalise(
                select([float(np.mean(evaluation["returns"])) for evaluation in piece["evaluations"]]),
                piece["seed"],
            )
            for piece in self._results
            if (piece["who"], piece["data"], piece["algorithm"]) == key
        ]
        return Score.from_values(values) if values else None

    @property
    def core_hours(self) -> float:
        return sum(piece["cpu_seconds"] for piece in self._results) / 3600

    @property
    def gpu_counts(self) -> list[str]:
        """Number of trainings on each GPU, as texts."""
        counts = Counter(piece.get("device", "cpu") for piece in self._results)
        return [f"{count} on an {name}" for name, count in counts.items() if name != "cpu"]


def last(means: list[float]) -> float:
    """Return the mean of the last evaluation, that of a user who cannot choose a checkpoint by a simulator."""
    return means[-1]


def write_page(results: Path) -> None:
    """Write the page, and a picture for each environment with results."""
    sections = []
    for name, environment in ENVIRONMENTS.items():
        if not (results / f"{name}.jsonl").exists():
            continue
        board = read_board(results, name, environment)
        (DOCS / f"scoreboard-{name}.png").write_bytes(render(make_picture(board), LIGHT))
        sections.append(make_section(name, board, load_judgements(results, name)))
    (DOCS / "scoreboard.md").write_text(HEAD + "\n".join(sections))


def read_board(results: Path, name: str, environment: Environment) -> Board:
    """Read the results of an environment."""
    lines = (results / f"{name}.jsonl").read_text().splitlines()
    recorded = json.loads((results / f"{name}-data.json").read_text())
    by_seed = {int(seed): means for seed, means in recorded.items()}
    return Board(environment, [json.loads(line) for line in lines], by_seed)


def load_judgements(results: Path, name: str) -> list[dict[str, Any]]:
    """Load the judgements of an environment's policies by held-out recordings; empty if there are none."""
    file = results / f"{name}{JUDGES}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


HEAD = f"""# Scoreboard

Every algorithm on data recorded by Hindcast's SAC, and d3rlpy 2.8.1 and RLlib 2.60 on the same files, with the same
number of updates, batches of {BATCH}, the same networks and learning rates. Only RLlib's critics are larger: they have
such a network for observations, another one for actions, and two layers of 256 after both. Other options are each
library's defaults, except those in [tasks.py](../benchmarks/scoreboard/tasks.py) and [rivals](../benchmarks/rivals).
RLlib's learners receive batches directly. Its CQL has no warm-up, because in RLlib's own loop the warm-up never ends.
The penalty of RLlib's CQL evaluates actions of the next state's policy at the next state, as Hindcast's does with
`nextStateGap`; without it, Hindcast's penalty is that of the authors, as is d3rlpy's.

`python benchmarks/scoreboard` makes the data, the results and this page. Raw results, with the return of every episode,
are in [benchmarks/scoreboard/results](../benchmarks/scoreboard/results). If a seed was run on another machine, its data
were recorded by the same SAC on that machine.

In the sections "as it comes", every library has its own defaults alone, whose networks, learning rates and batches
differ.

Scores are normalised: 0 is the return of a random policy, 100 an expert's. In Pendulum these are the means of the
random and the expert data; in Hopper and HalfCheetah, D4RL's (arXiv 2004.07219). The first number is the score of
the last evaluation; the one in parentheses is that of the best evaluation, which only a simulator can identify. Both
are means over the seeds, ± half the width of Student's {LEVEL:.0%} interval.

"""


def make_section(name: str, board: Board, judgements: Sequence[dict[str, Any]]) -> str:
    """Return the section of an environment."""
    environment = board.environment
    data = list(environment.data)
    head = ["algorithm", "by", *(f"{name} ({board.data_score(name):.0f})" for name in data)]
    rows = [
        make_row(board, algorithm, library) for algorithm in environment.algorithms for library in LIBRARIES
    ]
    table = [head, ["---"] * len(head), *filter(None, rows)]
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    seeds = sorted({score.seeds for score in all_scores(board)})
    counts = " to ".join(map(str, sorted({seeds[0], seeds[-1]})))
    setting = (
        "Every option is each library's own default: networks, learning rates, batches. The logs are those of "
        "hand-written controllers: a good one, a poor one, and both in turn. "
        if environment.has_defaults_only
        else f"Networks of {' and '.join(map(str, environment.hidden_sizes))}, learning rate "
        f"{environment.learning_rate:g}, "
    )
    reduced_updates = format_reduced_updates(environment)
    about = (
        f"{setting}{environment.updates:,} updates{f' ({reduced_updates})' * bool(reduced_updates)}, an evaluation of "
        f"{environment.evaluation_episodes} episodes every {environment.evaluation_interval:,}, {counts} "
        f"seed{'s' * (seeds != [1])} each; {board.core_hours:.1f} core-hours in all"
        f"{''.join(f', {gpu_count}' for gpu_count in board.gpu_counts)}. "
        "The number in parentheses in the header is the data's own score."
    )
    picture_line = f"![Scores in {title(environment)}](scoreboard-{name}.png)"
    return "\n".join(
        [
            f"## {title(environment)}",
            "",
            picture_line,
            "",
            about,
            "",
            *lines,
            "",
            *(make_verdict(board, rival) for rival in environment.rivals),
            *(
                compare_with_data(board, rival)
                for rival in environment.rivals
                if environment.has_defaults_only
            ),
            "",
            *estimates_section(environment, judgements),
        ]
    )


def title(environment: Environment) -> str:
    """Return the title of an environment's section."""
    return f"{environment.id}{', as it comes' * environment.has_defaults_only}"


def format_reduced_updates(environment: Environment) -> str:
    """Return the algorithms with fewer updates, with their numbers."""
    return ", ".join(
        f"{name} {int(environment.updates * fraction):,}"
        for name, fraction in environment.update_fractions.items()
    )


def make_row(board: Board, algorithm: str, library: str) -> list[str] | None:
    """Return a row of the table, or None if nothing was trained."""
    cells = []
    for data in board.environment.data:
        at_last, best = (
            board.score(library, data, algorithm, last),
            board.score(library, data, algorithm, max),
        )
        cells.append(f"{at_last} ({best})" if at_last and best else "")
    return [algorithm, library, *cells] if any(cells) else None


def all_scores(board: Board) -> list[Score]:
    """Return all last scores."""
    scores = [
        board.score(library, data, algorithm, last)
        for library in LIBRARIES
        for data in board.environment.data
        for algorithm in board.environment.algorithms
    ]
    return [score for score in scores if score]


def make_verdict(board: Board, rival: str) -> str:
    """Say where Hindcast differs significantly from a rival: Welch's test of the last scores."""
    above, below, num_compared = [], [], 0
    for algorithm in board.environment.rivals[rival]:
        for data in board.environment.data:
            our_score = board.score(OURS, data, algorithm, last)
            rival_score = board.score(rival, data, algorithm, last)
            if our_score is None or rival_score is None or min(our_score.seeds, rival_score.seeds) < 2:
                continue
            num_compared += 1
            difference, half = our_score.mean - rival_score.mean, welch(our_score, rival_score)
            if abs(difference) > half:
                name = f"{algorithm} on {data} ({difference:+.0f})"
                (above if difference > 0 else below).append(name)
    if not num_compared:
        return f"With one seed, differences from {rival} may be chance."
    return (
        f"In {num_compared} comparisons with {rival}, Hindcast is significantly better ({LEVEL:.0%}, Welch's test) in "
        f"{len(above)}{join_names(above)}, and significantly worse in {len(below)}{join_names(below)}."
    )


def compare_with_data(board: Board, rival: str) -> str:
    """Say where Hindcast's mean score is below that of the data, and a rival's above it."""
    names = []
    for algorithm in board.environment.rivals[rival]:
        for data in board.environment.data:
            our_score = board.score(OURS, data, algorithm, last)
            rival_score = board.score(rival, data, algorithm, last)
            if our_score and rival_score and our_score.mean < board.data_score(data) < rival_score.mean:
                names.append(f"{algorithm} on {data}")
    return (
        f"Hindcast's mean score is below that of the data where {rival}'s is above it in {len(names)} "
        f"comparison{'s' * (len(names) != 1)}{join_names(names)}."
    )


def join_names(names: list[str]) -> str:
    return f": {', '.join(names)}" if names else ""


def half_width(error: float, degrees_of_freedom: int) -> float:
    """Return the half-width of Student's interval for a standard error; NaN without a degree of freedom."""
    interval = student_interval(0.0, error, LEVEL, degrees_of_freedom)
    return math.nan if interval is None else interval[1]


def welch(first: Score, second: Score) -> float:
    """Return the half-width of the interval of a difference of means with different variances (Welch)."""
    squares = first.error**2, second.error**2
    if sum(squares) == 0:
        return 0.0
    degrees_of_freedom = sum(squares) ** 2 / (
        squares[0] ** 2 / (first.seeds - 1) + squares[1] ** 2 / (second.seeds - 1)
    )
    return half_width(math.sqrt(sum(squares)), max(1, math.floor(degrees_of_freedom)))


def make_picture(board: Board) -> Picture:
    """Return a picture with a panel for each of the data: the last scores of all libraries, with intervals."""
    environment = board.environment

    def draw(figure: Any, theme: Theme) -> None:
        panels = figure.subplots(1, len(environment.data), sharey=True)
        for axes, data in zip(panels, environment.data, strict=True):
            style_axes(axes, theme, data)
            axes.axvline(board.data_score(data), color=theme.muted_ink, linewidth=1, linestyle=":")
            for library, colour, shift in zip(LIBRARIES, theme.series, (-0.2, 0.0, 0.2), strict=False):
                for position, algorithm in enumerate(environment.algorithms):
                    score = board.score(library, data, algorithm, last)
                    if score:
                        half_interval = None if math.isnan(score.half_interval) else score.half_interval
                        axes.errorbar(
                            score.mean,
                            position + shift,
                            xerr=half_interval,
                            fmt="o",
                            color=colour,
                            markersize=4,
                            linewidth=1.2,
                        )
            axes.set_xlim(-45, 125)
            axes.set_xticks([0, 50, 100])
        panels[0].set_yticks(range(len(environment.algorithms)), environment.algorithms)
        panels[0].invert_yaxis()

    caption = (
        "Last scores: 0 is random, 100 the expert; dotted: the data's own score. "
        "Blue: Hindcast, orange: d3rlpy, green: RLlib."
    )
    return Picture(f"{title(environment)}: what is learned from which data", caption, draw, height=4.0)
