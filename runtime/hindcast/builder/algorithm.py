"""`RunningAlgorithm`, which `build_algo()` returns: trains, evaluates, records, saves and restores step by step."""

from __future__ import annotations

import functools
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from hindcast.algorithms import build
from hindcast.builder.batch_io.inputs import ReaderFolders, WriterFolder, has_readers
from hindcast.builder.checkpoints import (
    CONFIG_KEY,
    SingleCheckpointStore,
    config_to_json,
    load_config,
    load_policy,
    parse_component,
)
from hindcast.builder.evaluation_recording import EvaluationRecording
from hindcast.builder.option_names import UnknownName
from hindcast.builder.options import option_names_in_errors, use_option_names
from hindcast.builder.resources import BuildPlan
from hindcast.builder.training_recording import TrainingRecording
from hindcast.errors import DataError, SpecError
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.models.policy import Policy
from hindcast.models.rl_module import RLModule
from hindcast.names import DEFAULT_MODULE_ID, ENV_RUNNER_RESULTS, EVALUATION_RESULTS, TRAINING_ITERATION
from hindcast.pipeline.offline_data import OfflineData
from hindcast.report.events import Reporter
from hindcast.report.results import Result
from hindcast.run.execute import FileReferences
from hindcast.run.inputs import inputs_of, open_inputs, sources_of
from hindcast.run.live_source import episode_players
from hindcast.run.offline_trainer import make_offline_trainer
from hindcast.run.online_trainer import make_online_trainer
from hindcast.run.rllib_groups import EnvRunnerGroup, LearnerGroup, LocalEnvRunner
from hindcast.run.spaces import environment_spaces
from hindcast.run.stop_criteria import add_evaluation
from hindcast.run.trainer import Trainer, new_learner, notes_on_policy
from hindcast.run.training_callbacks import TrainingCallbacks
from hindcast.run.training_evaluation import Evaluations
from hindcast.run.warm_start import initial_policy
from hindcast.storage.location import resolve

if TYPE_CHECKING:
    from hindcast.builder.config import AlgorithmConfig

_GONE: Final = {
    **dict.fromkeys(("env_runner", "workers"), "env_runner_group.local_env_runner.sample() plays episodes"),
    **dict.fromkeys(
        ("eval_env_runner", "eval_env_runner_group", "evaluation_workers"), "evaluate() plays episodes"
    ),
    **dict.fromkeys(("compute_single_action", "compute_actions"), "get_policy()(observation) acts"),
    **dict.fromkeys(("get_weights", "get_state"), "get_module().get_state() gives the weights"),
    **dict.fromkeys(
        ("set_weights", "set_state"), "restore_from_path(path, component=COMPONENT_RL_MODULE) takes weights"
    ),
    **dict.fromkeys(("export_model", "export_policy_model"), "get_policy().save(path) writes the policy"),
    **dict.fromkeys(("add_policy", "remove_policy"), "there is one policy"),
    **dict.fromkeys(("step", "training_step"), "train() is one iteration"),
    "metrics": "train() and evaluate() return them",
    "logdir": "train() returns results, and save_to_path(path) writes a checkpoint",
    "training_iteration": "it is called iteration",
}
"""Attributes of RLlib's algorithms that do not exist here, and their replacements."""

_EVALUATIONS_ALONE = "output: only evaluate() adds episodes to the dataset; train() records none"
_RLLIBS_DEFAULT = "spec.model.vfShareLayers "
"""What a note begins with on the one field of a `DefaultModelConfig` that is set where nobody asked for it."""
_FILTERS, _THEIR_PADDING = "spec.model.convFilters ", "spec.model.convPadding "
"""What notes begin with on `conv_filters`, and on the padding that these say: what is so of one is so of the other."""
_EXPERIENCE_ALONE = "output: train() records the episodes that the policy learns from; evaluate() adds none"

_LOG = logging.getLogger("hindcast")


class SavedCheckpoint(NamedTuple):
    """Where `save()` wrote."""

    path: str


class SaveResult(NamedTuple):
    """What `save()` returns and `restore()` takes, in the form that RLlib's have."""

    checkpoint: SavedCheckpoint


