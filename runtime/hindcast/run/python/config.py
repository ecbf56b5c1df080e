"""`AlgorithmConfig`: the reference's chainable description of a training or a recording, in Python.

    config = (
        BCConfig()
        .environment("CartPole-v1")
        .offline_data(input_="data/cartpole")
        .training(lr=8e-4)
        .evaluation(evaluation_interval=3, evaluation_duration=5)
    )
    with config.build_algo() as algo:
        for _ in range(100):
            result = algo.train()
        algo.save_to_path("checkpoint")

It makes the same resources as YAML (`config.to_resource()`). What becomes of each option stands in
`options`; methods refuse names that are in no table, with the nearest one that is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic.alias_generators import to_camel

from hindcast.api import OfflineRecording, OfflineTraining
from hindcast.api.options import algorithms, is_custom, schemas
from hindcast.api.sentences import nearest
from hindcast.errors import SpecError
from hindcast.run.python.model_config import as_dict, replaced_model_fields
from hindcast.run.python.names import check_names, method_of
from hindcast.run.python.plan import Plan, plan_of
from hindcast.run.python.resources import learns_online, option_named, recording, training
from hindcast.run.python.user_objects import portable

if TYPE_CHECKING:
    from hindcast.run.python.algorithm import RunningAlgorithm

_OF_DATA = ("pipeline.", "learners.replicas")


class AlgorithmConfig:
    """Options of an algorithm and of all around it.

    Args:
        algorithm: a name ("BC", "PPO"), or "package.module:Class" of one's own.

    Attributes:
        algorithm: as given.
    """

    default_algorithm: ClassVar[str | None] = None

    def __init__(self, algorithm: str | None = None) -> None:
        chosen = algorithm or self.default_algorithm
        if chosen is None or not (is_custom(chosen) or chosen in schemas()):
            known = [*algorithms("OfflineTraining"), *algorithms("OfflineRecording")]
            raise SpecError(f"algorithm is {chosen!r}, which is no algorithm{nearest(str(chosen), known)}")
        self.algorithm = chosen
        self._options: dict[str, Any] = {}

    def environment(self, env: Any = None, **options: Any) -> Self:
        """The environment, or the spaces where there is none."""
        return self._take("environment", {"env": env, **options} if env is not None else options)

    def env_runners(self, **options: Any) -> Self:
        """How environments are stepped and recorded."""
        return self._take("env_runners", options)

    def training(self, **options: Any) -> Self:
        """The algorithm's own options, as in `spec.config`: `docs/reference.md` has them all."""
        return self._take("training", options)

    def learners(self, **options: Any) -> Self:
        """How many learners, and on what."""
        return self._take("learners", options)

    def offline_data(self, **options: Any) -> Self:
        """The data to train on (`input_`) and the dataset to record (`output`)."""
        return self._take("offline_data", options)

    def evaluation(self, **options: Any) -> Self:
        """When and how the policy is evaluated; with an `output`, how much `evaluate()` records."""
        return self._take("evaluation", options)

    def rl_module(self, **options: Any) -> Self:
        """The policy network."""
        return self._take("rl_module", options)

    def debugging(self, **options: Any) -> Self:
        """The seed."""
        return self._take("debugging", options)

    def framework(self, framework: str = "torch", **options: Any) -> Self:
        """PyTorch."""
        if framework != "torch":
            raise SpecError(f"framework is {framework!r}: Hindcast computes with PyTorch, which is 'torch'.")
        return self._take("framework", options)

    def api_stack(self, **options: Any) -> Self:
        """There is one stack; nothing to choose."""
        return self._take("api_stack", options)

    def resources(self, **options: Any) -> Self:
        """Of the reference's old stack."""
        return self._take("resources", options)

    def reporting(self, **options: Any) -> Self:
        """What results hold."""
        return self._take("reporting", options)

    def checkpointing(self, **options: Any) -> Self:
        """What checkpoints hold."""
        return self._take("checkpointing", options)

    def fault_tolerance(self, **options: Any) -> Self:
        """What is retried."""
        return self._take("fault_tolerance", options)

    def callbacks(self, *classes: Any, **options: Any) -> Self:
        """Not available yet."""
        return self._take("callbacks", {"callbacks_class": classes[0], **options} if classes else options)

    def multi_agent(self, **options: Any) -> Self:
        """Not available yet."""
        return self._take("multi_agent", options)

    @property
    def replaced(self) -> list[str]:
        """The options given that change nothing, each with what does their work or why they do not apply."""
        online, records = learns_online(self.algorithm), bool(self._options.get("output"))
        found = []
        for name, value in self._options.items():
            option = option_named(name)
            if option is None:
                continue
            if option.kind == "replaced":
                found.append(f"{name}: {option.remark}")
            if option.kind == "mapped" and not option.training and not records:
                found.append(f"{name}: it is of recordings, and no output is given")
            if online and option.training.startswith(_OF_DATA):
                found.append(f"{name}: {self.algorithm} samples its own data")
            if name == "model_config":
                found += replaced_model_fields(value)
        return found

    def to_resource(
        self,
        name: str | None = None,
        *,
        stop: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
    ) -> OfflineTraining | OfflineRecording:
        """The resource that YAML would have given: a recording where only an `output` is given, else a training.

        Args:
            name: `metadata.name`; the algorithm's, in lower case, if None.
            stop: `spec.stop` of a training, or of the policy's training in a recording (`{"epochs": 5}`); None
                is one iteration, which is what one `train()` does.
            policy: `spec.policy` of a recording (`{"checkpoint": {"path": …}}`); None trains one.

        Raises:
            SpecError: a line for every problem, in the words that a file's problems have.
        """
        name = name or self._name
        ends = {to_camel(key): value for key, value in stop.items()} if stop else None
        if self._options.get("output") and not self._options.get("input_"):
            return recording(self.algorithm, self._options, name, dict(policy) if policy else None, ends)
        if learns_online(self.algorithm):
            raise SpecError(
                f"{self.algorithm} learns in its environment: as a resource it makes the policy of a recording; "
                "give .offline_data(output=...)."
            )
        return training(self.algorithm, self._options, name, ends)

    def plan(self) -> Plan:
        """What `build_algo` builds.

        Raises:
            SpecError: a line for every problem.
        """
        return plan_of(self.algorithm, self._options, self._name)

    def build_algo(self) -> RunningAlgorithm:
        """The algorithm, ready to train, evaluate, record. Later changes of the config do not reach it.

        Raises:
            UserError: what is wrong with the options, the environment or the data.
        """
        from hindcast.run.python.algorithm import RunningAlgorithm

        return RunningAlgorithm(self)

    build = build_algo

    def copy(self) -> Self:
        """A config of its own with the same options."""
        twin = type(self)(self.algorithm)
        twin._options = copy.copy(self._options)
        return twin

    def to_dict(self) -> dict[str, Any]:
        """The options given, by name, search spaces of Tune as they are: `update_from_dict` takes them back."""
        options = dict(self._options)
        if "env" in options:
            options["env"] = portable(options["env"])
        if "model_config" in options:
            options["model_config"] = as_dict(options["model_config"])
        return options

    def update_from_dict(self, options: Mapping[str, Any]) -> Self:
        """Take options by name, whichever method they are of.

        Raises:
            SpecError: a name that is no option.
        """
        for name, value in options.items():
            self._take(method_of(self.algorithm, name), {name: value})
        return self

    def get(self, name: str, default: Any = None) -> Any:
        """The value given to an option, else `default`."""
        return self._options.get(name, default)

    def __getitem__(self, name: str) -> Any:
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"{type(self).__name__}({given})"

    @property
    def _name(self) -> str:
        return self.algorithm.rpartition(":")[2].lower()

    def _take(self, method: str, options: Mapping[str, Any]) -> Self:
        check_names(self.algorithm, method, options)
        self._options.update(options)
        return self


class BCConfig(AlgorithmConfig):
    """Behaviour cloning from recorded data."""

    default_algorithm = "BC"


class PPOConfig(AlgorithmConfig):
    """PPO, which makes experts: it learns in its environment."""

    default_algorithm = "PPO"
