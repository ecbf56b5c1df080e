"""A user's loss for a built-in algorithm, in RLlib's form: a learner class with `compute_loss_for_module`."""

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
from hindcast.learn.algorithm import Algorithm, Losses, Step, Tensors
from hindcast.models.rl_module import RLModule
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.pipeline.multi_rl_module import MultiRLModule
from hindcast.user_code import Misuse, calling

_OPTIMISER: Final = "policy"
UNSUPPORTED_HOOKS: Final = {
    "compute_losses": "override compute_loss_for_module: there is one module",
    "configure_optimizers_for_module": "the algorithm's options configure its optimiser; others need your own "
    "algorithm, "
    'AlgorithmConfig("package.module:Class")',
    "after_gradient_based_update": "override after_update(self, nets, step)",
    "before_gradient_based_update": "override after_update(self, nets, step)",
    "postprocess_gradients_for_module": "the options grad_clip and grad_clip_by clip gradients",
    "build": "override networks(self, inputs)",
}
"""RLlib's learner methods that are not supported, and what to do instead of overriding them."""


class CustomLoss(Algorithm):
    """Base of learner classes: `compute_loss_for_module` is the loss of the algorithm's one optimiser.

    A subclass overrides it, and may call `super().compute_loss_for_module(...)`, which is the algorithm's own loss. In
    it `self.module["default_policy"]` is the network, `self.config` the algorithm's options,
    `self.metrics.log_value(name, value)` a metric of the update. Nothing else may be kept on `self`: what changes in
    training is a buffer of the network.
    """

    compiled_methods: ClassVar[tuple[str, ...]] = ()
    _now: _Update

    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses:
        """The user's loss."""
        own = copy.copy(self)  # so that what belongs to one update is not kept
        own._now = now = _Update(nets, step)
        outputs = _Outputs(nets[_OPTIMISER], batch)
        with calling(self._name, self.compute_loss_for_module):
            loss = own.compute_loss_for_module(
                module_id=DEFAULT_MODULE_ID, config=self.options, batch=dict(batch), fwd_out=outputs
            )
            if not isinstance(loss, Tensor) or loss.dim():
                found = f"shape {[*loss.shape]}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
                raise Misuse(f"gave a loss of {found}: a loss is a scalar tensor.")
        metrics = {**(now.found.metrics if now.found else {}), **now.metrics.logged}
        return Losses({_OPTIMISER: loss}, metrics, priorities=now.found.priorities if now.found else None)

    def compute_loss_for_module(
        self,
        *,
        module_id: str,  # noqa: ARG002
        config: Any,  # noqa: ARG002
        batch: dict[str, Tensor],
        fwd_out: Mapping[str, Tensor],  # noqa: ARG002
    ) -> Tensor:
        """Hook: the loss, a scalar.

        Args:
            module_id: "default_policy".
            config: the algorithm's options, `config.lr` and the like.
            batch: leaf -> `[batch, ...]`.
            fwd_out: what `forward_train(batch)` of the network puts out; computed when it is first looked into.
        """
        found = super().losses(self._now.nets, batch, self._now.step)  # type: ignore[safe-super]
        assert isinstance(found, Losses)
        self._now.found = found
        return found.losses[_OPTIMISER]

    @property
    def _name(self) -> str:
        return f"{type(self).__name__}.compute_loss_for_module"

    @property
    def module(self) -> MultiRLModule:
        """The network, by its id."""
        return MultiRLModule(self._now.nets[_OPTIMISER])  # type: ignore[arg-type]

    @property
    def config(self) -> Any:
        """The algorithm's options."""
        return self.options

    @property
    def metrics(self) -> _Metrics:
        """Logs metrics of the update."""
        return self._now.metrics


class BCTorchLearner(CustomLoss, BC):
    """Behaviour cloning with the user's loss."""


class MARWILTorchLearner(CustomLoss, MARWIL):
    """MARWIL with the user's loss."""


class DQNTorchLearner(CustomLoss, DQN):
    """DQN with the user's loss."""


class _Metrics:
    """Scalar tensors by name: averaged over the updates of an iteration, on the device, whatever window is given."""

    def __init__(self) -> None:
        self.logged: dict[str, Tensor] = {}

    def log_value(
        self, key: str | tuple[str, ...], value: Any, *, reduce: str | None = None, **_: Any
    ) -> None:
        """A number or a scalar tensor. Of a tuple the last name counts: there is one module.

        Raises:
            ValueError: `reduce` is not a mean.
        """
        if reduce not in (None, "mean", "ema"):
            raise ValueError(
                f"metric {key!r}: reduce is {reduce!r}, but metrics of updates are averaged: leave it out"
            )
        name = key if isinstance(key, str) else key[-1]
        self.logged[name] = value if isinstance(value, Tensor) else torch.as_tensor(float(value))

    def log_dict(self, values: Mapping[str, Any], *, key: Any = None, **options: Any) -> None:  # noqa: ARG002
        """All of them, under their own names."""
        for name, value in values.items():
            self.log_value(name, value, **options)


@dataclass
class _Update:
    """One update."""

    nets: nn.ModuleDict
    step: Step
    found: Losses | None = None
    metrics: _Metrics = field(default_factory=_Metrics)


class _Outputs(Mapping[str, Tensor]):
    """What the network puts out, once somebody asks."""

    def __init__(self, module: Any, batch: Tensors) -> None:
        self._module: RLModule = module
        self._batch = batch

    @cached_property
    def _all(self) -> Mapping[str, Tensor]:
        return self._module.forward_train(self._batch)

    def __getitem__(self, name: str) -> Tensor:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
