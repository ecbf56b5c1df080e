"""Policy (and value) networks, under RLlib's `RLModule` interface.

A batch is a flat mapping leaf -> tensor `[B, …]` (`obs`, or `obs/camera`, …) of *preprocessed* observations. A module
with a state also takes sequences, `[B, T, …]`, and the state before their first step, `state_in/h` `[B, …]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeAlias

import gymnasium as gym
import torch
from torch import Tensor, nn

from hindcast.api.model import ModelSpec
from hindcast.episodes.columns import Columns
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import SpecError, UserCodeError
from hindcast.models.action_head import ActionHead, distribution_for
from hindcast.models.distributions import Distribution
from hindcast.models.encoders import Encoder, fully_connected, linear
from hindcast.models.initial_weights import head_initialiser, recurrent_initialiser
from hindcast.models.outputs import output_problem
from hindcast.models.recurrent import RecurrentLayer, as_leaves, state_of
from hindcast.user_code import calling, definition_location, import_subclass, refuse_unused_overrides

Batch: TypeAlias = Mapping[str, Tensor]

_FIRST_POLICY_GAIN = 0.01
_FIELD = "spec.model.moduleClass"
_UNCALLED = dict.fromkeys(
    ("get_inference_action_dist_cls", "get_exploration_action_dist_cls", "get_train_action_dist_cls"),
    "model.distribution says which distribution acts, and action_head.inputs_size how many numbers it needs",
)
"""RLlib's methods of a module that have no place here, and what to do instead of overriding them."""


