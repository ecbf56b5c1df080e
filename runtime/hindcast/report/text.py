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
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.reading_text import as_options
from hindcast.report.curves import Curves
from hindcast.report.page import Command, Table, Tile
from hindcast.report.plots import RecordedReturns
from hindcast.report.results import RESULTS_FILE
from hindcast.storage.location import Location


@dataclass(frozen=True)
class RecordedData:
    """A dataset, as the user calls it, and its summary."""

    name: str
    summary: Summary


def combine_returns(inputs: Sequence[RecordedData]) -> RecordedReturns | None:
    """Combine the returns of all datasets; None if a dataset has no returns, or without datasets."""
    distributions = [dataset.summary.returns for dataset in inputs if dataset.summary.returns is not None]
    if not distributions or len(distributions) < len(inputs):
        return None
    num_episodes = sum(dataset.summary.episodes for dataset in inputs)
    weights = [dataset.summary.episodes / num_episodes for dataset in inputs]
    pairs = list(zip(weights, distributions, strict=True))
    mean = sum(weight * distribution.mean for weight, distribution in pairs)
    variance = sum(
        weight * (distribution.std**2 + (distribution.mean - mean) ** 2) for weight, distribution in pairs
    )
    minimum = min(distribution.min for distribution in distributions)
    maximum = max(distribution.max for distribution in distributions)
    return RecordedReturns(mean, variance**0.5, minimum, maximum)


def training_tiles(curves: Curves, stop: float | None, inputs: Sequence[RecordedData]) -> list[Tile]:
    """Return the key numbers of a training.

    Args:
        curves: curves of the run.
        stop: return at which the training stops; None if it does not stop by return.
        inputs: the datasets that the policy is trained on.
    """
    tiles = []
    if (curve := curves.evaluation) is not None:
        best = curve.best_index
        note = f"evaluated at iteration {curve.x[best]:.0f}"
        tiles.append(Tile("Best mean return", formatting.significant(curve.mean[best]), note))
    if (estimate := curves.estimate) is not None:
        note = f"{estimate.name}; recorded policy: {formatting.significant(estimate.behaviour)}"
        tiles.append(Tile("Estimated return", formatting.significant(estimate.mean[-1]), note))
    if stop is not None:
        tiles.append(Tile("Target return", formatting.significant(stop)))
    if (recorded_returns := combine_returns(inputs)) is not None:
        note = f"± {formatting.significant(recorded_returns.deviation)}"
        tiles.append(Tile("Recorded return", formatting.significant(recorded_returns.mean), note))
    tiles.append(Tile("Iterations", formatting.integer(curves.iterations), _epochs_note(curves)))
    if curves.timesteps is not None:
        tiles.append(Tile("Timesteps trained on", formatting.count(curves.timesteps), _updates_note(curves)))
    if curves.seconds is not None:
        tiles.append(Tile("Time", formatting.duration(curves.seconds), _pace_note(curves)))
    return tiles


def _epochs_note(curves: Curves) -> str:
    epochs = curves.last("epoch")
    if epochs is None:
        return ""
    return "1 epoch" if epochs == 1 else f"{formatting.significant(epochs)} epochs"


def _updates_note(curves: Curves) -> str:
    updates = curves.last("num_updates_lifetime")
    return "" if updates is None else f"in {formatting.plural(updates, 'update')}"


def _pace_note(curves: Curves) -> str:
    if not len(curves.speed.y):
        return ""
    return f"{formatting.count(float(np.median(curves.speed.y)))} timesteps per second in updates"


def recording_tiles(summary: Summary) -> list[Tile]:
    """Return the key numbers of a dataset."""
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
    """Return a table with a row for each dataset."""
    columns = ("dataset", "episodes", "timesteps", "size", "return", "length", "observations", "actions")
    return Table("Data", columns, [_data_row(dataset) for dataset in inputs])


def _data_row(dataset: RecordedData) -> Sequence[str]:
    summary = dataset.summary
    return (
        dataset.name,
        formatting.integer(summary.episodes),
        formatting.integer(summary.timesteps),
        formatting.size(summary.bytes),
        _mean_text(summary.returns),
        _mean_text(summary.lengths),
        formatting.space(summary.observation_space),
        formatting.space(summary.action_space),
    )


