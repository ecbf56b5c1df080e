"""`search`: trains every trial, compares them on held-out episodes, and evaluates the winner on others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from hindcast.api import OfflineRecording, OfflineTraining, course_hash, document_of, load_resources
from hindcast.builder.config import AlgorithmConfig
from hindcast.builder.option_values import to_plain
from hindcast.errors import Interrupted, OutputConflict, SpecError, StorageError, UserError
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.report.events import Once, Progress, Reporter
from hindcast.run.claim import run_folder, title
from hindcast.run.execute import FileReferences, check_early, prepare_inputs, train_locally
from hindcast.run.final_evaluation import check_set_aside, evaluate_set_aside
from hindcast.run.inputs import inputs_of, open_inputs, sources_of
from hindcast.run.interruption import Interruption, catch_signals
from hindcast.run.offline_trainer import make_offline_trainer
from hindcast.run.training import SUCCESS_FILE
from hindcast.search import trials as planning
from hindcast.search.page import PAGE_FILE, write_search_page
from hindcast.search.results import (
    Confirmation,
    Run,
    Search,
    Trial,
    best_first,
    best_run,
    trial_json,
    with_interval,
)
from hindcast.search.scoring import confirmation, score_run
from hindcast.search.space import Over, Range
from hindcast.search.trials import SearchPlan, plan_search
from hindcast.storage.location import Location, resolve

SEARCH_FILE: Final = "search.json"
_SET_ASIDE: Final = "spec.evaluation.offline.setAside"
_NOBODY: Final = FileReferences({})

Given = str | Path | OfflineTraining | AlgorithmConfig


def search(
    given: Given,
    over: Over,
    *,
    output: str | Path | None = None,
    trials: int | None = None,
    seeds: int = 1,
    by: str | None = None,
    confirm: float | None = None,
    stop: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
) -> Search:
    """Train with different settings, and choose one by held-out episodes, without an environment.

    Each run is an ordinary training in `<output>/trial-<number>-seed-<seed>`, one after the other. The same call after
    an interruption resumes; runs that are finished are not repeated. More `trials` (of draws), more `seeds` or a higher
    `stop` extend a search.

    Args:
        given: a YAML file with one OfflineTraining, the resource, or a config; it has `evaluation.offline`.
        over: dotted path below `spec` -> values to try, or a range: `{"config.lr": loguniform(1e-5, 1e-2)}`.
        output: folder of the search. Default: `<checkpoint.path>/<name>-search`.
        trials: how many random draws; None tries every combination.
        seeds: runs of each trial, with the resource's seed and those after it. The mean over them counts.
        by: an estimate's name, or `validationLoss`. Default: the first of `evaluation.offline.estimates`, else the
            loss.
        confirm: share of the episodes that are set aside, to evaluate the winner once more. 0 is none. Default:
            `evaluation.offline.setAside`, else 0.1.
        stop: `spec.stop`, for a config.
        reporter: receives progress and notes.

    Raises:
        SpecError: what is wrong with the resource or a trial, before anything is trained.
        OutputConflict: `output` holds another search.
        Interrupted: asked to stop; the same call resumes.
        UserError: what else ends all trials. A mistake that only one trial makes is in its row.
    """
    over = {path: values if isinstance(values, Range) else to_plain(values) for path, values in over.items()}
    plan = plan_search(_resource(given, stop), over, trials=trials, seeds=seeds, by=by, confirm=confirm)
    spec = plan.base.spec
    folder = resolve(output or f"{spec.checkpoint.path}/{plan.base.metadata.name}-search")
    with catch_signals() as interruption:
        return _Searching(plan, folder, Once(reporter), interruption).carry_out()


class _Searching:
    """One search in its folder."""

    def __init__(
        self, plan: SearchPlan, folder: Location, reporter: Reporter, interruption: Interruption
    ) -> None:
        self._plan, self._folder = plan, folder
        self._reporter, self._interruption = reporter, interruption
        self._name = title(plan.base)
        self._identity = {
            "resource": self._name,
            "courseHash": course_hash(plan.base),
            "evaluation": document_of(plan.base, exclude_none=True)["spec"]["evaluation"],
            "over": [
                [path, str(values) if isinstance(values, Range) else list(values)]
                for path, values in plan.over.items()
            ],
            "drawn": plan.is_random,
            "by": plan.by,
        }

    def carry_out(self) -> Search:
        trainings = self._plan.trainings(str(self._folder))
        self._refuse_another()
        self._check(trainings)
        runs: dict[int, tuple[Run, ...]] = {}
        for (trial, seed), training in trainings.items():
            runs[trial] = (*runs.get(trial, ()), self._run(trial, seed, training))
            self._write({"trials": [trial_json(each) for each in self._trials(runs)]})
        ordered = best_first(self._trials(runs), self._plan.by)
        winner, confirmed = None, None
        if ordered[0].figure is not None:
            best = best_run(ordered[0], self._plan.by)
            winner = trainings[ordered[0].number, best.seed]
            confirmed = self._confirmed(winner, best)
        found = Search(
            folder=str(self._folder),
            by=self._plan.by,
            trials=tuple(ordered),
            training=winner,
            confirmation=confirmed,
            report=str(self._folder.child(PAGE_FILE)),
        )
        self._write(found.to_json())
        write_search_page(found, self._plan.base)
        return found

    def _refuse_another(self) -> None:
        file = self._folder.child(SEARCH_FILE)
        if file.exists() and orjson.loads(file.read_bytes()).get("search") != self._identity:
            raise OutputConflict(
                f"{self._folder} holds another search: its training, evaluation or values are others; give another "
                "folder (--output)."
            )

    def _check(self, trainings: Mapping[tuple[int, int], OfflineTraining]) -> None:
        """Refuse, before anything is trained, what would make a trial fail at its start."""
        first = self._plan.seeds[0]
        for (trial, seed), training in trainings.items():
            if seed == first and not run_folder(training).child(SUCCESS_FILE).exists():
                self._checked(trial, training)

    def _checked(self, trial: int, training: OfflineTraining) -> None:
        try:
            inputs = check_early(training, _NOBODY)
            sources = sources_of(prepare_inputs(training, inputs, self._reporter, self._interruption))
            if self._plan.final_evaluation.set_aside is None:
                make_offline_trainer(training, sources).close()
            else:
                check_set_aside(planning.with_evaluation(training, self._plan.final_evaluation), sources)
        except Interrupted:
            raise
        except UserError as error:
            named = planning.title(trial, self._plan.settings[trial - 1])
            said = str(error).replace(_SET_ASIDE, f"{_SET_ASIDE} (--confirm)", 1)
            raise type(error)(f"{named}: {said}") from error

    def _run(self, trial: int, seed: int, training: OfflineTraining) -> Run:
        self._interruption.check()
        try:
            inputs = inputs_of(training, _NOBODY)
            outcome, _ = train_locally(training, inputs, self._reporter, self._interruption)
            run = score_run(outcome, seed, self._plan.by)
        except (Interrupted, OutputConflict, StorageError):
            raise
        except UserError as error:
            run = Run(seed, str(run_folder(training)), error=str(error))
        shown = run.error or f"{self._plan.by} {with_interval(run.figure, run.interval)}"
        named = planning.title(trial, self._plan.settings[trial - 1])
        self._reporter.note(self._name, f"{named} of {len(self._plan.settings)}, seed {seed}: {shown}")
        return run

    def _trials(self, runs: Mapping[int, tuple[Run, ...]]) -> list[Trial]:
        """Those that have begun."""
        return [Trial(number, self._plan.settings[number - 1], own) for number, own in runs.items()]

    def _confirmed(self, training: OfflineTraining, run: Run) -> Confirmation | None:
        """The winner on the episodes that were set aside; None where there are none."""
        if self._plan.final_evaluation.set_aside is None:
            return None
        assert run.checkpoint is not None

        def progress(what: str, done: int, total: int) -> None:
            self._interruption.check()
            stage = f"Fitting the {what} of the last evaluation"
            self._reporter.progress(Progress(self._name, stage, done, total, "updates"))

        inputs = inputs_of(training, _NOBODY)
        judged = evaluate_set_aside(
            planning.with_evaluation(training, self._plan.final_evaluation),
            sources_of(open_inputs(training, inputs, self._reporter, self._interruption.check)),
            find_checkpoint(run.checkpoint),
            progress,
        )
        return confirmation(judged, self._plan.by)

    def _write(self, content: Mapping[str, Any]) -> None:
        document = {"search": self._identity, **content}
        self._folder.child(SEARCH_FILE).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def _resource(given: Given, stop: Mapping[str, Any] | None) -> OfflineTraining:
    """The training that is varied; its recordings by the paths of their datasets."""
    others: Iterable[OfflineRecording | OfflineTraining] = ()
    if isinstance(given, AlgorithmConfig):
        found: OfflineRecording | OfflineTraining = given.to_resource(stop=stop)
    elif stop is not None:
        raise SpecError("stop is for a config: a resource has its own spec.stop.")
    elif isinstance(given, OfflineTraining):
        found = given
    else:
        others = [loaded.resource for loaded in load_resources(given)]
        trainings = [each for each in others if isinstance(each, OfflineTraining)]
        if len(trainings) != 1:
            raise SpecError(f"{given} has {len(trainings)} OfflineTrainings: a search varies one.")
        found = trainings[0]
    if isinstance(found, OfflineRecording):
        raise SpecError("a search varies an OfflineTraining: give data to train on (input_).")
    return _by_path(found, FileReferences({title(each): each for each in others}))


def _by_path(resource: OfflineTraining, references: FileReferences) -> OfflineTraining:
    inputs = []
    for source in resource.spec.input:
        path = None if source.recording_ref is None else references.dataset(source.recording_ref.name)
        inputs.append(
            source if path is None else source.model_copy(update={"recording_ref": None, "path": path})
        )
    return resource.model_copy(update={"spec": resource.spec.model_copy(update={"input": inputs})})
