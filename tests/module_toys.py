"""Modules that tests name as `module_toys:Class`: correct ones, and one for each possible mistake."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hindcast.algorithms.bc import BC
from hindcast.learn.algorithm import ModelInputs
from hindcast.models.encoders import Encoder
from hindcast.models.rl_module import PolicyModule, RLModule, ValueFunctionAPI

Outputs = dict[str, Tensor]


class Net(RLModule):
    """Two layers with dropout, and a value head if requested; buffers count calls and average features."""

    def setup(self, units: int = 8, dropout: float = 0.0) -> None:
        self.body = nn.Sequential(nn.Linear(4, units), nn.BatchNorm1d(units), nn.Tanh(), nn.Dropout(dropout))
        self.pi = nn.Linear(units, self.action_head.inputs_size)
        self.register_buffer("calls", torch.zeros(()))
        if self.value:
            self.vf = nn.Linear(units, 1)

    def _forward(self, batch: Mapping[str, Tensor]) -> Outputs:
        return {"action_dist_inputs": self.pi(self.body(batch["obs"]))}

    def _forward_train(self, batch: Mapping[str, Tensor]) -> Outputs:
        self.calls += 1
        features = self.body(batch["obs"])
        outputs = {"action_dist_inputs": self.pi(features)}
        return {**outputs, "vf_preds": self.vf(features).squeeze(-1)} if self.value else outputs


class SumOfObservations(RLModule):
    """A recurrent module; its state is the sum of the observations so far."""

    def setup(self) -> None:
        self.pi = nn.Linear(4, self.action_head.inputs_size)

    def get_initial_state(self) -> Outputs:
        return {"sum": torch.zeros(4)}

    def _forward(self, batch: Mapping[str, Tensor]) -> Outputs:
        obs, previous_sum = batch["obs"], batch["state_in/sum"]
        sums = obs + previous_sum if obs.dim() == 2 else obs.cumsum(1) + previous_sum.unsqueeze(1)
        last_sum = sums if obs.dim() == 2 else sums[:, -1]
        return {"action_dist_inputs": self.pi(sums.tanh()), "state_out/sum": last_sum}


class EncoderModule(RLModule):
    """Encodes observations of any space, as the default network does."""

    def setup(self) -> None:
        self.encoder = Encoder(self.observation_space, self.model_config)
        self.pi = nn.Linear(self.encoder.output_size, self.action_head.inputs_size)

    def _forward(self, batch: Mapping[str, Tensor]) -> Outputs:
        return {"action_dist_inputs": self.pi(self.encoder(batch))}


class ScaledModule(PolicyModule):
    """The default network with scaled outputs."""

    def setup(self, scale: float = 1.0) -> None:
        super().setup()
        self.scale = nn.Parameter(torch.tensor(scale))

    def _forward(self, batch: Mapping[str, Tensor]) -> Outputs:
        outputs = super()._forward(batch)
        return {**outputs, "action_dist_inputs": outputs["action_dist_inputs"] * self.scale}


class LinearModule(RLModule):
    """A correct module; each class below adds one mistake to it."""

    def setup(self) -> None:
        self.pi = nn.Linear(4, self.action_head.inputs_size)

    def _forward(self, batch: Mapping[str, Tensor]) -> Any:
        return {"action_dist_inputs": self.pi(batch["obs"])}


class RLlibModule(RLModule, ValueFunctionAPI):
    """A module written for RLlib, with its `__init__`, options in `model_config`, and values from `compute_values`."""

    def __init__(  # noqa: PLR0917  RLlib's
        self,
        observation_space: Any = None,
        action_space: Any = None,
        inference_only: bool = False,
        learner_only: bool = False,
        model_config: Any = None,
        catalog_class: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            observation_space=observation_space,
            action_space=action_space,
            inference_only=inference_only,
            learner_only=learner_only,
            model_config=model_config,
        )
        assert not kwargs or kwargs.keys() == {"value"}

    def setup(self) -> None:
        assert "h" in self.model_config
        h = self.model_config["h"]
        self.body = nn.Linear(4, h)
        self.pi = nn.Linear(h, self.action_space.n)
        self.vf = nn.Linear(h, self.model_config.get("vf_outputs", 1))

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {"action_dist_inputs": self.pi(torch.tanh(self.body(batch["obs"])))}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Tensor:
        return self.vf(torch.tanh(self.body(batch["obs"]))).squeeze(-1)


class RaisingModule(LinearModule):
    def _forward(self, batch: Mapping[str, Tensor]) -> Any:
        return {"action_dist_inputs": self.pi(batch["pixels"])}


class WideOutputs(LinearModule):
    def _forward(self, batch: Mapping[str, Tensor]) -> Any:
        logits = self.pi(batch["obs"])
        return {"action_dist_inputs": torch.cat([logits, logits], -1)}


class ReturnsTensor(LinearModule):
    def _forward(self, batch: Mapping[str, Tensor]) -> Any:
        return self.pi(batch["obs"])


class WithoutDistInputs(LinearModule):
    def _forward(self, batch: Mapping[str, Tensor]) -> Any:
        return {"logits": self.pi(batch["obs"])}


class IntegerOutputs(LinearModule):
    def _forward_inference(self, batch: Mapping[str, Tensor]) -> Any:
        return {"action_dist_inputs": self.pi(batch["obs"]).long()}


class WithoutWeights(RLModule):
    def _forward(self, batch: Mapping[str, Tensor]) -> Any:
        return {"action_dist_inputs": torch.zeros(len(batch["obs"]), self.action_head.inputs_size)}


class RaisesInSetup(LinearModule):
    def setup(self) -> None:
        self.pi = nn.Linear(self.model_config.no_such_option, 3)


class OverridesDistributionClass(LinearModule):
    def get_train_action_dist_cls(self) -> Any:
        return None


class OtherArguments(LinearModule):
    def __init__(self, config: Any) -> None:
        super().__init__(**config)


class UnusedLayer(LinearModule):
    """Has a layer that nothing uses."""

    def setup(self) -> None:
        super().setup()
        self.unused_layer = nn.Linear(4, 2)


class NotAModule:
    """Not a module."""


class OwnPolicy(BC):
    """Builds its own policy and ignores the model section."""

    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        return nn.ModuleDict(
            {"policy": LinearModule(inputs.observation_space, inputs.action_space, inputs.model)}
        )
