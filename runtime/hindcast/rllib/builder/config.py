"""`AlgorithmConfig`: RLlib's chainable configuration of a training or a recording.

    config = (
        BCConfig()
        .environment("CartPole-v1")
        .offline_data(input_="data/cartpole")
        .training(lr=8e-4)
        .evaluation(evaluation_interval=3, evaluation_duration=5)
    )
    config.lr = 1e-3  # the same as .training(lr=1e-3)
    with config.build_algo() as algo:
        for _ in range(100):
            result = algo.train()
        algo.save_to_path("checkpoint")

`config.to_resource()` returns the equivalent resource. `options.toml` lists every option and its field; methods refuse
names that are not in it and suggest the nearest one. `algorithm_configs` has `BCConfig` and the other configs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydantic.alias_generators import to_camel

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.metadata import make_resource_name
from hindcast.api.options import is_custom, schemas
from hindcast.api.sentences import nearest
from hindcast.errors import SpecError
from hindcast.formatting import describe_type
from hindcast.rllib.builder.composite_options import expand_options
from hindcast.rllib.builder.model_config import model_config_to_dict
from hindcast.rllib.builder.module_spec import spec_to_dict
from hindcast.rllib.builder.option_names import (
    REMOVED_METHODS,
    UnknownName,
    check_name,
    find_default,
    find_method,
    is_default_of_missing_option,
)
from hindcast.rllib.builder.option_values import (
    array_to_list,
    copy_value,
    has_recorded_input,
    is_filesystem,
    make_filesystem,
    named_connectors,
)
from hindcast.rllib.builder.options import option_names_in_errors
from hindcast.rllib.builder.replaced_options import replaced_options
from hindcast.rllib.builder.resources import (
    BuildPlan,
    is_online_only,
    make_build_plan,
    recording_resource,
    training_resource,
    with_sections,
)
from hindcast.rllib.builder.user_objects import refuse_local_objects, to_import_path, to_portable
from hindcast.user_code import import_object, refuse_unused_overrides

if TYPE_CHECKING:
    from hindcast.rllib.builder.algorithm import RunningAlgorithm
    from hindcast.rllib.connectors.connector_v2 import LearnerConnectorPipeline

_USE_MODEL_CONFIG = (
    "use model_config's observation_filter and frame_stack, which recording and evaluation both apply"
)
# Named by its path, since its module imports torch, which creating and validating a config does not need.
_ALGORITHM_CLASS: Final = "hindcast.rllib.builder.algorithm:RunningAlgorithm"
_INSTANCE_ATTRIBUTES = ("algorithm", "_options", "_is_frozen")


class AlgorithmConfig:
    """Options of an algorithm, its data, environment and evaluation.

    Args:
        algorithm: a name ("BC", "PPO"), or "package.module:Class" of a custom one. Without it the config only stores
            options, for `BCConfig.from_dict(config.to_dict())`.

    Attributes:
        algorithm: name or import path of the algorithm; None if the config has none.
        unsupported_overrides: methods of RLlib's configs that nothing calls here -> what to do instead.

    Every option is also an attribute: its value, else the algorithm's default, else None. Dictionaries, lists and other
    containers are copied when they are set, and in a frozen config also when they are read.
    """

    default_algorithm: ClassVar[str | None] = None
    unsupported_overrides: ClassVar[Mapping[str, str]] = {
        "build_env_to_module_connector": _USE_MODEL_CONFIG,
        "build_module_to_env_connector": _USE_MODEL_CONFIG,
        "get_default_learner_class": "set training(learner_class=...)",
        "get_default_rl_module_spec": "set rl_module(rl_module_spec=RLModuleSpec(module_class=...))",
    }
    algorithm: str | None
    _options: dict[str, Any]
    _is_frozen: bool

    def __init__(self, algorithm: str | None = None, **kwargs: Any) -> None:
        if kwargs.get("algo_class", ...) is None:
            del kwargs["algo_class"]  # RLlib's default
        if kwargs:
            raise SpecError(
                f"AlgorithmConfig has no argument {', '.join(kwargs)}: pass the algorithm's name, "
                '"BC", or "package.module:Class" for a custom one'
            )
        refuse_unused_overrides(type(self))
        name = algorithm or self.default_algorithm
        if name is not None and not (is_custom(name) or name in schemas()):
            raise SpecError(f"algorithm is {name!r}, which is not an algorithm{nearest(name, schemas())}")
        self._is_frozen = False
        self.algorithm = name
        self._options = {}

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Self:
        """Return a config with options by name; the inverse of `to_dict`.

        Raises:
            SpecError: a name is not an option.
        """
        return cls().update_from_dict(options)

    @classmethod
    def overrides(cls, **options: Any) -> dict[str, Any]:
        """Check the options' names and return them: `evaluation_config=BCConfig.overrides(explore=False)`.

        Raises:
            SpecError: a name is not an option.
        """
        cls.from_dict(options)
        return options

    def environment(self, env: Any = None, **options: Any) -> Self:
        """Set the environment, or the spaces of data without an environment."""
        return self._set("environment", {"env": env, **options} if env is not None else options)

    def env_runners(self, **options: Any) -> Self:
        """Set how the policy plays in environments to learn or to record."""
        return self._set("env_runners", options)

    def training(self, **options: Any) -> Self:
        """Set the algorithm's own options, as in `spec.config`; see `docs/reference.md`."""
        return self._set("training", options)

    def learners(self, **options: Any) -> Self:
        """Set the number of learners and their devices."""
        return self._set("learners", options)

    def offline_data(self, **options: Any) -> Self:
        """Set the data to train on (`input_`: paths, tables or readers) and the dataset to record (`output`)."""
        if "input_" in options:
            # Not at the module's import: it imports pyarrow.
            from hindcast.rllib.batch_io.tables import wrap_tables

            options["input_"] = wrap_tables(options["input_"])
        return self._set("offline_data", options)

    def evaluation(self, **options: Any) -> Self:
        """Set when and how the policy is evaluated; with an `output`, how much `evaluate()` records."""
        return self._set("evaluation", options)

    def rl_module(self, **options: Any) -> Self:
        """Set the policy network."""
        return self._set("rl_module", options)

    def debugging(self, **options: Any) -> Self:
        """Set the seed."""
        return self._set("debugging", options)

    def framework(self, framework: str = "torch", **options: Any) -> Self:
        """Set options of PyTorch, the only framework."""
        if framework != "torch":
            raise SpecError(f"framework is {framework!r}: Hindcast only supports PyTorch, 'torch'.")
        return self._set("framework", options)

    def api_stack(self, **options: Any) -> Self:
        """Accept options for compatibility with RLlib; Hindcast has only one API stack."""
        return self._set("api_stack", options)

    def resources(self, **options: Any) -> Self:
        """Accept options of RLlib's old API stack."""
        return self._set("resources", options)

    def reporting(self, **options: Any) -> Self:
        """Set the contents of results."""
        return self._set("reporting", options)

    def checkpointing(self, **options: Any) -> Self:
        """Set the contents of checkpoints."""
        return self._set("checkpointing", options)

    def fault_tolerance(self, **options: Any) -> Self:
        """Set what is retried after a failure."""
        return self._set("fault_tolerance", options)

    def callbacks(self, *classes: Any, **options: Any) -> Self:
        """Set classes of callbacks, and functions: `on_train_result=…`, `on_episode_end=[…, …]`."""
        if not classes:
            return self._set("callbacks", options)
        entries = (*classes, options["callbacks_class"]) if "callbacks_class" in options else classes
        value = entries[0] if len(entries) == 1 else list(entries)
        return self._set("callbacks", {**options, "callbacks_class": value})

    def multi_agent(self, **options: Any) -> Self:
        """Refuse multi-agent options, which are not available yet, except RLlib's defaults."""
        return self._set("multi_agent", options)

    @property
    def replaced_options(self) -> list[str]:
        """The options without effect, each with its replacement or the reason.

        Building the algorithm warns about them.
        """
        return replaced_options(self.algorithm, self._options)

    @option_names_in_errors()
    def to_resource(
        self,
        name: str | None = None,
        *,
        stop: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> OfflineTraining | OfflineRecording:
        """Return the equivalent YAML resource: a recording if only an `output` is set, else a training.

        Args:
            name: `metadata.name`; None takes the name of the algorithm, or of its custom class, in lower case.
            stop: `spec.stop` of a training, or of the policy's training in a recording (`{"epochs": 5}`); None
                trains for one iteration, as one `train()` does.
            policy: `spec.policy` of a recording (`{"checkpoint": {"path": …}}`); None trains one.
            spec: sections of the spec that no option sets, by their names in YAML: `cluster`, `runPolicy`,
                `checkpoint`, `revision` and `suspend`.

        Raises:
            SpecError: one line per problem, in the names of the options.
        """
        for option in ("input_filesystem", "output_filesystem"):
            if is_filesystem(filesystem := make_filesystem(option, self._options)):
                raise SpecError(
                    f"{option} is {describe_type(filesystem)}, which a resource cannot contain: write paths as "
                    "URIs (s3://bucket/folder); credentials come from the environment."
                )
        algorithm, name = self._algorithm_path, name or self._resource_name
        stop_fields = {to_camel(key): value for key, value in stop.items()} if stop else None
        options = expand_options(self.algorithm, self._explicit_options)
        if options.get("output") and options.get("input_"):
            raise SpecError(
                "input_ and output are both set, but a resource either trains or records: leave one of them out. Only "
                "build_algo() does both."
            )
        resource: OfflineTraining | OfflineRecording
        if options.get("output"):
            resource = recording_resource(
                algorithm, options, name, dict(policy) if policy else None, stop_fields
            )
        elif is_online_only(algorithm):
            raise SpecError(
                f"{algorithm} learns in its environment, so its resource is a recording of the policy that it "
                "trains: add .offline_data(output=...)."
            )
        else:
            resource = training_resource(algorithm, options, name, stop_fields)
        refuse_local_objects(resource.model_dump())
        if spec is None:
            return resource
        return with_sections(resource, spec)

    @option_names_in_errors()
    def plan(self) -> BuildPlan:
        """Return the plan of `build_algo`.

        Raises:
            SpecError: one line per problem.
        """
        return make_build_plan(self._algorithm_path, self._explicit_options, self._resource_name)

    def validate(self) -> None:
        """Check all options, as `build_algo` does before it builds.

        Raises:
            SpecError: one line per problem.
        """
        self.plan()

    def build_algo(self, env: Any = None) -> RunningAlgorithm:
        """Build the algorithm, ready to train, evaluate and record. Later changes to the config do not affect it.

        Args:
            env: see `environment()`; None uses the config's environment.

        Raises:
            UserError: the options, the environment or the data are invalid.
        """
        algorithm_class: type[RunningAlgorithm] = import_object(_ALGORITHM_CLASS, "build_algo")
        return algorithm_class(self if env is None else self.copy(copy_frozen=False).environment(env))

    build = build_algo

    def build_learner_connector(
        self,
        input_observation_space: Any,
        input_action_space: Any,
        device: Any = None,  # noqa: ARG002
    ) -> LearnerConnectorPipeline:
        """Hook: return the connectors, in RLlib's form, that turn recorded episodes into batches.

        A subclass overrides this method, calls it with `super()` and modifies its result: the connectors of
        `learner_connector`, followed by RLlib's default connectors. Default connectors at the end cost nothing, since
        a training does the same without them.

        Args:
            input_observation_space: observation space of the episodes.
            input_action_space: action space of the episodes.
            device: always None; batches are moved to the learner's device automatically.
        """
        from hindcast.rllib.connectors.form import make_learner_pipeline

        connectors = named_connectors(self._options.get("learner_connector"))
        return make_learner_pipeline(connectors, input_observation_space, input_action_space)

    def freeze(self) -> None:
        """Make the config read-only."""
        self._is_frozen = True

    @property
    def is_multi_agent(self) -> bool:
        """False: there is one policy."""
        return False

    @property
    def is_offline(self) -> bool:
        """True if `input_` names recorded data."""
        return has_recorded_input(self._options)

    @property
    def total_train_batch_size(self) -> int | None:
        """Number of timesteps in the global batch, of all learners together.

        Without an algorithm, or with a custom one, it is None unless `train_batch_size_per_learner` is set.
        """
        per_learner = self["train_batch_size_per_learner"]
        return None if per_learner is None else per_learner * max(1, self["num_learners"] or 1)

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """Return an independent config with the same options.

        Args:
            copy_frozen: whether the copy is frozen; with None it is if this config is.
        """
        config = copy.copy(self)  # a subclass's __init__ may have other parameters
        config._options = copy_value(self._options)
        config._is_frozen = self._is_frozen if copy_frozen is None else copy_frozen
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return the options that were set, by name, including Tune's search spaces; see `update_from_dict`."""
        options: dict[str, Any] = copy_value(self._explicit_options)
        if "env" in options:
            options["env"] = to_portable(options["env"])
        if "model_config" in options:
            options["model_config"] = model_config_to_dict(options["model_config"])
        if "rl_module_spec" in options:
            options["rl_module_spec"] = spec_to_dict(options["rl_module_spec"])
        return options

    def update_from_dict(self, options: Mapping[str, Any]) -> Self:
        """Set options by name, with the methods that they belong to.

        Raises:
            SpecError: a name is not an option.
        """
        for name, value in options.items():
            getattr(self, find_method(self.algorithm, name))(**{name: value})
        return self

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value that was set for an option, else `default`, not the algorithm's default."""
        return self[name] if name in self._options else default

    def __getitem__(self, name: str) -> Any:
        if name not in self._options:
            return copy_value(find_default(self.algorithm, name))
        return copy_value(self._options[name]) if self._is_frozen else self._options[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update_from_dict({name: value})

    def __getattr__(self, name: str) -> Any:
        # `copy` and `pickle` look up these attributes before they exist; looking them up as options would recurse.
        if name in _INSTANCE_ATTRIBUTES or name.startswith("__"):
            raise AttributeError(name)
        if name in REMOVED_METHODS:
            raise UnknownName(f"{name}(): {REMOVED_METHODS[name]}.")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _INSTANCE_ATTRIBUTES:
            super().__setattr__(name, value)
        else:
            self.update_from_dict({name: value})

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"{type(self).__name__}({arguments})"

    @property
    def _explicit_options(self) -> dict[str, Any]:
        """The options that were set, and the learner connector of a subclass that overrides its method."""
        if type(self).build_learner_connector is AlgorithmConfig.build_learner_connector:
            return self._options
        return {**self._options, "learner_connector": self.build_learner_connector}

    @property
    def _algorithm_path(self) -> str:
        """The name or import path of the algorithm, or of its subclass `learner_class` if that is set."""
        if self.algorithm is None:
            raise SpecError(
                "AlgorithmConfig() has no algorithm: start with BCConfig() or another algorithm's config, or copy the "
                "options with BCConfig.from_dict(config.to_dict())."
            )
        if (learner_class := self._options.get("learner_class")) is not None:
            return _learner_class_path(learner_class, self.algorithm)
        return self.algorithm

    @property
    def _resource_name(self) -> str:
        """The default of `metadata.name`."""
        return make_resource_name(self._algorithm_path.rpartition(":")[2])

    def _set(self, method: str, options: Mapping[str, Any]) -> Self:
        """Check that the method accepts the options, and set them.

        Options that the algorithm lacks here are ignored if they have RLlib's defaults.
        """
        if self._is_frozen:
            raise SpecError("the config is frozen: change config.copy(copy_frozen=False) instead.")
        settings = {
            name: array_to_list(value)
            for name, value in options.items()
            if method != "training" or not is_default_of_missing_option(self.algorithm, name, value)
        }
        for name, value in settings.items():
            check_name(self.algorithm, method, name, value)
        self._options.update(copy_value(settings))
        return self


def _learner_class_path(learner_class: Any, algorithm: str) -> str:
    """Return the import path of a learner class, an algorithm with a custom loss.

    Raises:
        SpecError: the class is not derived from this algorithm.
    """
    from hindcast.algorithms import resolve

    path = str(to_import_path("learner_class", learner_class))
    if ":" not in path:
        raise SpecError(f'learner_class is {path!r}, expected a class, or its "package.module:Class".')
    learner = import_object(path, "learner_class")
    if not (isinstance(learner, type) and issubclass(learner, resolve(algorithm))):
        raise SpecError(
            f"learner_class is {path!r}, which is not a learner of {algorithm}: derive it from {algorithm}TorchLearner "
            'if that exists; otherwise write a custom algorithm, AlgorithmConfig("package.module:Class").'
        )
    resolve(path)  # refuses methods that nothing calls
    return path
