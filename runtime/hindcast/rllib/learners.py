"""Custom losses for built-in algorithms, as in RLlib: learner classes with `compute_loss_for_module`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from hindcast.algorithms.bc import BC
from hindcast.algorithms.dqn import DQN
from hindcast.algorithms.marwil import MARWIL
from hindcast.formatting import describe_type
from hindcast.learn.algorithm import Algorithm, Losses, Step, Tensors
from hindcast.models.rl_module import RLModule
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.rllib.multi_rl_module import MultiRLModule
from hindcast.user_code import Misuse, calling

_OPTIMISER: Final = "policy"


class CustomLoss(Algorithm):
    """Base of learner classes: `compute_loss_for_module` is the loss of the algorithm's one optimiser.

    A subclass overrides this method, and may call `super().compute_loss_for_module(...)` for the algorithm's own loss.
    In the override `self.module["default_policy"]` is the network, `self.config` the algorithm's options, and
    `self.metrics.log_value(name, value)` logs a metric of the update. Do not keep anything else on `self`: state that
    training changes belongs into buffers of the network.
    """

    compiled_methods: ClassVar[tuple[str, ...]] = ()
    unsupported_overrides: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("compute_losses", "compute_loss"), "override compute_loss_for_module: there is one module"
        ),
        **dict.fromkeys(
            (
                "configure_optimizers",
                "configure_optimizers_for_module",
                "register_optimizer",
                "get_optimizer",
                "get_optimizers_for_module",
                "filter_param_dict_for_optimizer",
                "_check_registered_optimizer",
                "_get_optimizer_lr",
                "_get_optimizer_state",
                "_set_optimizer_lr",
                "_set_optimizer_state",
            ),
            "the algorithm's options configure its optimiser; others require a custom algorithm, "
            'AlgorithmConfig("package.module:Class")',
        ),
        **dict.fromkeys(
            (
                "before_gradient_based_update",
                "after_gradient_based_update",
                "update",
                "update_from_batch",
                "update_from_episodes",
                "_update",
                "_uncompiled_update",
            ),
            "override after_update(self, nets, step)",
        ),
        **dict.fromkeys(
            (
                "compute_gradients",
                "apply_gradients",
                "postprocess_gradients",
                "postprocess_gradients_for_module",
                "_get_clip_function",
                "_get_global_norm_function",
            ),
            "the options grad_clip and grad_clip_by clip gradients",
        ),
        **dict.fromkeys(
            (
                "build",
                "add_module",
                "remove_module",
                "rl_module_is_compatible",
                "rl_module_required_apis",
                "_make_module",
            ),
            "override networks(self, inputs)",
        ),
        "should_module_be_updated": "the only module is always trained",
        **dict.fromkeys(
            ("_convert_batch_type", "_create_iterator_if_necessary", "_make_batch_if_necessary"),
            "a connector of scope batch sees every batch",
        ),
        **dict.fromkeys(
            ("get_state", "set_state", "get_checkpointable_components", "get_ctor_args_and_kwargs"),
            "register a buffer of the network for each value that checkpoints must contain",
        ),
        **dict.fromkeys(
            (
                "_compute_off_policyness",
                "_log_metrics",
                "_log_steps_trained_metrics",
                "_log_trainable_parameters",
            ),
            "log with self.metrics.log_value in compute_loss_for_module",
        ),
        **dict.fromkeys(
            (
                "apply",
                "device",
                "distributed",
                "get_param_ref",
                "get_parameters",
                "node",
                "shutdown",
                "_check_is_built",
                "_get_tensor_variable",
                "_make_modules_ddp_if_necessary",
                "_map_module_to_device",
                "_reset",
                "_set_learner_index_and_placement_group",
                "_set_slicing_by_batch_id",
            ),
            "the training manages processes, devices and parameters; override compute_loss_for_module",
        ),
    }
    _current_update: _Update

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        """Compute the custom loss."""
        algorithm = copy.copy(self)  # the state of one update must not stay on the algorithm
        algorithm._current_update = update = _Update(nets, step)
        outputs = _Outputs(nets[_OPTIMISER], batch)
        with calling(self._hook_name, self.compute_loss_for_module):
            loss = algorithm.compute_loss_for_module(
                module_id=DEFAULT_MODULE_ID, config=self.options, batch=dict(batch), fwd_out=outputs
            )
            if not isinstance(loss, Tensor) or loss.dim():
                description = f"shape {[*loss.shape]}" if isinstance(loss, Tensor) else describe_type(loss)
                raise Misuse(f"returned a loss of {description}: a loss is a scalar tensor.")
        builtin_losses = update.losses  # None if the override does not call `super().compute_loss_for_module`
        metrics = {**(builtin_losses.metrics if builtin_losses else {}), **update.metrics.logged}
        return Losses(
            {_OPTIMISER: loss}, metrics, priorities=builtin_losses.priorities if builtin_losses else None
        )

    def compute_loss_for_module(
        self,
        *,
        module_id: str,  # noqa: ARG002
        config: Any,  # noqa: ARG002
        batch: dict[str, Tensor],
        fwd_out: Mapping[str, Tensor],  # noqa: ARG002
    ) -> Tensor:
        """Hook: return the loss, a scalar.

        Args:
            module_id: "default_policy".
            config: the algorithm's options, such as `config.lr`.
            batch: leaf -> `[batch, ...]`.
            fwd_out: outputs of the network's `forward_train(batch)`; computed when first accessed.
        """
        update = self._current_update
        losses = super().losses(update.nets, batch, update.step)  # type: ignore[safe-super]
        assert isinstance(losses, Losses)
        update.losses = losses
        return losses.losses[_OPTIMISER]

    @property
    def _hook_name(self) -> str:
        return f"{type(self).__name__}.compute_loss_for_module"

    @property
    def module(self) -> MultiRLModule:
        """The network, as `{"default_policy": network}`."""
        return MultiRLModule(self._current_update.nets[_OPTIMISER])  # type: ignore[arg-type]

    @property
    def config(self) -> Any:
        """The algorithm's options."""
        return self.options

    @property
    def metrics(self) -> _Metrics:
        """Logger of the update's metrics."""
        return self._current_update.metrics