def _mean_text(distribution: ValueDistribution | None) -> str:
    if distribution is None:
        return "not recorded"
    return f"{formatting.significant(distribution.mean)} ± {formatting.significant(distribution.std)}"


def checkpoint_table(folder: Location, metrics: Mapping[str, Any]) -> Table:
    """Return a table of the run's files, given the run folder and the metrics of the training's outcome."""
    best, last = checkpoint_paths(metrics)
    rows = [
        ("best checkpoint", best or "none evaluated"),
        ("latest checkpoint", last or "none"),
        ("run folder", str(folder)),
        ("results", str(folder.child(RESULTS_FILE))),
    ]
    return Table("Files of this run", (), rows)


def network_table(metrics: Mapping[str, Any]) -> list[Table]:
    """Return a table of the networks in the metrics of a training's outcome; no table if it has none."""
    networks = metrics.get("networks") or {}
    return [Table("Networks", (), list(networks.items()))] if networks else []


def checkpoint_paths(metrics: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the paths of the best and the latest checkpoint, given the metrics of a training's outcome."""
    best = metrics.get("best") or {}
    return best.get("path"), metrics.get("checkpoint")


def training_commands(
    folder: Location, resource: OfflineTraining, checkpoint: str | None, readings: Sequence[Reading]
) -> list[Command]:
    """Return the commands that a user may type after a training.

    Args:
        folder: the run folder.
        resource: the training.
        checkpoint: path of the best checkpoint, or of the latest if none was evaluated; None without a checkpoint.
        readings: the training's recorded inputs.
    """
    commands = []
    if checkpoint is not None:
        evaluation = resource.spec.evaluation
        explore = evaluation is not None and evaluation.judges_samples
        options = "--episodes 100"
        if resource.spec.environment is None:
            options = f"--data {readings[0].name if readings else 'DATASET'}"
        commands += [
            Command("Evaluate the policy", f"hindcast evaluate {checkpoint} {options}"),
            Command("Export the policy for an application", f"hindcast export {checkpoint} FOLDER"),
            Command("Use the policy in Python", python_code(checkpoint, explore)),
            Command(
                "Continue training from the checkpoint: add this to the spec of a new resource, or of a higher "
                "spec.revision",
                f"initialCheckpoint: {checkpoint}",
            ),
        ]
    commands += [
        Command("Train longer: raise spec.stop in the resource's YAML file, then", "hindcast run FILE"),
        Command(
            "Train again: change the resource's YAML file, raise spec.revision, then", "hindcast run FILE"
        ),
        Command("Watch the curves", f"tensorboard --logdir {folder.child('tensorboard')}"),
    ]
    data_options = dict.fromkeys(map(as_options, readings))
    return commands + [Command("Look at the data", f"hindcast inspect {options}") for options in data_options]


def python_code(policy: str, explore: bool) -> str:
    """Return Python code that loads a policy from its location and acts, by sampled actions with `explore`."""
    arguments = "obs, explore=True" if explore else "obs"
    return f'from hindcast import Policy\n\npolicy = Policy.load("{policy}")\naction = policy({arguments})'


def recording_commands(folder: Location, *, has_trained_expert: bool) -> list[Command]:
    """Return the commands that a user may type after a recording; its dataset is in `folder`."""
    commands = [
        Command("Look at the data", f"hindcast inspect {folder}"),
        Command(
            "Train on the data: add this to the spec of an OfflineTraining", f"input:\n  - path: {folder}"
        ),
        Command(
            "Record again: change the resource's YAML file, including output.path, then", "hindcast run FILE"
        ),
    ]
    if has_trained_expert:
        commands.append(Command("Evaluate the expert", f"hindcast evaluate {folder} --episodes 100"))
    return commands


def resource_yaml(resource: OfflineTraining | OfflineRecording) -> str:
    """Return a resource as YAML, with the fields that the user set."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    buffer = io.StringIO()
    yaml.dump(document_of(resource), buffer)
    return buffer.getvalue()
