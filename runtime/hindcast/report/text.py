"""The text of a report: key numbers, tables, commands, the resource as YAML."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hindcast import formatting
from hindcast.api import OfflineRecording, OfflineTraining, document_of
from hindcast.datasets.inspection.statistics import ValueDistribution
from hindcast.datasets.inspection.summary import Summary
from hindcast.report.curves import Curves
from hindcast.report.page import Command, Table, Tile
from hindcast.report.plots import RecordedReturns
from hindcast.report.results import RESULTS_FILE
from hindcast.storage.location import Location


@dataclass(frozen=True)
class RecordedData:
    """A dataset and what is in it."""

    location: Location
    summary: Summary


def reference(inputs: Sequence[RecordedData]) -> RecordedReturns | None:
    """Returns of all datasets together; None if one has none."""
    spreads = [one.summary.returns for one in inputs if one.summary.returns is not None]
    if not spreads or len(spreads) < len(inputs):
        return None
    episodes = sum(one.summary.episodes for one in inputs)
    weights = [one.summary.episodes / episodes for one in inputs]
    pairs = list(zip(weights, spreads, strict=True))
    mean = sum(weight * spread.mean for weight, spread in pairs)
    square = sum(weight * (spread.std**2 + (spread.mean - mean) ** 2) for weight, spread in pairs)
    return RecordedReturns(mean, square**0.5, min(s.min for s in spreads), max(s.max for s in spreads))


def training_tiles(curves: Curves, stop: float | None, inputs: Sequence[RecordedData]) -> list[Tile]:
    tiles = []
    if (curve := curves.evaluation) is not None:
        best = curve.best
        note = f"evaluated at iteration {curve.x[best]:.0f}"
        tiles.append(Tile("Best mean return", formatting.significant(curve.mean[best]), note))
    if (estimate := curves.estimate) is not None:
        note = f"{estimate.name}; recorded policy: {formatting.significant(estimate.behaviour)}"
        tiles.append(Tile("Estimated return", formatting.significant(estimate.mean[-1]), note))
    if stop is not None:
        tiles.append(Tile("Target return", formatting.significant(stop)))
    if (recorded := reference(inputs)) is not None:
        note = f"± {formatting.significant(recorded.deviation)}"
        tiles.append(Tile("Recorded return", formatting.significant(recorded.mean), note))
    tiles.append(Tile("Iterations", formatting.integer(curves.iterations), _epochs(curves)))
    if curves.timesteps is not None:
        tiles.append(Tile("Timesteps trained on", formatting.count(curves.timesteps), _updates(curves)))
    if curves.seconds is not None:
        tiles.append(Tile("Time", formatting.duration(curves.seconds), _pace(curves)))
    return tiles


def _epochs(curves: Curves) -> str:
    epochs = curves.last("epoch")
    return "" if epochs is None else "1 epoch" if epochs == 1 else f"{formatting.significant(epochs)} epochs"


def _updates(curves: Curves) -> str:
    updates = curves.last("num_updates_lifetime")
    return "" if updates is None else f"in {formatting.plural(updates, 'update')}"


def _pace(curves: Curves) -> str:
    if not len(curves.speed.y):
        return ""
    return f"{formatting.count(float(np.median(curves.speed.y)))} timesteps per second in updates"


def recording_tiles(summary: Summary) -> list[Tile]:
    tiles = [
        Tile("Episodes", formatting.integer(summary.episodes)),
        Tile("Timesteps", formatting.integer(summary.timesteps)),
    ]
    if summary.returns is not None:
        note = f"from {formatting.significant(summary.returns.min)} to {formatting.significant(summary.returns.max)}"
        tiles.append(Tile("Mean return", formatting.significant(summary.returns.mean), note))
    if summary.lengths is not None:
        tiles.append(Tile("Mean length", formatting.significant(summary.lengths.mean), "timesteps"))
    tiles.append(
        Tile("Size", formatting.size(summary.bytes), f"in {formatting.plural(summary.files, 'file')}")
    )
    return tiles


def data_table(inputs: Sequence[RecordedData]) -> Table:
    """A row for each dataset."""
    columns = ("dataset", "episodes", "timesteps", "size", "return", "length", "observations", "actions")
    return Table("Data", columns, [_data_row(one) for one in inputs])


def _data_row(one: RecordedData) -> Sequence[str]:
    summary = one.summary
    return (
        str(one.location),
        formatting.integer(summary.episodes),
        formatting.integer(summary.timesteps),
        formatting.size(summary.bytes),
        _mean(summary.returns),
        _mean(summary.lengths),
        formatting.space(summary.observation_space),
        formatting.space(summary.action_space),
    )


def _mean(spread: ValueDistribution | None) -> str:
    if spread is None:
        return "not recorded"
    return f"{formatting.significant(spread.mean)} ± {formatting.significant(spread.std)}"


def checkpoint_table(folder: Location, metrics: Mapping[str, Any]) -> Table:
    """Where the run left what."""
    best, last = checkpoints(metrics)
    rows = [
        ("best checkpoint", best or "none evaluated"),
        ("latest checkpoint", last or "none"),
        ("run folder", str(folder)),
        ("results", str(folder.child(RESULTS_FILE))),
    ]
    return Table("Files of this run", (), rows)


def checkpoints(metrics: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Best and latest checkpoint of a training's outcome."""
    best = metrics.get("best") or {}
    return best.get("path"), metrics.get("checkpoint")


def training_commands(
    folder: Location, resource: OfflineTraining, checkpoint: str | None, inputs: Sequence[str]
) -> list[Command]:
    """What to do with a trained policy."""
    commands = []
    if checkpoint is not None:
        where = "" if resource.spec.environment is not None else " --env ENVIRONMENT"
        commands += [
            Command("Evaluate the policy", f"hindcast evaluate {checkpoint}{where} --episodes 100"),
            Command(
                "Use it in Python",
                f'import hindcast\n\npolicy = hindcast.Policy.load("{checkpoint}")\naction = policy(obs)',
            ),
            Command(
                "Continue training from it: add this to the spec of a new resource, or of a higher spec.revision",
                f"initialCheckpoint: {checkpoint}",
            ),
        ]
    commands += [
        Command("Train longer: raise spec.stop in its YAML file, then", "hindcast run FILE"),
        Command("Run it again: change its YAML file, raise spec.revision, then", "hindcast run FILE"),
        Command("Watch the curves", f"tensorboard --logdir {folder.child('tensorboard')}"),
    ]
    return commands + [Command("Look at the data", f"hindcast inspect {path}") for path in inputs]


def recording_commands(folder: Location, *, trained: bool) -> list[Command]:
    """What to do with recorded data."""
    commands = [
        Command("Look at the data", f"hindcast inspect {folder}"),
        Command("Train on it: add this to the spec of an OfflineTraining", f"input:\n  - path: {folder}"),
        Command("Record again: change its YAML file, including output.path, then", "hindcast run FILE"),
    ]
    if trained:
        commands.append(Command("Evaluate the expert", f"hindcast evaluate {folder} --episodes 100"))
    return commands


def resource_yaml(resource: OfflineTraining | OfflineRecording) -> str:
    """The resource as it was written."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    buffer = io.StringIO()
    yaml.dump(document_of(resource), buffer)
    return buffer.getvalue()
