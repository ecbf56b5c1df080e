"""Write the HTML pages of a training, a recording and a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory

from hindcast import formatting
from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.datasets.inspection.sample import SAMPLE_STEPS
from hindcast.datasets.inspection.summarising import summarise
from hindcast.datasets.inspection.summary import ObservationLeaf, Summary
from hindcast.datasets.inspection.summary_text import describe_coverage, make_facts
from hindcast.datasets.opening import open_dataset
from hindcast.datasets.prepare.opening import OpenedData, open_data
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.reading_text import as_options, as_yaml
from hindcast.errors import UserError
from hindcast.formats.dataset_folder.commits import read_exported_manifest
from hindcast.formats.dataset_folder.manifest import FOLDER, Manifest
from hindcast.formats.entries import count_episodes
from hindcast.report.canvas import Picture
from hindcast.report.curves import Curves
from hindcast.report.data_plots import coverage_pictures, data_pictures
from hindcast.report.events import Outcome
from hindcast.report.page import (
    REPORT_FILE,
    Command,
    Page,
    ProblemRow,
    Section,
    Table,
    Tile,
    warn_on_failure,
    write_page,
    write_single_file,
)
from hindcast.report.plots import (
    estimate_picture,
    expert_picture,
    loss_picture,
    return_picture,
    time_picture,
    value_picture,
)
from hindcast.report.results import read_results
from hindcast.report.rollout import rollout_picture
from hindcast.report.text import (
    RecordedData,
    checkpoint_paths,
    checkpoint_table,
    combine_returns,
    data_table,
    network_table,
    recording_commands,
    recording_tiles,
    resource_yaml,
    training_commands,
    training_tiles,
)
from hindcast.storage.location import Location, resolve

_EXPERT_FOLDER = f"{FOLDER}/policy"


@warn_on_failure
def write_training_report(
    resource: OfflineTraining,
    outcome: Outcome,
    inputs: Mapping[str, OpenedData | None],
    readings: Sequence[Reading],
) -> str:
    """Write `report.html` and `plots/*.png` into a training's run folder, and return the report's path.

    If the outcome is AlreadyFinished, an existing report is kept. If writing fails, a warning is logged, and the result
    is None.

    Args:
        resource: the training.
        outcome: outcome of the run; its `metrics` name the checkpoints.
        inputs: path of each dataset -> its opened data; None if it is not open yet. A dataset that cannot be opened is
            reported as a problem.
        readings: how the datasets are read, for commands.
    """
    folder = resolve(outcome.folder)
    if (earlier_report := _earlier_report(folder, outcome)) is not None:
        return earlier_report
    curves = Curves(read_results(folder))
    datasets, problems = _summarise_inputs(inputs)
    stop = resource.spec.stop.episode_return_mean
    pictures = {
        "estimate": estimate_picture(curves, stop=resource.spec.stop.estimated_return),
        "return": return_picture(curves, stop=stop, recorded=combine_returns(datasets)),
        "loss": loss_picture(curves),
        "value": value_picture(curves),
        "time": time_picture(curves),
    }
    best, last = checkpoint_paths(outcome.metrics)
    if curves.evaluation is not None:
        pictures["rollout"] = rollout_picture(resource, best or last)
    page = Page(
        kind=f"{resource.kind}, algorithm {resource.spec.algorithm}",
        name=resource.metadata.name,
        outcome=outcome.message,
        tiles=training_tiles(curves, stop, datasets),
        sections=[Section("How the training went", pictures), *_data_sections(datasets)],
        tables=[
            checkpoint_table(folder, outcome.metrics),
            *network_table(outcome.metrics),
            data_table(datasets),
        ],
        commands=training_commands(folder, resource, best or last, readings),
        spec=resource_yaml(resource),
        problems=problems,
    )
    return write_page(folder, page)


@warn_on_failure
def write_recording_report(resource: OfflineRecording, outcome: Outcome) -> str:
    """Write `report.html` and `plots/*.png` into the `_hindcast` folder of a dataset, and return the report's path.

    If the outcome is AlreadyFinished, an existing report is kept. If writing fails, a warning is logged, and the result
    is None.
    """
    folder = resolve(outcome.folder)
    report_folder = folder.child(FOLDER)
    if (earlier_report := _earlier_report(report_folder, outcome)) is not None:
        return earlier_report
    datasets, problems = _summarise_inputs({outcome.folder: None})
    page = Page(
        kind=f"{resource.kind} in {resource.spec.environment.id}",
        name=resource.metadata.name,
        outcome=outcome.message,
        tiles=[tile for dataset in datasets for tile in recording_tiles(dataset.summary)],
        sections=[
            *(Section("What was recorded", data_pictures(dataset.summary)) for dataset in datasets),
            *_expert_sections(resource, folder),
        ],
        tables=[data_table(datasets)],
        commands=recording_commands(folder, has_trained_expert=resource.spec.policy.train is not None),
        spec=resource_yaml(resource),
        problems=problems,
    )
    return write_page(report_folder, page)


def _earlier_report(folder: Location, outcome: Outcome) -> str | None:
    """Return the path of an existing report if nothing was done since it was written, else None."""
    report = folder.child(REPORT_FILE)
    return str(report) if outcome.state == "AlreadyFinished" and report.exists() else None


def _summarise_inputs(inputs: Mapping[str, OpenedData | None]) -> tuple[list[RecordedData], list[ProblemRow]]:
    """Return the datasets with their summaries, and the problems of all datasets."""
    datasets, problems = [], []
    for path, opened_data in inputs.items():
        try:
            summary = (
                _summarise_folder(resolve(path))
                if opened_data is None
                else summarise(opened_data.with_all_columns())
            )
        except UserError as error:  # not fatal: the run itself succeeded, perhaps with the user's own reader
            problems.append(ProblemRow("error", str(error)))
            continue
        datasets.append(RecordedData(path, summary))
        problems += [
            ProblemRow(problem.severity, f"{path}: {problem.message}") for problem in summary.problems
        ]
    return datasets, problems


def _data_sections(datasets: Sequence[RecordedData]) -> list[Section]:
    """Return a section for each dataset, with pictures of its data and its expert.

    With several datasets, the pictures' file names are numbered.
    """
    sections = []
    for index, dataset in enumerate(datasets):
        suffix = f"-{index}" if len(datasets) > 1 else ""
        pictures = {
            **data_pictures(dataset.summary),
            "expert-return": expert_picture(_expert_curves(resolve(dataset.name))),
        }
        pictures_by_file = {f"data-{name}{suffix}": picture for name, picture in pictures.items()}
        sections.append(Section(f"The data: {dataset.name}", pictures_by_file))
    return sections


def _expert_sections(resource: OfflineRecording, folder: Location) -> list[Section]:
    train = resource.spec.policy.train
    if train is None:
        return []
    curves = _expert_curves(folder)
    pictures: dict[str, Picture | None] = {
        "expert-return": expert_picture(
            curves, stop=train.stop.episode_return_mean, algorithm=train.algorithm
        ),
        "expert-time": time_picture(curves),
        "expert-loss": loss_picture(curves),
    }
    return [Section("How the expert learned", pictures)]


def _expert_curves(dataset: Location) -> Curves:
    return Curves(read_results(dataset.child(_EXPERT_FOLDER)))


def _summarise_folder(folder: Location) -> Summary:
    """Summarise a dataset, or a recording in an exported layout.

    Raises:
        DataError: the folder cannot be opened.
        StorageError: the storage fails or denies access.
    """
    exported_manifest = read_exported_manifest(folder)
    return (
        summarise(open_dataset(folder))
        if exported_manifest is None
        else _summarise_exported(folder, exported_manifest)
    )


def _summarise_exported(folder: Location, manifest: Manifest) -> Summary:
    """Summarise an exported recording: sizes from all files, other statistics from a sample of the files."""
    files = manifest.files
    episodes, timesteps = count_episodes(files), sum(file.timesteps for file in files)
    sample = files[:: max(1, timesteps // SAMPLE_STEPS)]
    # Not in the user's cache, where a later reading of the whole recording could find the prepared sample.
    with TemporaryDirectory() as cache:
        reading = Reading(tuple(folder.child(file.path) for file in sample))
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


def write_dataset_page(file: str, reading: Reading, summary: Summary) -> str:
    """Write a dataset's page as one self-contained HTML file.

    Args:
        file: path or URI of the file to write.
        reading: the dataset's locations, as the user wrote them, and how they were read.
        summary: summary of the dataset.

    Returns:
        The file's path or URI.

    Raises:
        StorageError: the file cannot be written.
    """
    facts_by_label = make_facts(summary)
    if summary.coverage is not None:
        facts_by_label["coverage"] = describe_coverage(summary.coverage)
    page = Page(
        kind="Dataset",
        name=reading.name,
        outcome=_dataset_outcome(summary),
        tiles=_dataset_tiles(summary),
        sections=[Section("What is in the data", {**data_pictures(summary), **coverage_pictures(summary)})],
        tables=[Table("Facts", (), list(facts_by_label.items())), *_range_tables(summary)],
        commands=_dataset_commands(reading),
        problems=[ProblemRow(problem.severity, problem.message) for problem in summary.problems],
    )
    return write_single_file(resolve(file), page)


def _dataset_outcome(summary: Summary) -> str:
    problems = _count_problems(summary)
    return problems if summary.verdict is None else f"{summary.verdict.sentence}. {problems}"


def _count_problems(summary: Summary) -> str:
    counts = [
        formatting.plural(count, severity)
        for severity in ("error", "warning")
        if (count := sum(problem.severity == severity for problem in summary.problems))
    ]
    return f"{' and '.join(counts)} found" if counts else "No errors and no warnings"


def _dataset_tiles(summary: Summary) -> list[Tile]:
    tiles = recording_tiles(summary)
    if summary.coverage is not None:
        tiles.append(
            Tile(
                "Cells visited",
                formatting.as_percentage(summary.coverage.occupied_share),
                "of the plane of observations",
            )
        )
    if summary.zero_rewards is not None:
        tiles.append(Tile("Rewards that are 0", formatting.as_percentage(summary.zero_rewards)))
    return tiles


def _range_tables(summary: Summary) -> list[Table]:
    columns = ("dimension", "min", "max", "of the space", "missing")
    return [
        Table(
            f"Ranges of {leaf.name}",
            columns,
            list(_range_rows(leaf)),
        )
        for leaf in summary.observations
        if not leaf.is_image
    ]


def _range_rows(leaf: ObservationLeaf) -> list[tuple[str, ...]]:
    """Return the rows of five columns: dimension, minimum, maximum, share of the space, and of missing values."""
    columns = (leaf.dimension_names, leaf.low, leaf.high, leaf.share_of_space, leaf.missing)
    return [
        (
            name,
            _format_bound(low),
            _format_bound(high),
            "no bounds" if share is None else formatting.as_percentage(share),
            formatting.as_percentage(missing) if missing else "none",
        )
        for name, low, high, share, missing in zip(*columns, strict=True)
    ]


def _format_bound(value: float | None) -> str:
    return "not finite" if value is None else formatting.significant(value)


def _dataset_commands(reading: Reading) -> list[Command]:
    options = as_options(reading)
    entries = ["\n    ".join(entry) for entry in as_yaml(reading)]
    inputs = "\n".join(f"  - {entry}" for entry in entries)
    return [
        Command("Write a first training on the data", f"hindcast init {options}"),
        Command("Check every value, for CI", f"hindcast inspect {options} --full --strict"),
        Command("Train on the data: add this to the spec of an OfflineTraining", f"input:\n{inputs}"),
    ]
