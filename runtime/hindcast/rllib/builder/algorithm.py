"""`RunningAlgorithm`, returned by `build_algo()`, trains, evaluates, records, saves and restores step by step."""

from __future__ import annotations

import functools
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from hindcast.algorithms import build
from hindcast.cluster.program import program_placement
from hindcast.errors import DataError, Problem, SpecError
from hindcast.learn.checkpoint import find_checkpoint
from hindcast.learn.model_defaults import differences_from_rllib
from hindcast.models.policy import Policy
from hindcast.models.rl_module import RLModule
from hindcast.names import (
    DEFAULT_MODULE_ID,
    ENV_RUNNER_RESULTS,
    EVALUATION_RESULTS,
    LEARNER_UPDATE_TIMER,
    TIMERS,
    TRAINING_ITERATION,
)
from hindcast.pipeline.offline_data import OfflineData
from hindcast.record.environments import environment_spaces
from hindcast.report.events import Reporter
from hindcast.report.results import Result
from hindcast.rllib.batch_io.inputs import ReaderFolders, WriterFolder, has_readers
from hindcast.rllib.builder.checkpoints import (
    CONFIG_KEY,
    SingleCheckpointStore,
    config_to_json,
    load_config,
    load_policy,
    parse_component,
)
from hindcast.rllib.builder.evaluation_recording import EvaluationRecording
from hindcast.rllib.builder.model_config import DefaultModelConfig
from hindcast.rllib.builder.option_names import UnknownName, describe_defaults
from hindcast.rllib.builder.options import DATA_MENTIONS, option_names_in_errors, use_option_names
from hindcast.rllib.builder.resources import BuildPlan
from hindcast.rllib.builder.training_recording import TrainingRecording
from hindcast.rllib.runner_groups import EnvRunnerGroup, LearnerGroup, LocalEnvRunner
from hindcast.run.callbacks import TrainingCallbacks
from hindcast.run.evaluation.environment_evaluation import Evaluations
from hindcast.run.execute import FileReferences
from hindcast.run.inputs import make_sources, open_inputs, resolve_inputs
from hindcast.run.stop_criteria import add_evaluation
from hindcast.run.training.learner_group import start_learners
from hindcast.run.training.live_source import find_episode_players
from hindcast.run.training.offline_trainer import make_offline_trainer
from hindcast.run.training.online_trainer import make_online_trainer
from hindcast.run.training.trainer import Trainer, build_networks
from hindcast.run.training.warm_start import load_initial_policy
from hindcast.storage.location import resolve

if TYPE_CHECKING:
    from hindcast.rllib.builder.config import AlgorithmConfig

_RLLIB_ALGORITHMS: Final = ("BC", "CQL", "DQN", "IQL", "MARWIL", "PPO", "SAC")
"""Algorithms that RLlib has, too."""
_UNSUPPORTED_ATTRIBUTES: Final = {
    **dict.fromkeys(("env_runner", "workers"), "env_runner_group.local_env_runner.sample() plays episodes"),
    **dict.fromkeys(
        ("eval_env_runner", "eval_env_runner_group", "evaluation_workers"), "evaluate() plays episodes"
    ),
    **dict.fromkeys(
        ("compute_single_action", "compute_actions"), "get_policy()(observation) returns an action"
    ),
    **dict.fromkeys(("get_weights", "get_state"), "get_module().get_state() returns the weights"),
    **dict.fromkeys(
        ("set_weights", "set_state"), "restore_from_path(path, component=COMPONENT_RL_MODULE) loads weights"
    ),
    **dict.fromkeys(("export_model", "export_policy_model"), "get_policy().save(path) writes the policy"),
    **dict.fromkeys(("add_policy", "remove_policy"), "there is one policy"),
    **dict.fromkeys(("step", "training_step"), "train() is one iteration"),
    "metrics": "train() and evaluate() return them",
    "logdir": "train() returns results, and save_to_path(path) writes a checkpoint",
    "training_iteration": "it is called iteration",
}
"""Attributes of RLlib's algorithms that do not exist here -> what to use instead."""

_ONLY_EVALUATIONS_NOTE = "output: only evaluate() adds episodes to the dataset; train() records none"
_ONLY_EXPERIENCE_NOTE = (
    "output: train() records the episodes that the policy learns from; evaluate() adds none"
)

_LOG = logging.getLogger("hindcast")


class SavedCheckpoint(NamedTuple):
    """The checkpoint that `save()` wrote."""

    path: str


