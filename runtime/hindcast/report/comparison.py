"""Compare the runs of trainings: settings that differ, and a metric's mean and range over the seeds of each setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hindcast import formatting
from hindcast.api import OfflineTraining, validate_resource
from hindcast.api.differences import iterate_leaves
from hindcast.api.options import in_yaml_words, is_custom, options_model
from hindcast.api.training import OfflineTrainingSpec
from hindcast.errors import DataError, SpecError
from hindcast.formats.dataset_folder.folder_owner import OWNER_FILE, read_owner
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.report.canvas import Label, Picture, Theme, draw_end_labels, style_axes
from hindcast.report.curves import F64, Curves, Line, make_line
from hindcast.report.page import Page, Section, Table, write_single_file
from hindcast.report.results import RESULTS_FILE, read_results
from hindcast.storage.location import Location, missing_error, resolve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS: Final = {
    "episodeReturnMean": "mean return in evaluation",
    "estimatedReturn": "return estimated on held-out episodes",
    "validationLoss": "loss on held-out timesteps",
}
"""Metric -> title, the preferred metric first. Metrics of the learner can be compared too, under their own names."""
_INCOMPARABLE: Final = {"episodeReturnMean": ("environment",), "estimatedReturn": ("input", "rewards")}
"""Metric -> fields of the spec on which its meaning depends."""
_INCOMPARABLE_LOSS: Final = ("algorithm", "input", "rewards")
_IGNORED_ATTRIBUTES: Final = {
    "seed",
    "revision",
    "suspend",
    "callbacks",
    "checkpoint",
    "cluster",
    "run_policy",
}
"""Attributes of the spec in which runs of the same setting may differ."""
_MAX_COLUMNS: Final = 3
"""Number of differing settings up to which they are columns of the table; more have a table of their own."""


@dataclass(frozen=True)
class ComparedRun:
    """A training's run folder.

    Attributes:
        folder: path or URI.
        name: name of the resource.
        settings: dotted path below `spec` -> value, without `_IGNORED_ATTRIBUTES`.
        chosen_paths: the paths whose values are not defaults.
        seed: seed of the run.
        curves: results of the run.
    """

    folder: str
    name: str
    settings: Mapping[str, Any]
    chosen_paths: Sequence[str]
    seed: int
    curves: Curves

    def setting(self, path: str) -> Any:
        """Return a setting; "none" if the run has no such field, for example no second input."""
        value = self.settings.get(path)
        return "none" if value is None else value

    def line(self, metric: str) -> Line:
        """Return the metric over the number of updates; empty if the run has no values of it."""
        line = self._line_by_iteration(metric)
        return Line(self._updates_at(line.x), line.y)

    def _line_by_iteration(self, metric: str) -> Line:
        curve = {"episodeReturnMean": self.curves.evaluation, "estimatedReturn": self.curves.estimate}.get(
            metric
        )
        if curve is not None:
            return Line(curve.x, curve.mean)
        if metric == "validationLoss":
            return self.curves.validation
        return self.curves.learner_metrics.get(metric, Line(np.empty(0), np.empty(0)))

    def _updates_at(self, iterations: F64) -> F64:
        # Lines are over updates, because an iteration of one setting may have many more updates than one of another.
        updates = self._updates_by_iteration
        return np.interp(iterations, updates.x, updates.y) if len(updates.y) else iterations

    @cached_property
    def _updates_by_iteration(self) -> Line:
        return make_line(self.curves.results, "num_updates_lifetime")


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seeds.

    Attributes:
        label: short name of the group, different for each group.
        setting: dotted path below `spec` -> value, of the fields that differ between groups.
        runs: the runs.
        lines: the metric of each run over its updates.
    """

    label: str
    setting: Mapping[str, Any]
    runs: Sequence[ComparedRun]
    lines: Sequence[Line]

    @property
    def last_values(self) -> list[float]:
        """Last value of each run."""
        return [float(line.y[-1]) for line in self.lines]

    @property
    def mean(self) -> float:
        """Mean of the last values."""
        return float(np.mean(self.last_values))

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the last values (n - 1 degrees of freedom); None for a single run."""
        return float(np.std(self.last_values, ddof=1)) if len(self.runs) > 1 else None

    @property
    def seconds(self) -> float:
        """Mean wall time of the runs, in seconds."""
        return float(np.mean([run.curves.seconds or 0.0 for run in self.runs]))

    def band(self) -> tuple[Line, Line, Line]:
        """Return mean, minimum and maximum over the runs, at the updates at which every run has a value."""
        x = self.lines[0].x
        for line in self.lines[1:]:
            x = np.intersect1d(x, line.x)
        values = np.stack([line.y[np.isin(line.x, x)] for line in self.lines])
        return Line(x, values.mean(0)), Line(x, values.min(0)), Line(x, values.max(0))


@dataclass(frozen=True)
class Comparison:
    """Runs by setting.

    Attributes:
        metric: the metric that is compared.
        groups: one group per setting, best mean first.
    """

    metric: str
    groups: Sequence[RunGroup]

    @property
    def title(self) -> str:
        """Title of the metric."""
        return METRICS.get(self.metric, self.metric.replace("_", " "))

    @property
    def sentence(self) -> str:
        """The result in one sentence, which claims no difference that the seeds do not show."""
        best, *other_groups = self.groups
        if not other_groups:
            return f"{self.title} {format_mean(best)} over {formatting.plural(len(best.runs), 'run')}"
        fields = {path.partition(".")[0] for path in best.setting}
        if fields := fields.intersection(_INCOMPARABLE.get(self.metric, _INCOMPARABLE_LOSS)):
            names = " and ".join(sorted(fields))
            return f"{self.title} says nothing about which training is better, because they differ in {names}"
        sentence = f"best {self.title}: {best.label}, {format_mean(best)}"
        if min(len(group.runs) for group in self.groups) == 1:
            return f"{sentence}; a training with one seed says little about chance, so run each with several"
        ties = [group.label for group in other_groups if _ranges_overlap(best.last_values, group.last_values)]
        if ties:
            return f"{sentence}; the range of its seeds overlaps that of {formatting.first_few(ties, 3)}"
        return sentence

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "metric": self.metric,
            "sentence": self.sentence,
            "groups": [
                {
                    "setting": dict(group.setting),
                    "mean": group.mean,
                    "deviation": group.deviation,
                    "seconds": group.seconds,
                    "runs": [
                        {"folder": run.folder, "name": run.name, "seed": run.seed, "value": value}
                        for run, value in zip(group.runs, group.last_values, strict=True)
                    ],
                }
                for group in self.groups
            ],
        }


def compare(paths: Sequence[str], metric: str | None = None) -> Comparison:
    """Compare the runs in the folders.

    Args:
        paths: run folders, or folders that contain run folders at any depth. Of a training with several revisions, only
            the latest is compared, unless the run folder of another revision is passed.
        metric: a key of `METRICS`, or a metric of the learner such as `total_loss`. Default: the first of `METRICS`
            for which every run has values, else `total_loss`.

    Raises:
        DataError: a folder contains no run of a training, or a run has no results yet.
        SpecError: a run has no values of the metric.
    """
    runs = [run for path in paths for run in _find_runs(resolve(path))]
    runs = list({run.folder: run for run in runs}.values())  # `runs` and `runs/a` both contain the run of a
    metric = metric or next(
        (name for name in METRICS if all(len(run.line(name).y) for run in runs)), "total_loss"
    )
    for run in runs:
        if not len(run.line(metric).y):
            names = [name for name in (*METRICS, *run.curves.learner_metrics) if len(run.line(name).y)]
            raise SpecError(f"{run.folder} has no values of {metric}; compare by one of {', '.join(names)}.")
    return Comparison(metric, _group_runs(runs, metric))


def format_mean(group: RunGroup) -> str:
    """Format the mean of the last values with their standard deviation: `475 ± 12`."""
    deviation = "" if group.deviation is None else f" ± {formatting.significant(group.deviation)}"
    return f"{formatting.significant(group.mean)}{deviation}"


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return a table with a row for each group, best first, and one of settings if there are too many for columns."""
    paths = list(comparison.groups[0].setting)
    has_setting_columns = 0 < len(paths) <= _MAX_COLUMNS
    columns = (
        *(paths if has_setting_columns else ["training"]),
        "runs",
        "mean ± sd",
        "range",
        "updates",
        "time",
    )
    rows = []
    for group in comparison.groups:
        values = group.last_values
        updates = np.mean([run.curves.last("num_updates_lifetime") or 0.0 for run in group.runs])
        rows.append(
            (
                *(map(formatting.as_yaml, group.setting.values()) if has_setting_columns else (group.label,)),
                str(len(group.runs)),
                format_mean(group),
                f"{formatting.significant(min(values))} to {formatting.significant(max(values))}",
                formatting.integer(float(updates)),
                formatting.duration(group.seconds),
            )
        )
    tables = [Table(f"{formatting.capitalise(comparison.title)} at the end of each run", columns, rows)]
    if len(paths) > _MAX_COLUMNS:
        setting_rows = [
            (path, *(formatting.as_yaml(group.setting[path]) for group in comparison.groups))
            for path in paths
        ]
        columns = ("setting", *(group.label for group in comparison.groups))
        tables.append(Table("Settings that differ", columns, setting_rows))
    return tables