class RLModule(nn.Module):
    """Base of all modules. A subclass builds its layers in `setup()` and computes in `_forward()`.

    A subclass of the user's own (`model.moduleClass`) gets a batch of preprocessed observations: `obs` `[B, *shape]`,
    or a leaf such as `obs/camera` for each part of a composite space; floats are float32, uint8 stays, other integers
    are signed, and discrete values are integers (a `start` included). Other columns may be there. `_forward` returns
    `action_dist_inputs`, float `[B, action_head.inputs_size]`: the logits of discrete actions, means and then
    logarithms of standard deviations of continuous ones. With `value`, `_forward_train` also returns `vf_preds`, float
    `[B]`. With a state see `get_initial_state`.

    `_forward_inference`, `_forward_exploration` and `_forward_train` may be overridden one by one; each
    is `_forward` unless it is. All that training changes is a parameter or a buffer (`register_buffer`): these are in
    checkpoints, and attributes of Python are lost where a training goes on in another process.

    A subclass may override `__init__` with RLlib's arguments, and hands on what it gets: `super().__init__(…)`.

    Args:
        observation_space: what the module sees (`Preprocessing.observation_space`).
        action_space: what the module puts out (`Preprocessing.action_space`).
        model_config: the networks' options; a dictionary is `model.moduleOptions` alone.
        value: whether a value head is wanted.
        inference_only, learner_only, catalog_class: RLlib's, for subclasses that hand them on; nothing here sets them.

    Attributes:
        observation_space, action_space, value, inference_only, learner_only: the arguments.
        model_config: the options: `model_config["units"]` and `.get("units", 64)` as in RLlib, or `.fcnet_hiddens`.
        action_head: outputs needed per action, the noise that a sample needs, the distribution's family.
        sees_rewards: whether acting tells it what it received: batches hold `prev_rewards`, `[B]` float32, the reward
            of the step before, which means nothing where an episode begins.

    Raises:
        SpecError: the options do not fit the spaces.
    """

    sees_rewards: ClassVar[bool] = False

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        model_config: ModelSpec | Mapping[str, Any] | None = None,
        value: bool = False,
        *,
        inference_only: bool = False,
        learner_only: bool = False,
        catalog_class: None = None,  # noqa: ARG002
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.inference_only = inference_only
        self.learner_only = learner_only
        if not isinstance(model_config, ModelSpec):
            model_config = ModelSpec(module_options=dict(model_config or {}))
        self.model_config = model_config
        self.value = value
        self.action_head: ActionHead = distribution_for(action_space, self.model_config)
        self._is_the_users = is_user_class(type(self))
        self._first_leaf, first = next(iter(flatten_space(observation_space, Columns.OBS).items()))
        self._first_rank = len(first.shape or ())
        self.setup(**(self.model_config.module_options if _takes_options(type(self)) else {}))

    def setup(self, **options: Any) -> None:
        """Build the layers. Weights come from torch's global generator.

        Args:
            options: `model.moduleOptions`. A subclass names those that it takes, with their defaults; or, as in RLlib,
                takes none and reads `self.model_config["units"]`.
        """

    def get_initial_state(self) -> dict[str, Tensor]:
        """The state before an episode's first step, name -> `[*shape]`; empty for a module without one.

        A module that gives one takes the leaf `state_in/<name>` with a batch, `[B, *shape]` (where the caller leaves it
        out, the initial state), and puts out `state_out/<name>`, the state after the batch's last step. It takes single
        steps `[B, …]` to act and sequences `[B, T, …]` to learn, and puts out `[B, …]` or `[B, T, …]` accordingly.
        """
        return {}

    def state_after(
        self,
        outputs: Mapping[str, Tensor],  # noqa: ARG002
        actions: Mapping[str, Tensor],  # noqa: ARG002
        noise: Tensor | None,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """What of the state after a step is known only once it has acted, name -> `[B, *shape]`.

        Args:
            outputs: of the forward pass.
            actions: leaf (`actions`, or `actions/…`) -> `[B, *shape]`, those taken.
            noise: `[B, K]` that they were sampled with; None where it acts greedily.
        """
        return {}

    def state_before(self, batch: Batch) -> Mapping[str, Tensor]:
        """The state that a batch of single steps comes with, or the initial one of each row."""
        if state := state_of(Columns.STATE_IN, batch):
            return state
        (count,) = self._lead(batch)
        return self.initial_states(count, batch[self._first_leaf].device)

    def initial_states(self, count: int, device: torch.device) -> dict[str, Tensor]:
        """`get_initial_state` of so many rows, name -> `[count, *shape]`; on a device, wherever a subclass makes it."""
        one = {name: torch.as_tensor(each, device=device) for name, each in self.get_initial_state().items()}
        return {name: start.expand(count, *start.shape) for name, start in one.items()}

    def is_stateful(self) -> bool:
        """Whether it carries a state from step to step."""
        return bool(self.get_initial_state())

    def forward_inference(self, batch: Batch) -> dict[str, Tensor]:
        """For acting greedily: `action_dist_inputs` `[B, P]` at least."""
        return self._computed("_forward_inference", batch)

    def forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        """For acting by sampling: `action_dist_inputs` `[B, P]` at least."""
        return self._computed("_forward_exploration", batch)

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """For losses: `action_dist_inputs` `[B, P]` and, with a value head, `vf_preds` `[B]`; with T of sequences."""
        return self._computed("_forward_train", batch)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """`forward_train`, so that wrappers such as DistributedDataParallel see the training pass."""
        return self.forward_train(batch)

    def compute_values(self, batch: Batch) -> Tensor:
        """`[B]` values of the batch's observations: those of `forward_train`, unless a subclass has a shorter way.

        Raises:
            NotImplementedError: the module has no value head.
        """
        if not self.value:
            raise NotImplementedError(f"{type(self).__name__} has no value head")
        return self.forward_train(batch)[Columns.VF_PREDS]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Takes the action space's constants along where torch moves the weights."""
        super()._apply(fn, recurse)
        self.action_head = self.action_head.map_tensors(fn)
        return self

    def distribution(self, action_dist_inputs: Tensor) -> Distribution:
        """The action distribution for the outputs of a forward pass."""
        return self.action_head.from_inputs(action_dist_inputs)

    def get_state(self) -> dict[str, Tensor]:
        """A copy of all weights on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.state_dict().items()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over weights from `get_state`.

        Raises:
            RuntimeError: names or shapes do not fit.
        """
        self.load_state_dict(dict(state))

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError(f"{type(self).__name__} must define _forward()")

    def _forward_inference(self, batch: Batch) -> dict[str, Tensor]:
        return self._forward(batch)

    def _forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        return self._forward(batch)

    def _forward_train(self, batch: Batch) -> dict[str, Tensor]:
        return self._forward(batch)

    def _computed(self, name: str, batch: Batch) -> dict[str, Tensor]:
        """What the method puts out; of a user's own module checked.

        Raises:
            UserCodeError: it raised, or put out something else than it should.
        """
        compute = getattr(self, name)
        if not self._is_the_users:
            return compute(batch)
        kind, lead = type(self), self._lead(batch)
        with calling(f"{kind.__name__}.{name}"):
            state = self.initial_states(lead[0], batch[self._first_leaf].device)
            outputs = compute({**as_leaves(Columns.STATE_IN, state), **batch})
            if self.value and name == "_forward_train" and self._values_separately(outputs):
                outputs = {**outputs, Columns.VF_PREDS: self.compute_values(batch)}
        wanted = {Columns.ACTION_DIST_INPUTS: (*lead, self.action_head.inputs_size)}
        if self.value and name == "_forward_train":
            wanted[Columns.VF_PREDS] = lead
        wanted |= {leaf: tuple(start.shape) for leaf, start in as_leaves(Columns.STATE_OUT, state).items()}
        if problem := output_problem(outputs, wanted):
            own = name if getattr(kind, name) is not getattr(RLModule, name) else "_forward"
            raise UserCodeError(
                f"{kind.__name__}.{own} ({definition_location(getattr(self, own))}) returns {problem}."
            )
        return outputs

    def _values_separately(self, outputs: Any) -> bool:
        """Whether the training pass leaves values to `compute_values`, as modules in RLlib's form do."""
        own = type(self).compute_values is not RLModule.compute_values
        return own and isinstance(outputs, Mapping) and Columns.VF_PREDS not in outputs

    def _lead(self, batch: Batch) -> tuple[int, ...]:
        """`[B]` or `[B, T]` of a batch of observations."""
        rows = batch[self._first_leaf]
        return tuple(rows.shape[: rows.dim() - self._first_rank])


class ValueFunctionAPI:
    """RLlib's mark of a module that defines `compute_values(batch)`; any module may define it without."""


class PolicyModule(RLModule):
    """The default: encoder, policy head and, with `value`, a value head.

    The value head has an encoder of its own unless `vf_share_layers`. Heads are `head_fcnet_hiddens` with the
    encoder's activation, then one linear layer; the policy's starts near zero (gain 0.01), so that the first
    policy hardly depends on the observation (arXiv 2006.05990, section 3.2).

    With `recurrent`, a recurrent layer follows each encoder. The state is that of the policy's; a value head with an
    encoder of its own begins at zero in each batch, so that it values sequences, not single steps.
    """

    def setup(self) -> None:  # type: ignore[override]
        model = self.model_config
        self.encoder = Encoder(self.observation_space, model)
        self.memory = _memory(self.encoder, model)
        features = self.encoder.output_size if self.memory is None else self.memory.output_size
        self.log_std = free_log_std(self.action_head, model)
        policy_outputs = self.action_head.inputs_size
        if self.log_std is not None:
            policy_outputs -= self.log_std.size
        self.pi = _head(features, policy_outputs, model, _FIRST_POLICY_GAIN)
        if self.value:
            self.vf_encoder = None if model.vf_share_layers else Encoder(self.observation_space, model)
            self.vf_memory = None if self.vf_encoder is None else _memory(self.vf_encoder, model)
            self.vf = _head(features, 1, model, 1.0)

    def get_initial_state(self) -> dict[str, Tensor]:
        return {} if self.memory is None else self.memory.initial_state()

    def compute_values(self, batch: Batch) -> Tensor:
        if not self.value:
            return super().compute_values(batch)
        return self._values(self._features(batch)[0] if self.vf_encoder is None else self._vf_features(batch))

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        features, state = self._features(batch)
        return {Columns.ACTION_DIST_INPUTS: self._dist_inputs(features), **state}

    def _forward_train(self, batch: Batch) -> dict[str, Tensor]:
        features, state = self._features(batch)
        outputs = {Columns.ACTION_DIST_INPUTS: self._dist_inputs(features), **state}
        if self.value:
            value_features = features if self.vf_encoder is None else self._vf_features(batch)
            outputs[Columns.VF_PREDS] = self._values(value_features)
        return outputs

    def _features(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """What the heads see, and the leaves `state_out/…`."""
        features: Tensor = self.encoder(batch)
        if self.memory is None:
            return features, {}
        features, state = self.memory(features, state_of(Columns.STATE_IN, batch))
        return features, as_leaves(Columns.STATE_OUT, state)

    def _vf_features(self, batch: Batch) -> Tensor:
        assert self.vf_encoder is not None
        features: Tensor = self.vf_encoder(batch)
        return features if self.vf_memory is None else self.vf_memory(features, {})[0]

    def _dist_inputs(self, features: Tensor) -> Tensor:
        inputs: Tensor = self.pi(features)
        return inputs if self.log_std is None else self.log_std(inputs)

    def _values(self, features: Tensor) -> Tensor:
        values: Tensor = self.vf(features)
        return values.squeeze(-1)


class FreeLogStd(nn.Module):
    """Puts log standard deviations that are parameters into their columns of the distribution's inputs.

    Attributes:
        size: how many there are.
    """

    def __init__(self, head: ActionHead) -> None:
        super().__init__()
        free = list(head.log_std_columns)
        computed = [column for column in range(head.inputs_size) if column not in set(free)]
        self.size = len(free)
        self.log_std = nn.Parameter(torch.zeros(self.size))
        self._order: Tensor
        self.register_buffer("_order", torch.tensor(computed + free).argsort(), persistent=False)

    def forward(self, computed: Tensor) -> Tensor:
        log_std = self.log_std.expand(*computed.shape[:-1], self.size)
        return torch.cat([computed, log_std], -1)[..., self._order]


def free_log_std(head: ActionHead, model: ModelSpec) -> FreeLogStd | None:
    """Those of `model.free_log_std`; None where they depend on the observation, or actions have none."""
    return FreeLogStd(head) if model.free_log_std and head.log_std_columns else None


def build_module(
    observation_space: gym.Space,
    action_space: gym.Space,
    model: ModelSpec,
    value: bool = False,
    module_class: type[RLModule] | None = None,
) -> RLModule:
    """A module with fresh weights, drawn from torch's global generator (`torch.manual_seed` fixes them).

    Args:
        module_class: None is that of the model's options.

    Raises:
        SpecError: the options do not fit the spaces; or there is no such class, or it does not take its options.
        UserCodeError: the user's own class raised.
    """
    kind = module_class or module_class_of(model)
    if not is_user_class(kind):
        return kind(observation_space, action_space, model, value)
    arguments = _taken(
        kind,
        {
            "observation_space": observation_space,
            "action_space": action_space,
            "inference_only": False,
            "learner_only": False,
            "model_config": model,
            "catalog_class": None,
            "value": value,
        },
    )
    _check_takes(kind.__init__, _FIELD, arguments)
    if _takes_options(kind):
        _check_takes(kind.setup, "spec.model.moduleOptions", model.module_options)
    with calling(f"making {kind.__name__}"):
        module = kind(**arguments)
    module.value = value  # an `__init__` in RLlib's form does not hand it on
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise SpecError(
            f"{_FIELD}: {kind.__name__} ({definition_location(kind)}) has no weights that could be trained."
        )
    return module


def is_user_class(kind: type[RLModule]) -> bool:
    """Whether a class is not Hindcast's."""
    return kind.__module__.partition(".")[0] != "hindcast"


def module_class_of(model: ModelSpec) -> type[RLModule]:
    """The class that a model's options name, or the default.

    Raises:
        SpecError: there is no such class, it is no module, or it overrides what nothing calls.
        UserCodeError: importing it raised.
    """
    if model.module_class is None:
        return PolicyModule
    kind = import_subclass(model.module_class, RLModule, _FIELD)
    refuse_unused_overrides(kind, RLModule, _UNCALLED)
    return kind


def _takes_options(kind: type[RLModule]) -> bool:
    """Whether `setup` names options; in RLlib's form it takes none."""
    return len(inspect.signature(kind.setup).parameters) > 1


def _taken(kind: type[RLModule], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that `__init__` takes: all, unless a subclass names them one by one."""
    parameters = inspect.signature(kind.__init__).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def _check_takes(method: Any, field: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that a method of the user's own does not take, rather than name a line of ours."""
    try:
        inspect.signature(method).bind(None, **arguments)
    except TypeError as error:
        raise SpecError(
            f"{field} does not fit {method.__qualname__} ({definition_location(method)}): {error}."
        ) from error


def _memory(encoder: Encoder, model: ModelSpec) -> RecurrentLayer | None:
    if model.recurrent == "none":
        return None
    return RecurrentLayer(model.recurrent, encoder.output_size, model.cell_size, recurrent_initialiser(model))


def _head(size_in: int, size_out: int, model: ModelSpec, gain: float) -> nn.Sequential:
    sizes, initial = [size_in, *model.head_fcnet_hiddens], head_initialiser(model)
    return nn.Sequential(*fully_connected(sizes, model, initial), linear(sizes[-1], size_out, gain, initial))
