"""The scoreboard: every algorithm on data of our SAC, and d3rlpy on the same files with as many updates.

    python benchmarks/scoreboard data FOLDER
    python benchmarks/scoreboard run FOLDER --rllib PYTHON [--minutes 60] [--only hindcast pendulum medium IQL]
    python benchmarks/scoreboard table

`data` makes the recordings (a minute of CPU time for Pendulum). `run` trains the pieces that `results/` does not have,
with one thread, until the minutes are over: called again, it goes on. `table` writes docs/scoreboard.md and its picture
from `results/`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from data import make, returns
from tasks import ENVIRONMENTS, Piece, pieces
from training import train

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """One of the three."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    data = commands.add_parser("data")
    data.add_argument("folder", type=Path)
    data.set_defaults(carry_out=make_data)
    run = commands.add_parser("run")
    run.add_argument("folder", type=Path)
    run.add_argument("--rllib", required=True, help="the Python that has d3rlpy")
    run.add_argument("--minutes", type=float, default=60.0)
    run.add_argument("--only", nargs="*", default=[], help="names that a piece must have, such as IQL")
    run.set_defaults(carry_out=run_pieces)
    table = commands.add_parser("table")
    table.set_defaults(carry_out=write_table)
    arguments = parser.parse_args()
    arguments.carry_out(arguments)


def make_data(arguments: argparse.Namespace) -> None:
    """All environments'."""
    RESULTS.mkdir(exist_ok=True)
    for name, environment in ENVIRONMENTS.items():
        make(name, arguments.folder.absolute())
        means = {each: float(returns(arguments.folder / name / each).mean()) for each in environment.data}
        (RESULTS / f"{name}-data.json").write_text(json.dumps(means, indent=2) + "\n")


def run_pieces(arguments: argparse.Namespace) -> None:
    """Those that are still to be trained, while there is time."""
    torch.set_num_threads(1)
    ends = time.monotonic() + 60 * arguments.minutes
    for piece in pieces():
        if time.monotonic() > ends:
            break
        if set(arguments.only) <= set(map(str, piece)) and piece not in finished(piece.environment):
            result = train(piece, arguments.folder.absolute(), arguments.rllib)
            with file_of(piece.environment).open("a") as file:
                file.write(json.dumps(result) + "\n")
            returns = result["evaluations"][-1]["returns"]
            print(*piece, f"{sum(returns) / len(returns):.1f}", f"{result['cpu_seconds']} s", flush=True)


def finished(environment: str) -> set[Piece]:
    """The pieces whose results are there."""
    file = file_of(environment)
    lines = file.read_text().splitlines() if file.exists() else []
    return {Piece(**{name: found[name] for name in Piece._fields}) for found in map(json.loads, lines)}


def file_of(environment: str) -> Path:
    """Where an environment's results stand, a line each."""
    return RESULTS / f"{environment}.jsonl"


def write_table(_arguments: argparse.Namespace) -> None:
    """From all results."""
    from table import write  # matplotlib takes seconds

    write(RESULTS)


if __name__ == "__main__":
    main()
