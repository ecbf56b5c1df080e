"""`TrainingConfig`: a training's options under RLlib's names, for pre-learners and `OfflineData` in RLlib's form."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import gymnasium as gym
import torch

from hindcast.api.environment import EnvironmentSpec, NamedCall
from hindcast.api.model import ModelSpec
from hindcast.episodes.spaces import space_from_json
from hindcast.errors import SpecError
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import build_module
from hindcast.pipeline.connector_factory import make_learner_pipeline
from hindcast.pipeline.connector_v2 import LearnerConnectorPipeline
from hindcast.pipeline.multi_rl_module import ModuleSpec
from hindcast.pipeline.rng import derive_seed


class TrainingConfig:
    """The options of a training: attributes, to be read. It is the same from a file, in Python and on a cluster.

    Args:
        document: JSON: `options` by RLlib's names, `connectors`, `model`, `observationSpace`, `actionSpace`, `seed`.

    Attributes:
        observation_space, action_space: the environment's, or those that the training gives; None if it gives none.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = {"options": {}, "connectors": [], **document}
        self.observation_space = _space(document.get("observationSpace"))
        self.action_space = _space(document.get("actionSpace"))

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("_document", {}).get("options", {})
        if name.startswith("__") or name not in options:
            known = ", ".join([*sorted(options), "observation_space", "action_space", "rl_module_spec"])
            raise AttributeError(f"the config has no {name!r} here; it has {known}")
        return options[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An option, or the default if it is not set."""
        return self._document["options"].get(name, default)

    def build_learner_connector(
        self,
        input_observation_space: gym.Space | None,
        input_action_space: gym.Space | None,
        device: Any = None,  # noqa: ARG002
    ) -> LearnerConnectorPipeline:
        """The training's connectors in RLlib's form, and RLlib's default pieces."""
        named = [NamedCall(**each) for each in self._document["connectors"]]
        return make_learner_pipeline(named, input_observation_space, input_action_space)

    @cached_property
    def rl_module_spec(self) -> ModuleSpec:
        """What the policy's network is built from, by the training's seed.

        Raises:
            SpecError: the training has no spaces.
        """
        if self.observation_space is None or self.action_space is None:
            raise SpecError(
                "a pre-learner asks for the network, and there are no spaces: name the environment, or give "
                "spec.observationSpace and spec.actionSpace."
            )
        model = ModelSpec.model_validate(self._document["model"])
        environment = EnvironmentSpec.model_validate(self._document["environment"])
        seen = Preprocessing.from_specs(self.observation_space, self.action_space, model, environment)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self._document["seed"], "pre-learner"))
            return ModuleSpec(build_module(seen.observation_space, seen.action_space, model, False))


def _space(space: Any) -> gym.Space | None:
    return None if space is None else space_from_json(space)
