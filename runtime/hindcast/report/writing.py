"""The HTML pages of a training, a recording and a dataset: what came out, or is in it, in numbers and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory

from hindcast import formatting
from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.datasets.inspection.sample import SAMPLE_STEPS
from hindcast.datasets.inspection.summarising import summarise
from hindcast.datasets.inspection.summary import Summary
from hindcast.datasets.inspection.summary_text import describe_coverage, facts
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import OpenedData, open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.errors import UserError
from hindcast.formats.dataset_folder.commits import read_exported_manifest
from hindcast.formats.dataset_folder.manifest import Manifest
from hindcast.report.canvas import Picture
from hindcast.report.curves import Curves
from hindcast.report.data_plots import coverage_plots, data_plots
from hindcast.report.events import Outcome
from hindcast.report.page import (
    REPORT_FILE,
    Command,
    Page,
    ProblemRow,
    Section,
    Table,
    Tile,
    write_alone,
    write_page,
)
from hindcast.report.plots import estimate_plot, expert_plot, loss_plot, return_plot, time_plot, value_plot
from hindcast.report.results import read_results
from hindcast.report.text import (
    RecordedData,
    checkpoint_table,
    checkpoints,
    data_table,
    recording_commands,
    recording_tiles,
    reference,
    resource_yaml,
    training_commands,
    training_tiles,
)
from hindcast.storage.location import Location, resolve

STATE_FOLDER = "_hindcast"
_EXPERT = f"{STATE_FOLDER}/policy"


def write_training_report(
    resource: OfflineTraining, outcome: Outcome, inputs: Mapping[str, OpenedData | None]
) -> str:
    """Write `report.html` and `plots/*.png` into a training's run folder, from its `results.jsonl`; the report's path.

    A report that an earlier call wrote stays where the outcome is AlreadyFinished.

    Args:
        outcome: how it ended; `metrics` name the checkpoints.
        inputs: what was opened of each dataset, by its path; None where it is still to be opened. One that cannot be
            opened is reported as a problem.
    """
    folder = resolve(outcome.folder)
    if (written := _already_written(folder, outcome)) is not None:
        return written
    curves = Curves(read_results(folder))
    recorded, problems = _open(inputs)
    stop = resource.spec.stop.episode_return_mean
    how = {
        "estimate": estimate_plot(curves, stop=resource.spec.stop.estimated_return),
        "return": return_plot(curves, stop=stop, recorded=reference(recorded)),
        "loss": loss_plot(curves),
        "value": value_plot(curves),
        "time": time_plot(curves),
    }
    best, last = checkpoints(outcome.metrics)
    page = Page(
        kind=f"{resource.kind}, algorithm {resource.spec.algorithm}",
        name=resource.metadata.name,
        outcome=outcome.message,
        tiles=training_tiles(curves, stop, recorded),
        sections=[Section("How the training went", how), *_data_sections(recorded)],
        tables=[checkpoint_table(folder, outcome.metrics), data_table(recorded)],
        commands=training_commands(folder, resource, best or last, list(inputs)),
        spec=resource_yaml(resource),
        problems=problems,
    )
    return write_page(folder, page)


def write_recording_report(resource: OfflineRecording, outcome: Outcome) -> str:
    """Write `report.html` and `plots/*.png` into the `_hindcast` folder of a dataset; the report's path.

    A report that an earlier call wrote stays where the outcome is AlreadyFinished.
    """
    folder = resolve(outcome.folder)
    state = folder.child(STATE_FOLDER)
    if (written := _already_written(state, outcome)) is not None:
        return written
    recorded, problems = _open({outcome.folder: None})
    page = Page(
        kind=f"{resource.kind} in {resource.spec.environment.id}",
        name=resource.metadata.name,
        outcome=outcome.message,
        tiles=[tile for one in recorded for tile in recording_tiles(one.summary)],
        sections=[
            *(Section("What was recorded", data_plots(one.summary)) for one in recorded),
            *_expert_sections(resource, folder),
        ],
        tables=[data_table(recorded)],
        commands=recording_commands(folder, trained=resource.spec.policy.train is not None),
        spec=resource_yaml(resource),
        problems=problems,
    )
    return write_page(state, page)


def _already_written(folder: Location, outcome: Outcome) -> str | None:
    report = folder.child(REPORT_FILE)
    return str(report) if outcome.state == "AlreadyFinished" and report.exists() else None


def _open(inputs: Mapping[str, OpenedData | None]) -> tuple[list[RecordedData], list[ProblemRow]]:
    """The datasets with their summaries, and what is wrong with them."""
    recorded, problems = [], []
    for path, opened in inputs.items():
        try:
            summary = _summary_of(resolve(path)) if opened is None else summarise(opened.with_all_columns())
        except UserError as error:  # the run itself succeeded, by the user's own reader perhaps
            problems.append(ProblemRow("error", str(error)))
            continue
        recorded.append(RecordedData(resolve(path), summary))
        problems += [ProblemRow(found.severity, f"{path}: {found.message}") for found in summary.problems]
    return recorded, problems


def _data_sections(recorded: Sequence[RecordedData]) -> list[Section]:
    """Each dataset's pictures and its expert's; file names are numbered where there are several."""
    sections = []
    for index, one in enumerate(recorded):
        suffix = f"-{index}" if len(recorded) > 1 else ""
        pictures = {**data_plots(one.summary), "expert-return": expert_plot(_expert_curves(one.location))}
        named = {f"data-{name}{suffix}": picture for name, picture in pictures.items()}
        sections.append(Section(f"The data: {one.location}", named))
    return sections


def _expert_sections(resource: OfflineRecording, folder: Location) -> list[Section]:
    train = resource.spec.policy.train
    if train is None:
        return []
    curves = _expert_curves(folder)
    pictures: dict[str, Picture | None] = {
        "expert-return": expert_plot(curves, stop=train.stop.episode_return_mean, algorithm=train.algorithm),
        "expert-time": time_plot(curves),
        "expert-loss": loss_plot(curves),
    }
    return [Section("How the expert learned", pictures)]


def _expert_curves(dataset: Location) -> Curves:
    return Curves(read_results(dataset.child(_EXPERT)))


def _summary_of(folder: Location) -> Summary:
    """A summary of a dataset, or of a recording in an exported layout.

    Raises:
        DataError: it cannot be opened.
        StorageError: storage that refuses or fails.
    """
    exported = read_exported_manifest(folder)
    return summarise(open_dataset(folder)) if exported is None else _of_exported(folder, exported)


def _of_exported(folder: Location, manifest: Manifest) -> Summary:
    """Sizes of all files, and the rest of some that are prepared for it and forgotten."""
    files = manifest.files
    episodes, timesteps = sum(file.episodes for file in files), sum(file.timesteps for file in files)
    chosen = files[:: max(1, timesteps // SAMPLE_STEPS)]
    with TemporaryDirectory() as cache:
        reading = Reading(tuple(folder.child(file.path) for file in chosen))
        summary = summarise(open_data(reading, cache=cache))
    return summary.model_copy(
        update={
            "layouts": (manifest.layout,),
            "episodes": episodes,
            "timesteps": timesteps,
            "bytes": manifest.data_spec.array_bytes(timesteps, episodes),
            "stored_bytes": sum(file.bytes for file in files),
            "files": len(files),
        }
    )


def write_dataset_page(file: str, data: Sequence[str], summary: Summary) -> str:
    """Write a dataset's page as one self-contained HTML file.

    Args:
        file: where; a path or a URI.

    Returns:
        The file, as the user wrote it.

    Raises:
        StorageError: it cannot be written.
    """
    known = facts(summary)
    if summary.coverage is not None:
        known["coverage"] = describe_coverage(summary.coverage)
    page = Page(
        kind="Dataset",
        name=", ".join(data),
        outcome=_problems_counted(summary),
        tiles=_tiles(summary),
        sections=[Section("What is in the data", {**data_plots(summary), **coverage_plots(summary)})],
        tables=[Table("Facts", (), list(known.items())), *_ranges(summary)],
        commands=_commands(data),
        problems=[ProblemRow(found.severity, found.message) for found in summary.problems],
    )
    return write_alone(resolve(file), page)


def _problems_counted(summary: Summary) -> str:
    counts = [
        formatting.plural(count, severity)
        for severity in ("error", "warning")
        if (count := sum(problem.severity == severity for problem in summary.problems))
    ]
    return f"{' and '.join(counts)} found" if counts else "No errors and no warnings"


def _tiles(summary: Summary) -> list[Tile]:
    tiles = recording_tiles(summary)
    if summary.coverage is not None:
        tiles.append(
            Tile(
                "Cells visited",
                formatting.as_percentage(summary.coverage.occupied),
                "of the plane of observations",
            )
        )
    if summary.zero_rewards is not None:
        tiles.append(Tile("Rewards that are 0", formatting.as_percentage(summary.zero_rewards)))
    return tiles


def _ranges(summary: Summary) -> list[Table]:
    columns = ("dimension", "min", "max", "of the space")
    return [
        Table(
            f"Ranges of {leaf.name}",
            columns,
            list(_rows(leaf.shown, leaf.low, leaf.high, leaf.share_of_space)),
        )
        for leaf in summary.observations
    ]


def _rows(*columns: Sequence[float | None]) -> list[tuple[str, str, str, str]]:
    return [
        (
            str(index),
            _number(low),
            _number(high),
            "no bounds" if share is None else formatting.as_percentage(share),
        )
        for index, low, high, share in zip(*columns, strict=True)
    ]


def _number(value: float | None) -> str:
    return "not finite" if value is None else formatting.significant(value)


def _commands(data: Sequence[str]) -> list[Command]:
    paths = " ".join(data)
    inputs = "\n".join(f"  - path: {path}" for path in data)
    return [
        Command("Check every value, for CI", f"hindcast inspect {paths} --full --strict"),
        Command("Train on it: add this to the spec of an OfflineTraining", f"input:\n{inputs}"),
    ]
