"""`TrainingConfig` provides a training's options under RLlib's names, to user classes in RLlib's form."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import gymnasium as gym
import torch

from hindcast.api.environment import EnvironmentSpec, NamedCall
from hindcast.api.model import ModelSpec
from hindcast.api.spelling import IN_PYTHON
from hindcast.episodes.spaces import space_from_json
from hindcast.errors import SpecError
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.pipeline.rng import derive_seed
from hindcast.rllib.builder.option_names import DEFAULTS_OF_MISSING_OPTIONS
from hindcast.rllib.connectors.connector_v2 import LearnerConnectorPipeline
from hindcast.rllib.connectors.form import make_learner_pipeline
from hindcast.rllib.multi_rl_module import ModuleSpec
from hindcast.user_code import import_object

_CLASS_FIELDS: Final = {
    "prelearner_class": "spec.pipeline.preLearner",
    "prelearner_buffer_class": "spec.pipeline.preLearnerBuffer.name",
}
"""Option whose value is a class -> the field with its import path."""
_PROPERTIES: Final = (
    "observation_space",
    "action_space",
    "rl_module_spec",
    "model_config",
    "prelearner_use_recorded_module_states",
)


class TrainingConfig:
    """The options of a training, as read-only attributes; equal for a training from YAML, in Python or on a cluster.

    Args:
        document: JSON: `options` by RLlib's names, `connectors`, `model`, `environment`, `observationSpace`,
            `actionSpace`, `seed`.

    Attributes:
        observation_space, action_space: spaces of the environment, else those in the resource, else None.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = {"options": {}, "connectors": [], **document}
        self.observation_space = _parse_space(document.get("observationSpace"))
        self.action_space = _parse_space(document.get("actionSpace"))

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look up attributes before `_document` exists.
        options = self.__dict__.get("_document", {}).get("options", {})
        if name in DEFAULTS_OF_MISSING_OPTIONS and options and name not in options:
            return DEFAULTS_OF_MISSING_OPTIONS[name]
        if name.startswith("__") or name not in options:
            names = ", ".join([*sorted(options), *_PROPERTIES])
            raise AttributeError(f"the config has no {name!r} here; it has {names}")
        value = options[name]
        return import_object(value, _CLASS_FIELDS[name]) if value and name in _CLASS_FIELDS else value

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(str(error)) from None

    def __contains__(self, name: str) -> bool:
        return name in self._document["options"] or name in _PROPERTIES

    def get(self, name: str, default: Any = None) -> Any:
        """Return an option, or the default if it is not set."""
        return getattr(self, name) if name in self else default

    def to_dict(self) -> dict[str, Any]:
        """Return all options by name."""
        return {name: self[name] for name in self._document["options"]}

    @property
    def model_config(self) -> dict[str, Any]:
        """The options of the policy's network, by RLlib's names and Hindcast's."""
        model = ModelSpec.model_validate(self._document["model"])
        fields = model.model_dump(mode="json", context=IN_PYTHON)
        return {**fields, "use_lstm": model.recurrent != "none", "lstm_cell_size": model.cell_size}

    @property
    def prelearner_use_recorded_module_states(self) -> bool:
        """True if sequences begin in the states that were recorded with the data."""
        return ModelSpec.model_validate(self._document["model"]).initial_state == "recorded"

    def build_learner_connector(
        self,
        input_observation_space: gym.Space | None,
        input_action_space: gym.Space | None,
        device: Any = None,  # noqa: ARG002
    ) -> LearnerConnectorPipeline:
        """Return the training's connectors in RLlib's form, followed by RLlib's default connectors."""
        connectors = [NamedCall(**entry) for entry in self._document["connectors"]]
        return make_learner_pipeline(connectors, input_observation_space, input_action_space)

    @cached_property
    def rl_module_spec(self) -> ModuleSpec:
        """The spec of the policy's network, with weights from the training's seed; the trained one has others.

        Raises:
            SpecError: the training has no spaces.
        """
        if self.observation_space is None or self.action_space is None:
            raise SpecError(
                "a pre-learner uses the network, which requires spaces: name the environment, or set "
                "spec.observationSpace and spec.actionSpace.",
                mentions=(
                    "spec.observationSpace",
                    "spec.actionSpace",
                ),
            )
        model = ModelSpec.model_validate(self._document["model"]).for_network("policy")
        environment = EnvironmentSpec.model_validate(self._document["environment"])
        preprocessing = Preprocessing.from_specs(
            self.observation_space, self.action_space, model, environment
        )
        # The weights of the trained network come from torch's global generator, which this must not advance.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self._document["seed"], "pre-learner"))
            return ModuleSpec(
                build_module(preprocessing.observation_space, preprocessing.action_space, model, False)
            )

    @cached_property
    def sequence_length(self) -> int | None:
        """Number of timesteps of an item of a recurrent network; None if the network has no state."""
        module = self.rl_module_spec.build()[DEFAULT_MODULE_ID]
        return ModelSpec.model_validate(self._document["model"]).max_seq_len if module.is_stateful() else None


def _parse_space(space: Any) -> gym.Space | None:
    return None if space is None else space_from_json(space)
