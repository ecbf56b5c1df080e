"""`search`: trains every trial, compares them on held-out episodes, evaluates the winner on other episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from hindcast.api import OfflineRecording, OfflineTraining, course_hash, document_of, load_resources
from hindcast.api.base import to_yaml_types
from hindcast.errors import (
    FieldPath,
    Interrupted,
    OutputConflict,
    Problem,
    SpecError,
    StorageError,
    UserError,
    parse_path,
)
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.report.events import DistinctNotes, Progress, Reporter
from hindcast.report.verdict_page import Judgement
from hindcast.run.checkpoint_evaluation import SET_ASIDE_NAME
from hindcast.run.claim import run_folder, title
from hindcast.run.execute import FileReferences, check_early, prepare_inputs, train_locally
from hindcast.run.final_evaluation import check_set_aside, evaluate_set_aside
from hindcast.run.inputs import make_sources, open_inputs, resolve_inputs
from hindcast.run.interruption import Interruption, catch_signals
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.run.training.training_run import SUCCESS_FILE
from hindcast.search import trials as planning
from hindcast.search.page import PAGE_FILE, write_search_page
from hindcast.search.results import (
    Confirmation,
    Run,
    Search,
    Trial,
    choose_best_run,
    format_with_interval,
    rank_trials,
    trial_json,
)
from hindcast.search.scoring import make_confirmation, score_run
from hindcast.search.space import Range, SearchSpace
from hindcast.search.trials import SearchPlan, plan_search
from hindcast.storage.location import Location, resolve

SEARCH_FILE: Final = "search.json"
_SET_ASIDE_FIELD: Final = "spec.evaluation.offline.setAside"
_NO_RECORDINGS: Final = FileReferences({})
"""`_load_training` has replaced the references to recordings in the same file by paths."""


class ResourceBuilder(Protocol):
    """An object that describes a training, such as an `AlgorithmConfig`."""

    def to_resource(self, *, stop: Mapping[str, Any] | None = None) -> OfflineRecording | OfflineTraining:
        """Return the resource, with these stop criteria."""


Training = str | Path | OfflineTraining | ResourceBuilder


def search(
    training: Training,
    over: SearchSpace,
    *,
    output: str | Path | None = None,
    trials: int | None = None,
    seeds: int = 1,
    by: str | None = None,
    confirm: float | None = None,
    stop: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
) -> Search:
    """Train with different settings and choose one by held-out episodes, without an environment.

    Each run is an ordinary training in `<output>/trial-<number>-seed-<seed>`, one after the other. After an
    interruption, the same call resumes; finished runs are not repeated. More `trials` (of draws), more `seeds` or a
    higher `stop` extend a search.

    Args:
        training: a YAML file with one OfflineTraining, the resource, or a config. It must set `evaluation.offline`.
        over: dotted path below `spec` -> values to try, or a range: `{"config.lr": loguniform(1e-5, 1e-2)}`.
        output: folder of the search. Default: `<checkpoint.path>/<name>-search`.
        trials: number of random draws; None tries every combination.
        seeds: number of runs of each trial, with the resource's seed and the seeds after it. Trials are compared by the
            mean over their runs.
        by: name of an estimate, or `validationLoss`. Default: the first of `evaluation.offline.estimates`, else the
            loss.
        confirm: share of the episodes to set aside, on which the winner is evaluated once more; 0 for none. Default:
            `evaluation.offline.setAside`, else 0.1.
        stop: `spec.stop`, for a config.
        reporter: receives progress and notes.

    Raises:
        SpecError: the resource or a trial is invalid; nothing has been trained.
        OutputConflict: `output` contains another search.
        Interrupted: the search was asked to stop; the same call resumes.
        UserError: an error that ends all trials. An error of a single trial is reported in its row.
    """
    over = {
        path: values if isinstance(values, Range) else to_yaml_types(values) for path, values in over.items()
    }
    plan = plan_search(
        _load_training(training, stop), over, trials=trials, seeds=seeds, by=by, confirm=confirm
    )
    spec = plan.base.spec
    folder = resolve(output or f"{spec.checkpoint.path}/{plan.base.metadata.name}-search")
    with catch_signals() as interruption:
        return _SearchRunner(plan, folder, DistinctNotes(reporter), interruption).execute()


class _SearchRunner:
    """Runs the trials of a plan in a folder, and resumes them there."""

    def __init__(
        self, plan: SearchPlan, folder: Location, reporter: Reporter, interruption: Interruption
    ) -> None:
        self._plan, self._folder = plan, folder
        self._reporter, self._interruption = reporter, interruption
        self._name = title(plan.base)
        self._identity = {
            "resource": self._name,
            # The hash does not include `stop`, so a search with a higher limit continues in the same folder.
            "courseHash": course_hash(plan.base),
            "evaluation": document_of(plan.base, exclude_none=True)["spec"]["evaluation"],
            "searchSpace": [
                [path, str(values) if isinstance(values, Range) else list(values)]
                for path, values in plan.search_space.items()
            ],
            "randomDraws": plan.is_random,
            "metric": plan.metric,
        }

    def execute(self) -> Search:
        """Run all trials, evaluate the winner, and write `search.json` and the page."""
        trainings = self._plan.trainings(str(self._folder))
        self._refuse_other_search()
        self._check_trials(trainings)
        runs: dict[int, tuple[Run, ...]] = {}
        for (trial, seed), training in trainings.items():
            runs[trial] = (*runs.get(trial, ()), self._run_trial(trial, seed, training))
            # Written after each run, so that the file also shows a search in progress.
            self._write_search_file(
                {"trials": [trial_json(started_trial) for started_trial in self._trials(runs)]}
            )
        ranked_trials = rank_trials(self._trials(runs), self._plan.metric)
        winning_training, winner_confirmation, judgement = None, None, None
        if ranked_trials[0].value is not None:
            best = choose_best_run(ranked_trials[0], self._plan.metric)
            winning_training = trainings[ranked_trials[0].number, best.seed]
            winner_confirmation, judgement = self._confirm(winning_training, best)
        result = Search(
            folder=str(self._folder),
            metric=self._plan.metric,
            trials=tuple(ranked_trials),
            training=winning_training,
            confirmation=winner_confirmation,
            report=str(self._folder.child(PAGE_FILE)),
        )
        self._write_search_file(result.to_json())
        write_search_page(result, self._plan.base, judgement)
        return result

    def _refuse_other_search(self) -> None:
        file = self._folder.child(SEARCH_FILE)
        if file.exists() and orjson.loads(file.read_bytes()).get("search") != self._identity:
            raise OutputConflict(
                f"{self._folder} contains another search: its training, evaluation or values differ. Choose another "
                "folder (--output)."
            )

    def _check_trials(self, trainings: Mapping[tuple[int, int], OfflineTraining]) -> None:
        """Raise, before anything is trained, the error of a trial that would fail at its start."""
        first_seed = self._plan.seeds[0]
        for (trial, seed), training in trainings.items():
            # It is enough to check one run of each trial, because the runs of a trial differ only in the seed.
            if seed == first_seed and not run_folder(training).child(SUCCESS_FILE).exists():
                self._check_trial(trial, training)

    def _check_trial(self, trial: int, training: OfflineTraining) -> None:
        try:
            inputs, networks = check_early(training, _NO_RECORDINGS)
            sources = make_sources(prepare_inputs(training, inputs, self._reporter, self._interruption))
            # Both check that the data suit the algorithm and the evaluation.
            if self._plan.final_evaluation.set_aside is None:
                make_offline_trainer(training, sources, networks=networks).close()
            else:
                check_set_aside(planning.with_evaluation(training, self._plan.final_evaluation), sources)
        except Interrupted:
            raise
        except UserError as error:
            name = planning.trial_title(trial, self._plan.settings[trial - 1])
            error.problems = tuple(
                replace(_name_confirm(problem), resource=name) for problem in error.problems
            )
            raise

    def _run_trial(self, trial: int, seed: int, training: OfflineTraining) -> Run:
        self._interruption.check()
        try:
            inputs = resolve_inputs(training, _NO_RECORDINGS)
            outcome, _inputs = train_locally(training, inputs, self._reporter, self._interruption)
            run = score_run(outcome, seed, self._plan.metric)
        except (Interrupted, OutputConflict, StorageError):
            raise  # these errors end the search; any other error becomes the result of this run
        except UserError as error:
            run = Run(seed, str(run_folder(training)), error=str(error))
        score = run.error or f"{self._plan.metric} {format_with_interval(run.value, run.interval)}"
        name = planning.trial_title(trial, self._plan.settings[trial - 1])
        self._reporter.note(self._name, f"{name} of {len(self._plan.settings)}, seed {seed}: {score}")
        return run

    def _trials(self, runs: Mapping[int, tuple[Run, ...]]) -> list[Trial]:
        """Return the trials that have finished runs, in the order of their numbers, with these runs only."""
        return [
            Trial(number, self._plan.settings[number - 1], trial_runs) for number, trial_runs in runs.items()
        ]

    def _confirm(self, training: OfflineTraining, run: Run) -> tuple[Confirmation | None, Judgement | None]:
        """Evaluate the winner on the episodes that were set aside, for the result and for the page.

        Returns:
            None, None without such episodes; None for the page without estimates.
        """
        if self._plan.final_evaluation.set_aside is None:
            return None, None
        assert run.checkpoint is not None

        def progress(model: str, done: int, total: int) -> None:
            self._interruption.check()
            stage = f"Fitting the {model} of the last evaluation"
            self._reporter.progress(Progress(self._name, stage, done, total, "updates"))

        inputs = resolve_inputs(training, _NO_RECORDINGS)
        evaluation, actions = evaluate_set_aside(
            planning.with_evaluation(training, self._plan.final_evaluation),
            make_sources(open_inputs(training, inputs, self._reporter, self._interruption.check)),
            find_checkpoint(run.checkpoint),
            progress,
        )
        judgement = None
        if actions is not None and "verdict" in evaluation:
            note = "they neither trained the policy nor chose it"
            judgement = Judgement(
                evaluation, actions, run.checkpoint, SET_ASIDE_NAME, evaluation["gamma"], 0, note
            )
        return make_confirmation(evaluation, self._plan.metric), judgement

    def _write_search_file(self, content: Mapping[str, Any]) -> None:
        document = {"search": self._identity, **content}
        self._folder.child(SEARCH_FILE).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def _name_confirm(problem: Problem) -> Problem:
    """Return the problem with `--confirm`, the command line's option for `setAside`, after the name of this field."""
    name = f"{_SET_ASIDE_FIELD} (--confirm)"
    field: FieldPath = (name,) if problem.field == parse_path(_SET_ASIDE_FIELD) else problem.field
    return problem.with_names(field, {_SET_ASIDE_FIELD: name})