class BCTorchLearner(CustomLoss, BC):
    """Behaviour cloning with a custom loss."""


class MARWILTorchLearner(CustomLoss, MARWIL):
    """MARWIL with a custom loss."""


class DQNTorchLearner(CustomLoss, DQN):
    """DQN with a custom loss."""


class _Metrics:
    """Scalar metrics of one update; results contain their means over the iteration. RLlib's windows are ignored.

    Attributes:
        logged: name -> scalar.
    """

    def __init__(self) -> None:
        self.logged: dict[str, Tensor] = {}

    def log_value(
        self, key: str | tuple[str, ...], value: Any, *, reduce: str | None = None, **_: Any
    ) -> None:
        """Log a number or a scalar tensor. Of a tuple, the last element is the name, since there is one module.

        Raises:
            ValueError: `reduce` is neither None, "mean" nor "ema".
        """
        if reduce not in (None, "mean", "ema"):
            raise ValueError(
                f"metric {key!r}: reduce is {reduce!r}, but metrics of updates are averaged: leave it out"
            )
        name = key if isinstance(key, str) else key[-1]
        self.logged[name] = value if isinstance(value, Tensor) else torch.as_tensor(float(value))

    def log_dict(self, values: Mapping[str, Any], *, key: Any = None, **options: Any) -> None:  # noqa: ARG002
        """Log all values under their own names; `key` is ignored."""
        for name, value in values.items():
            self.log_value(name, value, **options)


@dataclass
class _Update:
    """State of one update.

    Attributes:
        nets: the algorithm's networks.
        step: the position in the training.
        losses: the algorithm's own losses, once they are computed.
        metrics: the metrics that the override logs.
    """

    nets: nn.ModuleDict
    step: Step
    losses: Losses | None = None
    metrics: _Metrics = field(default_factory=_Metrics)


class _Outputs(Mapping[str, Tensor]):
    """The network's outputs, computed when first accessed."""

    def __init__(self, module: Any, batch: Tensors) -> None:
        self._module: RLModule = module
        self._batch = batch

    @cached_property
    def _outputs(self) -> Mapping[str, Tensor]:
        return self._module.forward_train(self._batch)

    def __getitem__(self, name: str) -> Tensor:
        return self._outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)
