"""The scoreboard: every algorithm on data of our SAC, d3rlpy and RLlib on the same files with as many updates.

    python benchmarks/scoreboard data FOLDER [pendulum hopper halfcheetah]
    python benchmarks/scoreboard run FOLDER --rllib PYTHON [--minutes 60] [--only Hindcast pendulum medium IQL]
    python benchmarks/scoreboard judge FOLDER [--minutes 60] [--only pendulum medium IQL]
    python benchmarks/scoreboard table

`data` makes the recordings: a minute of CPU time for Pendulum; the others need `gymnasium[mujoco]` and half an hour.
`run` trains the pieces that `results/` does not have, with one thread, until the minutes are over: called again, it
resumes. `judge` does the same with estimates: it trains our policies again, keeps them in FOLDER, and judges each by
recorded episodes that it was not trained on. `table` writes docs/scoreboard.md and its picture from `results/`.
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
from data import make, returns
from judging import judge
from tasks import ENVIRONMENTS, JUDGES, OURS, UNJUDGED, Piece, pieces
from training import train

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """One of the four."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    data = commands.add_parser("data")
    data.add_argument("folder", type=Path)
    data.add_argument("environments", nargs="*", default=list(ENVIRONMENTS), help="all if none is named")
    data.set_defaults(carry_out=make_data)
    run = commands.add_parser("run")
    run.add_argument("folder", type=Path)
    run.add_argument("--rllib", required=True, help="the Python that has both")
    run.add_argument("--minutes", type=float, default=60.0)
    run.add_argument("--only", nargs="*", default=[], help="names that a piece must have, such as IQL")
    run.set_defaults(carry_out=run_pieces)
    judged = commands.add_parser("judge")
    judged.add_argument("folder", type=Path)
    judged.add_argument("--minutes", type=float, default=60.0)
    judged.add_argument("--only", nargs="*", default=[], help="names that a piece must have, such as IQL")
    judged.set_defaults(carry_out=judge_pieces)
    table = commands.add_parser("table")
    table.set_defaults(carry_out=write_table)
    arguments = parser.parse_args()
    arguments.carry_out(arguments)


def make_data(arguments: argparse.Namespace) -> None:
    """Make the data of the named environments."""
    for name in arguments.environments:
        make(name, arguments.folder.absolute())


def run_pieces(arguments: argparse.Namespace) -> None:
    """Those that are still to be trained, while there is time."""
    RESULTS.mkdir(exist_ok=True)
    for piece in _open(arguments, ""):
        keep_means(piece, arguments.folder.absolute())
        result = train(piece, arguments.folder.absolute(), arguments.rllib)
        _append(file_of(piece.environment), result)
        returns = result["evaluations"][-1]["returns"]
        print(*piece, f"{sum(returns) / len(returns):.1f}", f"{result['cpu_seconds']} s", flush=True)


def keep_means(piece: Piece, folder: Path) -> None:
    """Write down what a piece's data earn.

    Raises:
        SystemExit: its seed's other pieces were trained on other data. CPUs of another kind round otherwise, and SAC,
            trained again there, plays otherwise. A random policy's data are the same everywhere.
    """
    file = RESULTS / f"{piece.environment}-data.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    means = means_of(piece.environment, folder)
    known = kept.setdefault(str(piece.seed), means)
    if known[piece.data] != means[piece.data]:
        sys.exit(
            f"{piece.environment}: the {piece.data} data in {folder} is not what seed {piece.seed} was trained on so "
            f"far (a mean return of {means[piece.data]}, not {known[piece.data]}). Go on where that data is, or remove "
            "the seed's results."
        )
    file.write_text(json.dumps(kept, indent=2) + "\n")


@functools.cache
def means_of(environment: str, folder: Path) -> dict[str, float]:
    """The mean return of each of an environment's data."""
    return {
        data: float(returns(folder / environment / data).mean()) for data in ENVIRONMENTS[environment].data
    }


def judge_pieces(arguments: argparse.Namespace) -> None:
    """Those of ours that are still to be judged, while there is time."""
    folder = arguments.folder.absolute()
    for piece in _open(arguments, JUDGES):
        if piece.who == OURS and piece.algorithm not in UNJUDGED:
            found = judge(piece, ENVIRONMENTS[piece.environment], folder)
            _append(file_of(piece.environment, JUDGES), found)
            print(*piece, f"{found['truth']:.1f}", f"{found['cpu_seconds']} s", flush=True)


def _open(arguments: argparse.Namespace, kind: str) -> Iterator[Piece]:
    """Pieces without a result of the kind, while there is time."""
    torch.set_num_threads(1)
    ends = time.monotonic() + 60 * arguments.minutes
    for piece in pieces():
        if time.monotonic() > ends:
            return
        if set(arguments.only) <= set(map(str, piece)) and piece not in load_finished(
            piece.environment, kind
        ):
            yield piece


def load_finished(environment: str, kind: str) -> set[Piece]:
    """The pieces whose results are there."""
    file = file_of(environment, kind)
    lines = file.read_text().splitlines() if file.exists() else []
    return {Piece(**{name: found[name] for name in Piece._fields}) for found in map(json.loads, lines)}


def file_of(environment: str, kind: str = "") -> Path:
    """Return the file of an environment's results of a kind, one per line."""
    return RESULTS / f"{environment}{kind}.jsonl"


def _append(file: Path, found: dict[str, Any]) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(found) + "\n")


def write_table(_arguments: argparse.Namespace) -> None:
    """From all results."""
    from table import write  # matplotlib takes seconds

    write(RESULTS)


if __name__ == "__main__":
    main()