def _load_training(training: Training, stop: Mapping[str, Any] | None) -> OfflineTraining:
    """Return the training to vary, with references to recordings replaced by the paths of their datasets."""
    resources: Iterable[OfflineRecording | OfflineTraining] = ()
    if not isinstance(training, str | Path | OfflineTraining):
        resource: OfflineRecording | OfflineTraining = training.to_resource(stop=stop)
    elif stop is not None:
        raise SpecError("stop applies to a config only: a resource has its own spec.stop.")
    elif isinstance(training, OfflineTraining):
        resource = training
    else:
        resources = [entry.resource for entry in load_resources(training)]
        trainings = [resource for resource in resources if isinstance(resource, OfflineTraining)]
        if len(trainings) != 1:
            raise SpecError(f"{training} has {len(trainings)} OfflineTrainings: a search needs exactly one.")
        resource = trainings[0]
    if isinstance(resource, OfflineRecording):
        raise SpecError("a search needs an OfflineTraining: add data to train on (input_).")
    return _replace_references(
        resource, FileReferences({title(resource): resource for resource in resources})
    )


def _replace_references(resource: OfflineTraining, references: FileReferences) -> OfflineTraining:
    inputs = []
    for source in resource.spec.input:
        path = None if source.recording_ref is None else references.dataset(source.recording_ref.name)
        inputs.append(
            source if path is None else source.model_copy(update={"recording_ref": None, "path": path})
        )
    return resource.model_copy(update={"spec": resource.spec.model_copy(update={"input": inputs})})