class RunningAlgorithm:
    """An algorithm in this process.

    Args:
        config: what it was built from.

    Attributes:
        config: a frozen copy of it.
        notes: what the user should know: options without effect, clamps, how data were prepared, what was found at an
            output.

    Raises:
        UserError: what is wrong with the options, the environment or the data.
    """

    @option_names_in_errors()
    def __init__(self, config: AlgorithmConfig) -> None:
        self._read = ReaderFolders()
        self._written: WriterFolder | None = None
        self._recording: EvaluationRecording | TrainingRecording | None = None
        self._evaluations: Evaluations | None = None
        self._evaluation: Result | None = None
        self._callbacks = TrainingCallbacks()
        self.notes: list[str] = []
        try:
            self.config = self._with_folders(config)
            self._build(self.config.plan())
        except BaseException:
            self.stop()
            raise

    @classmethod
    def from_checkpoint(cls, path: str | Path, config: AlgorithmConfig | None = None) -> Self:
        """The algorithm that `save_to_path` was called on, rebuilt; it resumes from there.

        Args:
            path: a checkpoint, or a folder of checkpoints: its best, else its latest.
            config: None is the one that the checkpoint was written with.

        Raises:
            DataError: there is no checkpoint, or its config is incomplete.
            UserError: what else keeps it from being built.
        """
        algo = cls(config or load_config(find_checkpoint(path)))
        try:
            algo.restore_from_path(path)
        except BaseException:
            algo.stop()
            raise
        return algo

    @property
    def iteration(self) -> int:
        """Iterations finished."""
        return self._trainer.iteration

    @property
    def offline_data(self) -> OfflineData | None:
        """The source of batches; None if there are no data to train on."""
        experience = self._trainer.experience
        return experience if isinstance(experience, OfflineData) else None

    @property
    def learner_group(self) -> LearnerGroup:
        """The group with the one learner: its network and weights."""
        return LearnerGroup(self.get_module(), lambda: self._trainer.learner.updates)

    @functools.cached_property
    def env_runner_group(self) -> EnvRunnerGroup:
        """Plays episodes with the current policy for inspection; they are neither learned from nor recorded.

        Raises:
            SpecError: there is no environment.
        """
        described = self._output.spec.environment if self._output is not None else self._environment
        if described is None:
            raise SpecError("env is missing: name the environment to play in with .environment(env=...).")
        return EnvRunnerGroup(LocalEnvRunner(described, self.get_policy(), self.config["seed"] or 0))

    @option_names_in_errors()
    def train(self) -> Result:
        """One iteration; with an `output`, what the policy plays to learn from is recorded.

        Returns:
            RLlib's names, nested: `learners/default_policy/…`, `num_env_steps_trained_lifetime` …; from the
            first evaluation on also `evaluation/env_runners/episode_return_mean` …, of the latest one, whose
            `evaluation/training_iteration` says which weights it was of, and `evaluation/offline/estimated_return` …

        Raises:
            SpecError: there is nothing to train on.
            DataError: the data are not as they should be.
            OutputConflict: the output holds something else.
        """
        self._record_experience()
        result = self._trainer.iterate()
        begun = time.monotonic()
        held_out, played = self._trainer.held_out_evaluator, self._evaluated()
        is_judged = held_out is not None and held_out.is_due(self.iteration)
        found = add_evaluation({}, played, self.evaluate_offline() if is_judged else None)
        if found:
            self._evaluation = {**(self._evaluation or {}), **found[EVALUATION_RESULTS]}
        if self._evaluation is not None:
            result[EVALUATION_RESULTS] = self._evaluation
        result["timers"]["evaluation_s"] = time.monotonic() - begun
        self._callbacks.call("on_train_result", result=result)
        return result

    @option_names_in_errors()
    def evaluate(self) -> Result:
        """Evaluate the current policy; with an `output` that `train()` does not write to, record the episodes.

        Returns:
            `{"training_iteration": …, "env_runners": {"episode_return_mean": …, …}}`.

        Raises:
            SpecError: there is no environment.
            OutputConflict: the output holds something else.
        """
        if self._output is not None and self._recording is None:
            self._recording = EvaluationRecording(self._output, self._reporter)
        if isinstance(self._recording, EvaluationRecording):
            report = self._recording.evaluate(self.get_policy())
            return {TRAINING_ITERATION: self.iteration, ENV_RUNNER_RESULTS: report.summary()}
        if self._evaluations is None or self._environment is None:
            raise SpecError("env is missing: name the environment to evaluate in with .environment(env=...).")
        if self._recording is not None:
            self._note_once(_EXPERIENCE_ALONE)
        return self._evaluations.evaluate(self.get_policy(), self.iteration)

    @option_names_in_errors()
    def evaluate_offline(self) -> Result:
        """Evaluate the current policy on the held-out episodes.

        Returns:
            `{"training_iteration": …, "validation_loss": …, "estimates": …, "verdict": …}`: what `train()` has in
            `evaluation/offline`.

        Raises:
            SpecError: there are none.
        """
        held_out = self._trainer.held_out_evaluator
        if held_out is None:
            raise SpecError(
                "offline_evaluation_held_out is missing: hold out episodes with "
                ".evaluation(offline_evaluation_held_out=0.1)."
            )
        self._callbacks.call("on_evaluate_offline_start")
        judged = held_out.evaluate(self.iteration)
        self._callbacks.call("on_evaluate_offline_end", evaluation_metrics=judged)
        return judged

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Write a checkpoint.

        Args:
            path: its folder: new, empty, or an earlier checkpoint; None makes a temporary one.

        Returns:
            The folder. `Policy.load` opens it too.

        Raises:
            DataError: the folder holds something else.
            StorageError: it cannot be written.
        """
        folder = resolve(path or tempfile.mkdtemp(prefix="hindcast-"))
        if isinstance(self._recording, TrainingRecording):
            self._recording.flush()  # what is played from here on is played again after a kill; this is not
        pending = self._evaluations.pending_updates if self._evaluations else None
        counters = {
            "evaluating": pending,
            EVALUATION_RESULTS: self._evaluation,
            CONFIG_KEY: config_to_json(self.config.to_dict()),
        }
        self._trainer.save(SingleCheckpointStore(folder, counters))
        return str(folder)

    def save(self, checkpoint_dir: str | Path | None = None) -> SaveResult:
        """`save_to_path` under RLlib's older name: the folder is `.checkpoint.path`."""
        return SaveResult(SavedCheckpoint(self.save_to_path(checkpoint_dir)))

    def restore(self, checkpoint_path: str | Path | SaveResult) -> None:
        """`restore_from_path` under RLlib's older name; takes what `save` returned too."""
        path = checkpoint_path.checkpoint.path if isinstance(checkpoint_path, SaveResult) else checkpoint_path
        self.restore_from_path(path)

    def restore_from_path(self, path: str | Path, component: str | None = None) -> None:
        """Resume from a checkpoint, or restore a part of it.

        Args:
            path: a checkpoint, or a folder of checkpoints: its best, else its latest.
            component: None for everything: the next batch and the next update are those that would have followed.
                COMPONENT_RL_MODULE for the policy alone, COMPONENT_LEARNER for it and its optimisers.

        Raises:
            DataError: there is no checkpoint at the path, or it has another algorithm, model or environment.
            SpecError: no checkpoint has such a component.
        """
        part = parse_component(component)
        if part == "policy":
            self._take_policy(path)
            return
        checkpoint = find_checkpoint(path)
        if checkpoint.training.algorithm != self._algorithm:
            raise DataError(
                f"{path} is a checkpoint of {checkpoint.training.algorithm}, but this is {self._algorithm}: "
                "component=COMPONENT_RL_MODULE restores its policy only."
            )
        load_policy(self.get_policy(), str(checkpoint.location))
        if part == "learner":
            self._trainer.learner.load(checkpoint.learner_state())
            return
        if self._evaluations is not None:
            self._evaluations.collect()
        self._trainer.load(checkpoint)
        self._callbacks.call("on_checkpoint_loaded")
        self._evaluation = checkpoint.training.counters.get(EVALUATION_RESULTS)
        in_parallel = self._evaluations is not None and self._evaluations.runs_in_parallel
        if in_parallel and checkpoint.training.counters.get("evaluating") is not None:
            self._launch()

    def get_policy(self, policy_id: str = DEFAULT_MODULE_ID) -> Policy:
        """The policy: acts with the weights as they are, without this object too.

        Raises:
            SpecError: there is no policy of that name.
        """
        if policy_id != DEFAULT_MODULE_ID:
            raise SpecError(f"policy_id is {policy_id!r}: the only policy is {DEFAULT_MODULE_ID!r}.")
        return self._trainer.policy

    def get_config(self) -> AlgorithmConfig:
        """`config`, under RLlib's other name."""
        return self.config

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule:
        """The policy's network.

        Raises:
            SpecError: there is no module of that name.
        """
        if module_id != DEFAULT_MODULE_ID:
            raise SpecError(f"module_id is {module_id!r}: the only module is {DEFAULT_MODULE_ID!r}.")
        return self.get_policy().module

    def stop(self) -> None:
        """Complete the dataset, stop the processes, close the environments. A custom writer receives the episodes."""
        if self._recording is not None:
            self._recording.close()
        if self._evaluations is not None:
            self._evaluations.close()
        if "env_runner_group" in vars(self):
            self.env_runner_group.local_env_runner.close()
        if hasattr(self, "_trainer"):
            self._trainer.close()
        self._read.close()
        if self._written is not None:
            written, self._written = self._written, None
            written.close()

    cleanup = stop

    def __getattr__(self, name: str) -> Any:
        if name in _GONE:
            raise UnknownName(f"{name} does not exist: {_GONE[name]}.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _with_folders(self, config: AlgorithmConfig) -> AlgorithmConfig:
        """A frozen copy of the config, with folders in place of custom readers and of a custom writer."""
        own = config.copy(copy_frozen=False)
        if has_readers(config.get("input_")):
            own.offline_data(input_=self._read.read(config.to_dict()))
        if callable(config.get("output")):
            self._written = WriterFolder(config["output"], config.to_dict())
            own.offline_data(output=self._written.path)
        return own.copy(copy_frozen=True)

    def _build(self, plan: BuildPlan) -> None:
        self._algorithm = plan.algorithm
        for line in (*self.config.replaced_options, *self._read.notes):
            self._note(line)
        self._output, self._reporter = plan.recording, _Notes(self._note)
        self._environment = plan.training.spec.environment if plan.training else None
        if plan.training is not None:
            self._callbacks = TrainingCallbacks(plan.training.spec.callbacks)
            self._callbacks.algorithm = self
            store = SingleCheckpointStore(resolve("."))
            self._evaluations = Evaluations(plan.training, store, self._reporter, callbacks=self._callbacks)
        self._trainer = _trainer_of(plan, self._reporter)
        self._trainer.num_busy_processors = self._evaluations.num_processes if self._evaluations else 0
        for note in _on_what_was_given(self._trainer.notes):
            self._note(note)
        if plan.training is None or plan.is_online:
            self._warm_start(plan.initial_checkpoint)
        else:
            self._trainer.begin()
        self._callbacks.call("on_algorithm_init")

    def _warm_start(self, path: str | None) -> None:
        """Without data to train on; a training on data starts from it automatically."""
        if path is None:
            return
        try:
            self._take_policy(path)
        except DataError as error:
            raise DataError(f"initial_checkpoint: {error}") from error

    def _take_policy(self, path: str | Path) -> None:
        """Go on with a checkpoint's policy, and target networks that are copies of it."""
        note = load_policy(self.get_policy(), path)
        self._trainer.learner.reset_target_networks("policy")
        if note:
            self._note(note)

    def _evaluated(self) -> Result | None:
        """The evaluation whose result came with this iteration, if any; one in parallel to training is begun."""
        if self._evaluations is None:
            return None
        found = self._evaluations.collect()
        if not self._evaluations.is_due(self.iteration):
            return found
        if self._evaluations.runs_in_parallel:
            self._launch()
            return found
        return self._evaluations.evaluate(self.get_policy(), self.iteration)

    def _record_experience(self) -> None:
        if self._output is None or isinstance(self._recording, TrainingRecording):
            return
        players = episode_players(self._trainer.experience)
        if self._recording is not None or not players:
            self._note_once(_EVALUATIONS_ALONE)
            return
        self._recording = TrainingRecording(self._output, self._reporter, self.get_policy())
        for player in players:
            player.on_episodes = self._recording.on_episodes

    def _launch(self) -> None:
        assert self._evaluations is not None
        self._evaluations.launch(self.get_policy(), self.iteration, self._trainer.learner.updates)

    def _note_once(self, message: str) -> None:
        if message not in self.notes:
            self._note(message)

    def _note(self, message: str) -> None:
        message = use_option_names(message)
        self.notes.append(message)
        _LOG.warning(message)


def _on_what_was_given(notes: Sequence[str]) -> list[str]:
    """The notes that name no field that was only derived."""
    has_filters = any(note.startswith(_FILTERS) for note in notes)
    derived = (_RLLIBS_DEFAULT, _THEIR_PADDING) if has_filters else (_RLLIBS_DEFAULT,)
    return [note for note in notes if not note.startswith(derived)]


def _trainer_of(plan: BuildPlan, reporter: Reporter) -> Trainer:
    if plan.training is None:
        assert plan.recording is not None
        environment, seed = plan.recording.spec.environment, plan.recording.spec.seed
        algorithm, spaces = build(plan.algorithm, plan.config), environment_spaces(environment)
        policy, learner = new_learner(algorithm, spaces, plan.model, environment, seed=seed)
        return Trainer(plan.algorithm, policy, learner, None, notes=notes_on_policy(policy, plan.model))
    if plan.is_online:
        return make_online_trainer(plan.training, plan.training.spec, plan.num_envs)
    if (initial := plan.training.spec.initial_checkpoint) is not None:
        initial_policy(initial, plan.model)  # is looked for before data are prepared
    inputs = open_inputs(plan.training, inputs_of(plan.training, FileReferences({})), reporter)
    return make_offline_trainer(plan.training, sources_of(inputs))


class _Notes(Reporter):
    """A reporter of notes alone: results contain the progress, and the script decides when it is finished."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def note(self, resource: str, message: str) -> None:  # noqa: ARG002
        self._note(message)
