"""Policy (and value) networks with RLlib's `RLModule` interface.

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
from hindcast.models.action_head import ActionHead, build_action_head
from hindcast.models.action_masks import build_action_mask, forbid
from hindcast.models.distributions import Distribution
from hindcast.models.encoders import Encoder, fully_connected, linear
from hindcast.models.initial_weights import head_initialiser
from hindcast.models.outputs import output_problem
from hindcast.models.recurrent import (
    OUTPUT_STEPS,
    as_leaves,
    at_output_steps,
    build_recurrent_layer,
    extract_state,
)
from hindcast.user_code import (
    calling,
    definition_location,
    import_subclass,
    is_user_code,
    refuse_unused_overrides,
)

Batch: TypeAlias = Mapping[str, Tensor]

_POLICY_HEAD_GAIN = 0.01
"""Gain of the initial weights of the policy's last layer, see `PolicyModule`."""
_FIELD = "spec.model.moduleClass"


class RLModule(nn.Module):
    """Base of all modules. A subclass builds its layers in `setup()` and computes in `_forward()`.

    A custom subclass (`model.moduleClass`) gets batches of preprocessed observations: `obs` `[B, *shape]`, or a leaf
    such as `obs/camera` for each part of a composite space. Floats are float32, uint8 stays uint8, other integers are
    signed, and discrete values are integers (a `start` included). Batches may have other columns. `_forward` returns
    `action_dist_inputs`, float `[B, action_head.inputs_size]`: logits of discrete actions; means, then logarithms of
    standard deviations, of continuous actions. With `value`, `_forward_train` also returns `vf_preds`, float `[B]`. For
    modules with a state see `get_initial_state`.

    `_forward_inference`, `_forward_exploration` and `_forward_train` default to `_forward` and may be overridden one by
    one. Everything that training changes is a parameter or a buffer (`register_buffer`): checkpoints contain these,
    whereas Python attributes are lost when a training resumes in another process.

    A subclass may override `__init__` with RLlib's arguments, and must pass them on: `super().__init__(…)`.

    Args:
        observation_space: space of the module's inputs (`Preprocessing.observation_space`).
        action_space: space of the module's actions (`Preprocessing.action_space`).
        model_config: the networks' options; a dictionary is `model.moduleOptions` only.
        value: True if the module has a value head.
        inference_only, learner_only, catalog_class: RLlib's arguments, for subclasses that pass them on; Hindcast never
            sets them.

    Attributes:
        observation_space, action_space, value, inference_only, learner_only: the arguments.
        model_config: the options: `model_config["units"]` and `.get("units", 64)` as in RLlib, or `.fcnet_hiddens`.
        action_head: sizes of the outputs and the noise per action, and the family of the distribution.
        sees_rewards: True if batches contain `prev_rewards` when the policy acts: `[B]` float32, the rewards of the
            previous step; undefined where an episode begins.
        unsupported_overrides: methods of RLlib's modules that Hindcast never calls -> what to do instead of overriding
            them.

    Raises:
        SpecError: the options do not fit the spaces.
    """

    sees_rewards: ClassVar[bool] = False
    unsupported_overrides: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("get_inference_action_dist_cls", "get_exploration_action_dist_cls", "get_train_action_dist_cls"),
            "model.distribution sets the action distribution, and action_head.inputs_size is its number of inputs",
        ),
        **dict.fromkeys(
            (
                "_default_input_specs",
                "input_specs_exploration",
                "input_specs_inference",
                "input_specs_train",
                "output_specs_exploration",
                "output_specs_inference",
                "output_specs_train",
            ),
            "remove it; the outputs of each forward method are checked by their shapes",
        ),
        "as_multi_rl_module": "remove it; there is one module",
        "get_ctor_args_and_kwargs": "remove it; a checkpoint contains the class, the spaces and the model's options",
        "unwrapped": "remove it; the module is never wrapped",
    }

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
        self.action_head: ActionHead = build_action_head(action_space, self.model_config)
        self._is_user_class = is_user_class(type(self))
        self._first_leaf, first_space = next(iter(flatten_space(observation_space, Columns.OBS).items()))
        self._first_rank = len(first_space.shape or ())
        self.setup(**(self.model_config.module_options if _declares_options(type(self)) else {}))
        self._action_mask = build_action_mask(
            observation_space, action_space, is_joint=self.action_head.is_joint
        )

    def setup(self, **options: Any) -> None:
        """Build the layers. Initial weights are drawn from torch's global generator.

        Args:
            options: `model.moduleOptions`. A subclass declares its options, with their defaults; or, as in RLlib, it
                declares none and reads `self.model_config["units"]`.
        """

    def get_initial_state(self) -> dict[str, Tensor]:
        """Return the state before an episode's first step, name -> `[*shape]`; empty for stateless modules.

        A module with a state gets it with each batch, as leaves `state_in/<name>`, `[B, *shape]` (the initial state if
        the caller omits it), and returns `state_out/<name>`, the state after the batch's last step. It gets single
        steps `[B, …]` to act and sequences `[B, T, …]` to learn, and returns `[B, …]` or `[B, T, …]` accordingly.
        """
        return {}

    def state_after(
        self,
        outputs: Mapping[str, Tensor],  # noqa: ARG002
        actions: Mapping[str, Tensor],  # noqa: ARG002
        noise: Tensor | None,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """Return the parts of the state after a step that depend on the action taken, name -> `[B, *shape]`.

        Args:
            outputs: outputs of the forward pass.
            actions: the actions taken, leaf (`actions`, or `actions/…`) -> `[B, *shape]`.
            noise: `[B, K]` noise that they were sampled from; None if the policy acts greedily.
        """
        return {}

    def state_before(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the state in a batch of single steps, or the initial state of each row."""
        if state := extract_state(Columns.STATE_IN, batch):
            return state
        (count,) = self._leading_shape(batch)
        return self.initial_states(count, batch[self._first_leaf].device)

    def initial_states(self, count: int, device: torch.device) -> dict[str, Tensor]:
        """Return `get_initial_state` for `count` rows on a device, name -> `[count, *shape]`."""
        initial_state = {
            name: torch.as_tensor(initial_value, device=device)
            for name, initial_value in self.get_initial_state().items()
        }
        return {
            name: initial_value.expand(count, *initial_value.shape)
            for name, initial_value in initial_state.items()
        }

    def is_stateful(self) -> bool:
        """Return True if the module carries a state from step to step."""
        return bool(self.get_initial_state())

    def forward_inference(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the outputs for greedy actions: at least `action_dist_inputs` `[B, P]`."""
        return self._compute_outputs("_forward_inference", batch)

    def forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the outputs for sampled actions: at least `action_dist_inputs` `[B, P]`."""
        return self._compute_outputs("_forward_exploration", batch)

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the outputs for losses: `action_dist_inputs` `[B, P]` and, with a value head, `vf_preds` `[B]`.

        For sequences they are `[B, T, P]` and `[B, T]`.
        """
        return self._compute_outputs("_forward_train", batch)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Run `forward_train`, so that wrappers such as DistributedDataParallel wrap the training pass."""
        return self.forward_train(batch)

    def compute_values(self, batch: Batch) -> Tensor:
        """Return `[B]` values of the batch's observations, from `forward_train` unless a subclass overrides this.

        Raises:
            NotImplementedError: the module has no value head.
        """
        if not self.value:
            raise NotImplementedError(f"{type(self).__name__} has no value head")
        return self.forward_train(batch)[Columns.VF_PREDS]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply torch's moves and conversions, such as `to(device)`, to the action space's constants too."""
        # ActionHead is not a module, so that torch does not move its tensors.
        super()._apply(fn, recurse)
        self.action_head = self.action_head.map_tensors(fn)
        return self

    def distribution(self, action_dist_inputs: Tensor) -> Distribution:
        """Return the action distribution for the outputs of a forward pass."""
        return self.action_head.from_inputs(action_dist_inputs)

    def allowed_actions(self, batch: Batch) -> Tensor | None:
        """Return `[..., P]` True for the logits of actions that observations allow; None if they have no mask."""
        return None if self._action_mask is None else self._action_mask.allowed_actions(batch)

    def get_state(self) -> dict[str, Tensor]:
        """Return a copy of all weights on the CPU."""
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.state_dict().items()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Load weights from `get_state`.

        Raises:
            RuntimeError: names or shapes do not match.
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

    def _compute_outputs(self, name: str, batch: Batch) -> dict[str, Tensor]:
        """Call a forward method, and forbid masked actions; the outputs of custom modules are checked.

        Raises:
            UserCodeError: the method raised, or its outputs are invalid.
        """
        outputs = self._compute_unmasked(name, batch)
        if (is_allowed := self.allowed_actions(batch)) is not None:
            logits = forbid(outputs[Columns.ACTION_DIST_INPUTS], is_allowed)
            outputs = {**outputs, Columns.ACTION_DIST_INPUTS: logits}
        if OUTPUT_STEPS in batch:
            names = outputs.keys() & {Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS}
            outputs = {**outputs, **{name: at_output_steps(outputs[name], batch) for name in names}}
        return outputs

    def _compute_unmasked(self, name: str, batch: Batch) -> dict[str, Tensor]:
        compute = getattr(self, name)
        if not self._is_user_class:
            outputs: dict[str, Tensor] = compute(batch)
            return outputs
        module_class, leading_shape = type(self), self._leading_shape(batch)
        with calling(f"{module_class.__name__}.{name}"):
            state = self.initial_states(leading_shape[0], batch[self._first_leaf].device)
            outputs = compute({**as_leaves(Columns.STATE_IN, state), **batch})
            if self.value and name == "_forward_train" and self._has_separate_values(outputs):
                outputs = {**outputs, Columns.VF_PREDS: self.compute_values(batch)}
        expected_shapes = {Columns.ACTION_DIST_INPUTS: (*leading_shape, self.action_head.inputs_size)}
        if self.value and name == "_forward_train":
            expected_shapes[Columns.VF_PREDS] = leading_shape
        expected_shapes |= {
            leaf: tuple(initial_rows.shape)
            for leaf, initial_rows in as_leaves(Columns.STATE_OUT, state).items()
        }
        if problem := output_problem(outputs, expected_shapes):
            method = name if is_user_code(getattr(module_class, name)) else "_forward"
            raise UserCodeError(
                f"{module_class.__name__}.{method} ({definition_location(getattr(self, method))}) returns {problem}."
            )
        return outputs

    def _has_separate_values(self, outputs: Any) -> bool:
        """Return True if only `compute_values` returns values, as in modules written for RLlib."""
        has_own_values = type(self).compute_values is not RLModule.compute_values
        return has_own_values and isinstance(outputs, Mapping) and Columns.VF_PREDS not in outputs

    def _leading_shape(self, batch: Batch) -> tuple[int, ...]:
        """Return the leading dimensions of a batch of observations: B, or B and T."""
        rows = batch[self._first_leaf]
        return tuple(rows.shape[: rows.dim() - self._first_rank])


class ValueFunctionAPI:
    """RLlib's marker of modules that define `compute_values(batch)`; here any module may define it."""


class PolicyModule(RLModule):
    """The default module: encoder, policy head and, with `value`, a value head.

    The value head has its own encoder unless `vf_share_layers` is set. Heads are `head_fcnet_hiddens` with the
    encoder's activation, then one linear layer. The policy's last layer starts near zero (gain 0.01), so that the
    initial policy hardly depends on the observation (arXiv 2006.05990, section 3.2).

    With `recurrent`, a recurrent layer follows each encoder. The state is that of the policy's layer. A value head with
    its own encoder starts from a zero state in each batch, so that it evaluates sequences, not single steps.
    """

    def setup(self) -> None:  # type: ignore[override]
        model = self.model_config
        self.encoder = Encoder(self.observation_space, model)
        self.memory = build_recurrent_layer(self.encoder.output_size, model)
        features = self.encoder.output_size if self.memory is None else self.memory.output_size
        self.log_std = build_free_log_std(self.action_head, model)
        policy_outputs = self.action_head.inputs_size
        if self.log_std is not None:
            policy_outputs -= self.log_std.size
        self.pi = _build_head(features, policy_outputs, model, _POLICY_HEAD_GAIN)
        if self.value:
            self.vf_encoder = None if model.vf_share_layers else Encoder(self.observation_space, model)
            self.vf_memory = (
                None if self.vf_encoder is None else build_recurrent_layer(self.vf_encoder.output_size, model)
            )
            self.vf = _build_head(features, 1, model, 1.0)

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
        if not self.value:
            return self._forward(batch)
        if self.vf_encoder is not None or self._is_user_class:  # a subclass may override either method
            outputs = self._forward(batch)
            if self._has_separate_values(outputs):
                outputs = {**outputs, Columns.VF_PREDS: self.compute_values(batch)}
            return outputs
        features, state = self._features(batch)
        return {
            Columns.ACTION_DIST_INPUTS: self._dist_inputs(features),
            Columns.VF_PREDS: self._values(features),
            **state,
        }

    def _features(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the inputs of the heads, and the leaves `state_out/…`."""
        features: Tensor = self.encoder(batch)
        if self.memory is None:
            return features, {}
        features, state = self.memory(features, extract_state(Columns.STATE_IN, batch))
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
    """Inserts log standard deviations, which are parameters, into their columns of the distribution's inputs.

    Args:
        head: head of the module's actions.

    Attributes:
        size: number of log standard deviations.
    """

    def __init__(self, head: ActionHead) -> None:
        super().__init__()
        free_columns = list(head.log_std_columns)
        computed_columns = [column for column in range(head.inputs_size) if column not in set(free_columns)]
        self.size = len(free_columns)
        self.log_std = nn.Parameter(torch.zeros(self.size))
        # Not persistent: it follows from the action space.
        self._order: Tensor
        self.register_buffer(
            "_order", torch.tensor(computed_columns + free_columns).argsort(), persistent=False
        )

    def forward(self, computed_inputs: Tensor) -> Tensor:
        """Return all inputs `[..., P]`, from those that the network computes."""
        log_std = self.log_std.expand(*computed_inputs.shape[:-1], self.size)
        return torch.cat([computed_inputs, log_std], -1)[..., self._order]


def build_free_log_std(head: ActionHead, model: ModelSpec) -> FreeLogStd | None:
    """Build the layer of `model.free_log_std`; None if the option is off or the actions have no standard deviations."""
    return FreeLogStd(head) if model.free_log_std and head.log_std_columns else None


def build_module(
    observation_space: gym.Space,
    action_space: gym.Space,
    model: ModelSpec,
    value: bool = False,
    module_class: type[RLModule] | None = None,
) -> RLModule:
    """Build a module whose initial weights are drawn from torch's global generator (`torch.manual_seed` fixes them).

    Args:
        observation_space: space of the module's inputs.
        action_space: space of the module's actions.
        model: the networks' options.
        value: True if the module has a value head.
        module_class: class of the module; None uses the one in the model's options.

    Raises:
        SpecError: the options do not fit the spaces; or the class does not exist, or does not accept its options.
        UserCodeError: the user's class raised.
    """
    cls = module_class or module_class_of(model.module_class)
    if not is_user_class(cls):
        return cls(observation_space, action_space, model, value)
    arguments = _accepted_arguments(
        cls,
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
    _check_arguments(cls.__init__, _FIELD, arguments)
    if _declares_options(cls):
        _check_arguments(cls.setup, "spec.model.moduleOptions", model.module_options)
    with calling(f"creating {cls.__name__}"):
        module = cls(**arguments)
    module.value = value  # an `__init__` written for RLlib does not pass it on
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise SpecError(
            f"{cls.__name__} ({definition_location(cls)}) has no trainable weights.", field=_FIELD
        )
    return module


def is_user_class(cls: type) -> bool:
    """Return True if a class is a user's, not Hindcast's."""
    return cls.__module__.partition(".")[0] != "hindcast"


def module_class_of(path: str | None) -> type[RLModule]:
    """Return the class at a path, "package.module:Class", or the default for None.

    Raises:
        SpecError: the class does not exist, is not a module, or overrides a method that nothing calls.
        UserCodeError: importing it raised.
    """
    if path is None:
        return PolicyModule
    module_class = import_subclass(path, RLModule, _FIELD)
    refuse_unused_overrides(module_class)
    return module_class


def _declares_options(cls: type[RLModule]) -> bool:
    """Return True if `setup` declares options; a `setup` written for RLlib declares none."""
    return len(inspect.signature(cls.setup).parameters) > 1


def _accepted_arguments(cls: type[RLModule], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that `__init__` accepts: all of them, unless a subclass declares its arguments."""
    parameters = inspect.signature(cls.__init__).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def _check_arguments(method: Any, field: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that a user's method does not accept, before a call would fail with Hindcast's traceback."""
    try:
        inspect.signature(method).bind(None, **arguments)
    except TypeError as error:
        raise SpecError(
            f"does not match {method.__qualname__} ({definition_location(method)}): {error}.", field=field
        ) from error


def _build_head(size_in: int, size_out: int, model: ModelSpec, gain: float) -> nn.Sequential:
    sizes, initialiser = [size_in, *model.head_fcnet_hiddens], head_initialiser(model)
    return nn.Sequential(
        *fully_connected(sizes, model, initialiser), linear(sizes[-1], size_out, gain, initialiser)
    )