class SaveResult(NamedTuple):
    """The result of `save()`, which `restore()` accepts, in RLlib's form."""

    checkpoint: SavedCheckpoint


class RunningAlgorithm:
    """An algorithm in this process.

    Args:
        config: the config that builds it.

    Attributes:
        config: a frozen copy of the config.
        notes: notes for the user: options without effect, clamped values, how data were prepared, the contents of an
            output.

    Raises:
        UserError: the options, the environment or the data are invalid.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self._reader_folders = ReaderFolders()
        self._writer_folder: WriterFolder | None = None
        self._recorder: EvaluationRecording | TrainingRecording | None = None
        self._evaluations: Evaluations | None = None
        self._last_evaluation: Result | None = None
        self._callbacks = TrainingCallbacks()
        self._other_learners = ExitStack()
        self.notes: list[str] = []
        option_names = {name for name in config if config.get(name) is not None}
        try:
            with option_names_in_errors(option_names):
                self.config = self._replace_custom_io(config)
                self._build(self.config.plan())
        # Ends processes and deletes temporary folders that were created before the error.
        except BaseException:
            self.stop()
            raise

    @classmethod
    def from_checkpoint(cls, path: str | Path, config: AlgorithmConfig | None = None) -> Self:
        """Rebuild the algorithm of a checkpoint and resume from there.

        Args:
            path: a checkpoint, or a folder of checkpoints: its best, else its latest.
            config: None uses the config that the checkpoint was written with.

        Raises:
            DataError: there is no checkpoint, or its config is incomplete.
            UserError: the algorithm cannot be built.
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
        """Number of finished iterations."""
        return self._trainer.iteration

    @property
    def offline_data(self) -> OfflineData | None:
        """The source of batches; None without data to train on."""
        experience = self._trainer.experience
        return experience if isinstance(experience, OfflineData) else None

    @property
    def learner_group(self) -> LearnerGroup:
        """A group with only the first learner; a function that it calls gets the learner's network and update count."""
        return LearnerGroup(self.get_module(), lambda: self._trainer.learner.updates)

    @functools.cached_property
    def env_runner_group(self) -> EnvRunnerGroup:
        """The group that plays episodes for inspection; they are neither learned from nor recorded.

        Raises:
            SpecError: there is no environment.
        """
        environment = (
            self._recording_resource.spec.environment
            if self._recording_resource is not None
            else self._environment
        )
        if environment is None:
            raise SpecError("env is missing: name the environment to play in with .environment(env=...).")
        return EnvRunnerGroup(LocalEnvRunner(environment, self.get_policy(), self.config["seed"] or 0))

    @option_names_in_errors()
    def train(self) -> Result:
        """Train for one iteration; with an `output`, record the episodes that the policy learns from.

        Returns:
            The iteration's results by RLlib's nested names: `learners/default_policy/…`,
            `num_env_steps_trained_lifetime` …. After the first evaluation they include the latest evaluation:
            `evaluation/env_runners/episode_return_mean` …, `evaluation/training_iteration` (the iteration of the
            evaluated weights) and `evaluation/offline/estimated_return` …. `timers/learner_update_timer` is the mean
            number of seconds of an update.

        Raises:
            SpecError: there are no data and no environment to train on.
            DataError: the data are invalid.
            OutputConflict: the output contains other data.
        """
        # Before the iteration, so that its rollout is recorded.
        self._open_experience_recording()
        num_previous_updates = self._trainer.learner.updates
        result = self._trainer.iterate()
        start_time = time.monotonic()
        held_out, online_evaluation = self._trainer.held_out_evaluator, self._run_due_evaluation()
        is_offline_due = held_out is not None and held_out.is_due(self.iteration)
        evaluation = add_evaluation(
            {}, online_evaluation, self.evaluate_offline() if is_offline_due else None
        )
        if evaluation:
            self._last_evaluation = {**(self._last_evaluation or {}), **evaluation[EVALUATION_RESULTS]}
        if self._last_evaluation is not None:
            result[EVALUATION_RESULTS] = self._last_evaluation
        timers = result[TIMERS]
        if "bottleneck" in timers:
            timers["bottleneck"] = _name_options(Problem((), timers["bottleneck"]))
        timers["evaluation_s"] = time.monotonic() - start_time
        num_updates = self._trainer.learner.updates - num_previous_updates
        timers[LEARNER_UPDATE_TIMER] = timers["update_s"] / max(1, num_updates)
        self._callbacks.call("on_train_result", result=result)
        return result

    @option_names_in_errors()
    def evaluate(self) -> Result:
        """Evaluate the current policy; with an `output` that `train()` does not write to, record the episodes.

        Returns:
            `{"training_iteration": …, "env_runners": {"episode_return_mean": …, …}}`.

        Raises:
            SpecError: there is no environment.
            OutputConflict: the output contains other data.
        """
        if self._recording_resource is not None and self._recorder is None:
            self._recorder = EvaluationRecording(self._recording_resource, self._reporter)
        if isinstance(self._recorder, EvaluationRecording):
            report = self._recorder.evaluate(self.get_policy())
            return {TRAINING_ITERATION: self.iteration, ENV_RUNNER_RESULTS: report.summary()}
        if self._evaluations is None or self._environment is None:
            raise SpecError("env is missing: name the environment to evaluate in with .environment(env=...).")
        if self._recorder is not None:
            self._note_once(_ONLY_EXPERIENCE_NOTE)
        return self._evaluations.evaluate(self.get_policy(), self.iteration)

    @option_names_in_errors()
    def evaluate_offline(self) -> Result:
        """Evaluate the current policy on the held-out episodes.

        Returns:
            `{"training_iteration": …, "validation_loss": …, "estimates": …, "verdict": …}`, as in
            `evaluation/offline` of `train()`.

        Raises:
            SpecError: there are no held-out episodes.
        """
        held_out = self._trainer.held_out_evaluator
        if held_out is None:
            raise SpecError(
                "offline_evaluation_held_out is missing: hold out episodes with "
                ".evaluation(offline_evaluation_held_out=0.1)."
            )
        self._callbacks.call("on_evaluate_offline_start")
        evaluation = held_out.evaluate(self.iteration)
        self._callbacks.call("on_evaluate_offline_end", evaluation_metrics=evaluation)
        return evaluation

    def save_to_path(self, path: str | Path | None = None) -> str:
        """Write a checkpoint.

        Args:
            path: the checkpoint's folder: new, empty, or an earlier checkpoint, which is overwritten. None creates a
                temporary folder.

        Returns:
            The path of the folder, which `Policy.load` opens too.

        Raises:
            DataError: the folder contains other files.
            StorageError: the checkpoint cannot be written.
        """
        folder = resolve(path or tempfile.mkdtemp(prefix="hindcast-"))
        if isinstance(self._recorder, TrainingRecording):
            # A run that resumes from this checkpoint plays only the episodes after those that are flushed here.
            self._recorder.flush()
        pending_updates = self._evaluations.pending_updates if self._evaluations else None
        extra_state = {
            "evaluating": pending_updates,
            EVALUATION_RESULTS: self._last_evaluation,
            CONFIG_KEY: config_to_json(self.config.to_dict()),
        }
        self._trainer.save(SingleCheckpointStore(folder, extra_state))
        return str(folder)

    def save(self, checkpoint_dir: str | Path | None = None) -> SaveResult:
        """Call `save_to_path`, under RLlib's older name. The folder is `.checkpoint.path` of the result."""
        return SaveResult(SavedCheckpoint(self.save_to_path(checkpoint_dir)))

    def restore(self, checkpoint_path: str | Path | SaveResult) -> None:
        """Call `restore_from_path`, under RLlib's older name. The path may also be the result of `save`."""
        path = checkpoint_path.checkpoint.path if isinstance(checkpoint_path, SaveResult) else checkpoint_path
        self.restore_from_path(path)

    def restore_from_path(self, path: str | Path, component: str | None = None) -> None:
        """Resume from a checkpoint, or restore only one of its components.

        Args:
            path: a checkpoint, or a folder of checkpoints: its best, else its latest.
            component: None restores everything, and training continues with the same batches and updates as without
                the interruption. COMPONENT_RL_MODULE restores only the policy, COMPONENT_LEARNER all networks and their
                optimisers.

        Raises:
            DataError: there is no checkpoint at the path, or it has another algorithm, model or environment.
            SpecError: the component is unknown.
        """
        scope = parse_component(component)
        if scope == "policy":
            self._load_policy(path)
            return
        checkpoint = find_checkpoint(path)
        if checkpoint.training.algorithm != self._algorithm:
            raise DataError(
                f"{path} is a checkpoint of {checkpoint.training.algorithm}, but this is {self._algorithm}: "
                "component=COMPONENT_RL_MODULE restores only its policy."
            )
        load_policy(self.get_policy(), str(checkpoint.location))
        if scope == "learner":
            self._trainer.learner.load(checkpoint.learner_state())
            return
        if self._evaluations is not None:
            # Discard the result of a running evaluation: it belongs to the weights that were replaced.
            self._evaluations.collect()
        self._trainer.load(checkpoint)
        self._callbacks.call("on_checkpoint_loaded")
        self._last_evaluation = checkpoint.training.counters.get(EVALUATION_RESULTS)
        in_parallel = self._evaluations is not None and self._evaluations.runs_in_parallel
        if in_parallel and checkpoint.training.counters.get("evaluating") is not None:
            self._launch_evaluation()

    def get_policy(self, policy_id: str = DEFAULT_MODULE_ID) -> Policy:
        """Return the policy, which acts with the current weights, also after `stop()`.

        Raises:
            SpecError: the policy id is unknown.
        """
        if policy_id != DEFAULT_MODULE_ID:
            raise SpecError(f"policy_id is {policy_id!r}: the only policy is {DEFAULT_MODULE_ID!r}.")
        return self._trainer.policy

    def get_config(self) -> AlgorithmConfig:
        """Return `config`, under RLlib's other name."""
        return self.config

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule:
        """Return the policy's network.

        Raises:
            SpecError: the module id is unknown.
        """
        if module_id != DEFAULT_MODULE_ID:
            raise SpecError(f"module_id is {module_id!r}: the only module is {DEFAULT_MODULE_ID!r}.")
        return self.get_policy().module

    def stop(self) -> None:
        """Complete the recorded dataset, stop the processes, close the environments and delete temporary folders.

        A custom writer receives the recorded episodes.
        """
        if self._recorder is not None:
            self._recorder.close()
        if self._evaluations is not None:
            self._evaluations.close()
        # `vars` contains the group only if it exists; reading the cached property would create it.
        if "env_runner_group" in vars(self):
            self.env_runner_group.local_env_runner.close()
        # `stop` also runs after an error in `__init__`.
        if hasattr(self, "_trainer"):
            self._trainer.close()
        self._other_learners.close()
        self._reader_folders.close()
        if self._writer_folder is not None:
            writer_folder, self._writer_folder = self._writer_folder, None
            writer_folder.close()

    cleanup = stop

    def __getattr__(self, name: str) -> Any:
        if name in _UNSUPPORTED_ATTRIBUTES:
            raise UnknownName(f"{name} does not exist: {_UNSUPPORTED_ATTRIBUTES[name]}.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _replace_custom_io(self, config: AlgorithmConfig) -> AlgorithmConfig:
        """Return a frozen copy of the config, with temporary folders in place of custom readers and a custom writer.

        The batches of the readers are written to their folders here.
        """
        new_config = config.copy(copy_frozen=False)
        if has_readers(config.get("input_")):
            new_config.offline_data(input_=self._reader_folders.read(config.to_dict()))
        if callable(config.get("output")):
            self._writer_folder = WriterFolder(config["output"], config.to_dict())
            new_config.offline_data(output=self._writer_folder.path)
        return new_config.copy(copy_frozen=True)

    def _build(self, plan: BuildPlan) -> None:
        self._algorithm = plan.algorithm
        for note in (*self.config.replaced_options, *self._reader_folders.notes):
            self._add_note(note)
        self._recording_resource, self._reporter = plan.recording, _NoteReporter(self._add_note)
        self._environment = plan.training.spec.environment if plan.training else None
        if plan.training is not None:
            self._callbacks = TrainingCallbacks(plan.training.spec.callbacks)
            self._callbacks.algorithm = self
            # A placeholder: this store lists no checkpoints, so evaluations mark none as best.
            store = SingleCheckpointStore(resolve("."))
            self._evaluations = Evaluations(plan.training, store, self._reporter, callbacks=self._callbacks)
        self._trainer = self._make_trainer(plan)
        # Evaluation processes use CPUs, which torch's threads must leave to them.
        self._trainer.num_busy_processors = self._evaluations.num_processes if self._evaluations else 0
        notes = _drop_notes_on_derived_fields(self._trainer.notes, self.config.get("model_config"))
        for message in map(_name_options, notes):
            self._add_note(message)
        learner, policy = self._trainer.learner, self._trainer.policy
        if plan.algorithm in _RLLIB_ALGORITHMS:
            differences = differences_from_rllib(learner.algorithm, plan.model, policy.action_space)
            if differences is not None:
                self._add_note(differences)
        if defaults_note := describe_defaults(plan.algorithm, self.config):
            self._add_note(defaults_note)
        if plan.training is None or plan.is_online:
            self._warm_start(plan.initial_checkpoint)
        else:
            self._trainer.begin()
        resource = plan.training or plan.recording
        assert resource is not None
        self._callbacks.start(resource, None)

    def _make_trainer(self, plan: BuildPlan) -> Trainer:
        if plan.training is None:
            assert plan.recording is not None
            environment, seed = plan.recording.spec.environment, plan.recording.spec.seed
            algorithm, spaces = build(plan.algorithm, plan.config), environment_spaces(environment)
            networks = build_networks(algorithm, spaces, plan.model, environment, seed=seed)
            policy, learner = networks.make_policy_and_learner()
            return Trainer(plan.algorithm, policy, learner, None, notes=networks.notes(policy))
        if plan.is_online:
            return make_online_trainer(plan.training, plan.training.spec, plan.num_envs)
        if (initial := plan.training.spec.initial_checkpoint) is not None:
            # The result is not used: this only raises errors before the data are prepared, which takes long.
            load_initial_policy(initial, plan.model)
        inputs = open_inputs(plan.training, resolve_inputs(plan.training, FileReferences({})), self._reporter)
        sources = make_sources(inputs)
        spec = plan.training.spec
        placement = self._other_learners.enter_context(
            program_placement(spec.learners, spec.pipeline.data_workers)
        )
        group = self._other_learners.enter_context(start_learners(plan.training, sources, placement))
        return make_offline_trainer(plan.training, sources, placement, group)

    def _warm_start(self, path: str | None) -> None:
        """Load the initial policy of an algorithm without data; for a training on data, `Trainer.begin` loads it."""
        if path is None:
            return
        try:
            self._load_policy(path)
        except DataError as error:
            error.locate(("initial_checkpoint",))
            raise

    def _load_policy(self, path: str | Path) -> None:
        """Load a checkpoint's policy, and copy its weights to the target networks."""
        note = load_policy(self.get_policy(), path)
        self._trainer.learner.reset_target_networks("policy")
        if note:
            self._add_note(note)

    def _run_due_evaluation(self) -> Result | None:
        """Run or start the evaluation that is due in this iteration; return an evaluation that has finished, if any."""
        if self._evaluations is None:
            return None
        evaluation = self._evaluations.collect()
        if not self._evaluations.is_due(self.iteration):
            return evaluation
        if self._evaluations.runs_in_parallel:
            self._launch_evaluation()
            return evaluation
        return self._evaluations.evaluate(self.get_policy(), self.iteration)

    def _open_experience_recording(self) -> None:
        """Let the players add the episodes that the policy learns from to the output.

        Nothing happens without an output. If `evaluate()` already adds episodes to the output, or nothing is played, a
        note says that `train()` records none.
        """
        if self._recording_resource is None or isinstance(self._recorder, TrainingRecording):
            return
        players = find_episode_players(self._trainer.experience)
        if self._recorder is not None or not players:
            self._note_once(_ONLY_EVALUATIONS_NOTE)
            return
        self._recorder = TrainingRecording(self._recording_resource, self._reporter, self.get_policy())
        for player in players:
            player.on_episodes = self._recorder.on_episodes

    def _launch_evaluation(self) -> None:
        assert self._evaluations is not None
        self._evaluations.launch(self.get_policy(), self.iteration, self._trainer.learner.updates)

    def _note_once(self, message: str) -> None:
        if message not in self.notes:
            self._add_note(message)

    def _add_note(self, message: str) -> None:
        self.notes.append(message)
        _LOG.warning(message)


def _name_options(note: Problem) -> str:
    return str(use_option_names(replace(note, mentions=(*note.mentions, *DATA_MENTIONS))))


def _drop_notes_on_derived_fields(notes: Sequence[Problem], model_config: Any) -> list[Problem]:
    """Return the notes without those on fields that the user did not set."""
    fields = {"vfShareLayers"}  # `DefaultModelConfig` sets it
    if isinstance(model_config, DefaultModelConfig):
        fields.add("preset")
    if any(note.field[-1:] == ("convFilters",) for note in notes):
        fields.add("convPadding")  # derived from the filters; its note would repeat the reason
    return [note for note in notes if fields.isdisjoint(note.field)]


class _NoteReporter(Reporter):
    """A reporter that passes on notes, and drops progress, since results contain it."""

    def __init__(self, add_note: Callable[[str], None]) -> None:
        self._add_note = add_note

    def note(self, resource: str, message: str) -> None:  # noqa: ARG002
        self._add_note(_name_options(Problem((), message)))
