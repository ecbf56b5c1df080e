"""The scoreboard: every algorithm on data of Hindcast's SAC; d3rlpy and RLlib on the same files, with equal updates.

    python benchmarks/scoreboard data FOLDER [pendulum hopper halfcheetah pendulum-defaults cartpole-defaults]
    python benchmarks/scoreboard run FOLDER --rllib PYTHON [--minutes 60] [--only Hindcast pendulum medium IQL]
    python benchmarks/scoreboard judge FOLDER [--minutes 60] [--only pendulum medium IQL]
    python benchmarks/scoreboard table

`data` makes the recordings: a minute of CPU time for Pendulum; Hopper and HalfCheetah need `gymnasium[mujoco]` and half
an hour. `pendulum-defaults` and `cartpole-defaults`, in which every algorithm is trained as it comes, add logs of
hand-written controllers, within seconds.
`run` trains the pieces without results in `results/`, with one thread, until the minutes are over; another call
resumes. `judge` estimates returns in the same way: it trains Hindcast's policies again, stores them in FOLDER, and
evaluates each on recorded episodes that it was not trained on. `table` writes docs/scoreboard.md and its pictures from
`results/`.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from controllers import make_logs
from data import compute_returns, make_recordings
from judging import judge
from tasks import DEFAULTS, ENVIRONMENTS, JUDGES, OURS, UNJUDGED, Piece, all_pieces
from training import train

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Execute one of the four commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    data_parser = commands.add_parser("data")
    data_parser.add_argument("folder", type=Path)
    data_parser.add_argument(
        "environments", nargs="*", default=list(ENVIRONMENTS), help="all if none is named"
    )
    data_parser.set_defaults(execute=make_data)
    run_parser = commands.add_parser("run")
    run_parser.add_argument("folder", type=Path)
    run_parser.add_argument("--rllib", required=True, help="the Python that has RLlib and d3rlpy")
    run_parser.add_argument("--minutes", type=float, default=60.0)
    run_parser.add_argument("--only", nargs="*", default=[], help="names that a piece must have, such as IQL")
    run_parser.set_defaults(execute=run_pieces)
    judge_parser = commands.add_parser("judge")
    judge_parser.add_argument("folder", type=Path)
    judge_parser.add_argument("--minutes", type=float, default=60.0)
    judge_parser.add_argument(
        "--only", nargs="*", default=[], help="names that a piece must have, such as IQL"
    )
    judge_parser.set_defaults(execute=judge_pieces)
    table_parser = commands.add_parser("table")
    table_parser.set_defaults(execute=write_table)
    arguments = parser.parse_args()
    arguments.execute(arguments)


def make_data(arguments: argparse.Namespace) -> None:
    """Make the data of the named environments."""
    folder = arguments.folder.absolute()
    for name in arguments.environments:
        if ENVIRONMENTS[name].has_defaults_only:
            make_logs(ENVIRONMENTS[name].id, folder / name.removesuffix(DEFAULTS))
        else:
            make_recordings(name, folder)


def run_pieces(arguments: argparse.Namespace) -> None:
    """Train the pieces without results, while there is time."""
    RESULTS.mkdir(exist_ok=True)
    for piece in _pending_pieces(arguments, ""):
        store_data_means(piece, arguments.folder.absolute())
        result = train(piece, arguments.folder.absolute(), arguments.rllib)
        _append(results_file(piece.environment), result)
        returns = result["evaluations"][-1]["returns"]
        print(*piece, f"{sum(returns) / len(returns):.1f}", f"{result['cpu_seconds']} s", flush=True)


def store_data_means(piece: Piece, folder: Path) -> None:
    """Store the mean returns of the data of a piece's seed.

    Raises:
        SystemExit: the seed's other pieces were trained on other data. CPUs of another kind round differently, so SAC,
            if trained again there, plays differently. A random policy's data are the same everywhere.
    """
    file = RESULTS / f"{piece.environment}-data.json"
    stored_means = json.loads(file.read_text()) if file.exists() else {}
    means = compute_means(piece.environment, folder)
    expected_means = stored_means.setdefault(str(piece.seed), means)
    if expected_means[piece.data] != means[piece.data]:
        sys.exit(
            f"{piece.environment}: the {piece.data} data in {folder} are not those of seed {piece.seed}'s other "
            f"trainings (mean return {means[piece.data]}, expected {expected_means[piece.data]}). Continue on the "
            "machine with those data, or remove the seed's results."
        )
    file.write_text(json.dumps(stored_means, indent=2) + "\n")


@functools.cache
def compute_means(environment: str, folder: Path) -> dict[str, float]:
    """Return the mean return of each of an environment's data, by its name."""
    return {
        data: float(compute_returns(folder / environment.removesuffix(DEFAULTS) / data).mean())
        for data in ENVIRONMENTS[environment].data
    }


def judge_pieces(arguments: argparse.Namespace) -> None:
    """Judge Hindcast's policies without judgements, while there is time."""
    folder = arguments.folder.absolute()
    for piece in _pending_pieces(arguments, JUDGES):
        if piece.who == OURS and piece.algorithm not in UNJUDGED:
            judgement = judge(piece, ENVIRONMENTS[piece.environment], folder)
            _append(results_file(piece.environment, JUDGES), judgement)
            print(*piece, f"{judgement['truth']:.1f}", f"{judgement['cpu_seconds']} s", flush=True)


def _pending_pieces(arguments: argparse.Namespace, suffix: str) -> Iterator[Piece]:
    """Yield the pieces without a result, while there is time; see `results_file` for `suffix`."""
    torch.set_num_threads(1)
    deadline = time.monotonic() + 60 * arguments.minutes
    for piece in all_pieces():
        if time.monotonic() > deadline:
            return
        if set(arguments.only) <= set(map(str, piece)) and piece not in load_finished(
            piece.environment, suffix
        ):
            yield piece


def load_finished(environment: str, suffix: str) -> set[Piece]:
    """Return the pieces that have results."""
    file = results_file(environment, suffix)
    lines = file.read_text().splitlines() if file.exists() else []
    return {Piece(**{name: result[name] for name in Piece._fields}) for result in map(json.loads, lines)}


def results_file(environment: str, suffix: str = "") -> Path:
    """Return the file of an environment's results, one per line; the suffix `JUDGES` is that of judgements."""
    return RESULTS / f"{environment}{suffix}.jsonl"


def _append(file: Path, result: dict[str, Any]) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(result) + "\n")


def write_table(_arguments: argparse.Namespace) -> None:
    """Write the page and its pictures from all results."""
    from table import write_page  # matplotlib takes seconds

    write_page(RESULTS)


if __name__ == "__main__":
    main()