def comparison_picture(comparison: Comparison) -> Picture:
    """Return a picture of the metric over updates: each setting's mean, with the range of its seeds as a band."""

    def draw(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        style_axes(axes, theme, "updates", comparison.title)
        labels = []
        for index, group in enumerate(comparison.groups):
            # Further groups than colours share the last colour, grey.
            colour = theme.series[min(index, len(theme.series) - 1)]
            mean, low, high = group.band()
            if len(group.runs) > 1:
                axes.fill_between(mean.x, low.y, high.y, color=colour, alpha=0.15, linewidth=0)
            axes.plot(
                mean.x,
                mean.y,
                color=colour,
                linewidth=2,
                marker="o" if len(mean.x) < 40 else "",
                markersize=3,
            )
            if index < len(theme.series) - 1 and len(mean.y):
                labels.append(Label(mean.y[-1], _shorten(group.label), colour))
        draw_end_labels(axes, labels)

    caption = "Mean over the runs of a setting, with a band from the lowest to the highest run"
    return Picture(formatting.capitalise(comparison.sentence), caption, draw)


def write_comparison(comparison: Comparison, file: str) -> str:
    """Write the comparison as a self-contained HTML page, and return its path or URI."""
    runs = [
        (group, run, value)
        for group in comparison.groups
        for run, value in zip(group.runs, group.last_values, strict=True)
    ]
    run_rows = [
        (run.folder, group.label, str(run.seed), formatting.significant(value)) for group, run, value in runs
    ]
    page = Page(
        kind="Comparison of trainings",
        name=formatting.first_few([group.label for group in comparison.groups], 4),
        outcome=formatting.capitalise(comparison.sentence),
        tiles=(),
        sections=[Section("The runs compared", {"comparison": comparison_picture(comparison)})],
        tables=[
            *comparison_tables(comparison),
            Table("All runs", ("run folder", "training", "seed", comparison.title), run_rows),
        ],
        commands=(),
    )
    return write_single_file(resolve(file), page)


def _find_runs(folder: Location) -> list[ComparedRun]:
    """Return the runs in a folder, ordered by name; of several revisions of a training, the latest.

    Raises:
        DataError: there is no run, or a run has no results.
    """
    if not folder.exists():
        raise missing_error(folder)
    run_folders = list(_find_run_folders(folder))
    if not run_folders:
        raise DataError(
            f"{folder} contains no run of a training ({OWNER_FILE} beside {RESULTS_FILE}); give run folders, such as "
            "runs/NAME/r1."
        )
    return [_read_run(run_folder) for run_folder in run_folders]


def _find_run_folders(folder: Location) -> Iterator[Location]:
    """Yield the run folders at or below a folder; of the revisions `r1`, `r2`, … of a training, only the latest."""
    if folder.child(OWNER_FILE).exists():
        yield folder
        return
    folders = [entry.location for entry in folder.list() if not entry.is_file]
    folders.sort(key=lambda child: formatting.natural_sort_key(child.name))
    revisions = [child for child in folders if child.name[:1] == "r" and child.name[1:].isdigit()]
    if revisions:
        yield revisions[-1]
        return
    for child in folders:
        if child.name != FOLDER:  # the expert of a recording belongs to the dataset
            yield from _find_run_folders(child)


def _read_run(folder: Location) -> ComparedRun:
    try:
        training = validate_resource((read_owner(folder) or {})["spec"])
    except (KeyError, TypeError, SpecError):
        training = None
    if not isinstance(training, OfflineTraining):
        raise DataError(
            f"{folder.child(OWNER_FILE)} does not describe a training: it is damaged, or another version of Hindcast "
            "wrote it. Leave this run out."
        )
    results = read_results(folder)
    if not results:
        raise DataError(f"{folder} has no results yet; compare it when its first iteration has ended.")
    settings, chosen_settings = _read_settings(training.spec), _read_settings(training.spec, only_chosen=True)
    return ComparedRun(
        str(folder),
        training.metadata.name,
        settings,
        tuple(chosen_settings),
        training.spec.seed,
        Curves(results),
    )


def _read_settings(spec: OfflineTrainingSpec, only_chosen: bool = False) -> dict[str, Any]:
    """Return dotted path -> value of the settings, with defaults or, with `only_chosen`, without them."""
    document = spec.model_dump(
        mode="json", by_alias=True, exclude=_IGNORED_ATTRIBUTES, exclude_defaults=only_chosen
    )
    if not is_custom(spec.algorithm):
        options = options_model(spec.algorithm).model_validate(spec.config)
        config = options.model_dump(mode="json", by_alias=True, exclude_defaults=only_chosen)
        document["config"] = in_yaml_words(spec.algorithm, config)
    return {".".join(map(str, path)): value for path, value in iterate_leaves({(): document})}


def _group_runs(runs: Sequence[ComparedRun], metric: str) -> list[RunGroup]:
    """Group runs by the settings that differ, best mean first."""
    paths = dict.fromkeys(path for run in runs for path in run.chosen_paths)
    differing_paths = [
        path for path in paths if len({formatting.as_yaml(run.setting(path)) for run in runs}) > 1
    ]
    runs_by_setting: dict[tuple[str, ...], list[ComparedRun]] = {}
    for run in runs:
        key = tuple(formatting.as_yaml(run.setting(path)) for path in differing_paths)
        runs_by_setting.setdefault(key, []).append(run)
    labels = _label_groups(list(runs_by_setting.values()), differing_paths)
    groups = []
    for label, group_runs in zip(labels, runs_by_setting.values(), strict=True):
        setting = {path: group_runs[0].setting(path) for path in differing_paths}
        groups.append(RunGroup(label, setting, group_runs, [run.line(metric) for run in group_runs]))
    sign = 1 if "loss" in metric.lower() else -1
    return sorted(groups, key=lambda group: sign * group.mean)


def _label_groups(groups: Sequence[Sequence[ComparedRun]], differing_paths: Sequence[str]) -> list[str]:
    """Return the groups' labels: the beginning that the names of their runs share, else settings, else numbers."""
    # By characters: names such as bc-0 and bc-1 share the beginning bc-.
    names = [commonprefix([run.name for run in runs]).rstrip("-_.") or runs[0].name for runs in groups]  # noqa: RUF071
    settings = [
        " ".join(
            f"{path.rpartition('.')[2]}={formatting.as_yaml(runs[0].setting(path))}"
            for path in differing_paths
        )
        for runs in groups
    ]
    numbers = [f"setting {number}" for number in range(1, len(groups) + 1)]
    candidates = (names, settings) if len(differing_paths) <= _MAX_COLUMNS else (names,)
    return next((labels for labels in candidates if len(set(labels)) == len(labels)), numbers)


def _ranges_overlap(first: Sequence[float], second: Sequence[float]) -> bool:
    return max(min(first), min(second)) <= min(max(first), max(second))


def _shorten(label: str, limit: int = 24) -> str:
    return label if len(label) <= limit else label[: limit - 1] + "…"
