"""What an algorithm is: options, networks, optimisers, losses. Each algorithm is one short file over this.

An algorithm object holds its options and nothing that changes. All that training changes (weights, target
networks, moving norms, multipliers) are parameters and buffers of its networks, so that a checkpoint of those
is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import gymnasium as gym
import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from hindcast.api.base import Model, Positive
from hindcast.api.checks import untrainable_problem
from hindcast.api.model import Distribution, ModelSpec
from hindcast.api.option_types import RelatedOptions
from hindcast.errors import SpecError
from hindcast.learn.optimisers import ClipBy, OptimiserSpec
from hindcast.learn.target_networks import frozen_copy, polyak_update
from hindcast.models.distributions import Actions
from hindcast.models.networks import ActionValues, Critics, StateValue, evaluation_mode
from hindcast.models.rl_module import RLModule, build_module
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.window import WindowData
from hindcast.user_code import Misuse, calling

Kind = Literal["OfflineTraining", "OfflineRecording"]
Tensors = Mapping[str, Tensor]
Fraction = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0)]


class Critic(Protocol):
    """Values of actions in states, by networks."""

    def __call__(self, batch: Tensors, actions: Actions | None = None) -> Tensor:
        """`[B]` values of the batch's own actions, or `[K, B]` those of `actions` `[K, B, *shape]`."""
        ...


class AlgorithmOptions(RelatedOptions, Model):
    """Options of every algorithm: camelCase in YAML, snake_case in Python, nothing unknown; defaults are checked too.

    An option's schema may name another option: `x-only-with` the one without which it has no effect (a note says so),
    `x-at-most` the one that it must not exceed, `x-multiple-of` the one that it must be a multiple of.
    """

    model_config = ConfigDict(validate_default=True)

    train_batch_size_per_learner: Positive = 1024
    """Timesteps in one learner's batch; the global batch is this times the number of learners."""
    grad_clip: Annotated[float, Field(gt=0)] | None = None
    """Gradient clipping threshold, see gradClipBy; null disables clipping."""
    grad_clip_by: ClipBy = Field(default="global_norm", json_schema_extra={"x-only-with": "gradClip"})
    """What gradClip limits: the norm of all gradients of an optimiser together (GlobalNorm), the norm of each
    parameter's gradient (Norm), or each gradient value (Value)."""


@dataclass(frozen=True)
class ModelInputs:
    """What networks are built from.

    Attributes:
        observation_space: of the module's input, after preprocessing.
        action_space: of the module's actions.
        model: sizes, activations, distribution; the policy's class.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    model: ModelSpec

    def policy(self, value: bool, auto: str = "auto") -> RLModule:
        """A new policy module, with a value head or without.

        Args:
            value: whether a value head is wanted.
            auto: the algorithm's own choice of `model.distribution`, where the user leaves it at "auto".

        Raises:
            SpecError: the model's options do not fit the spaces.
            UserCodeError: the user's own class (`model.moduleClass`) raised.
        """
        model = self.model
        if model.distribution == "auto":
            model = model.model_copy(update={"distribution": auto})
        return build_module(self.observation_space, self.action_space, model, value)

    def own_policy(
        self, kind: type[RLModule], algorithm: str, auto: str | None = None, **options: Any
    ) -> RLModule:
        """A new policy of the algorithm's own kind.

        Args:
            kind: its class.
            algorithm: for the message.
            auto: as of `policy`; None where the kind has a distribution of its own.
            options: of its `setup()`.

        Raises:
            SpecError: the user names another one; or the model's options do not fit the spaces.
        """
        model = self.model
        if model.recurrent != "none" or model.module_class is not None:
            raise SpecError(
                f"spec.model: {algorithm} builds its own kind of policy: leave recurrent and moduleClass out."
            )
        if auto is None and model.distribution != "auto":
            raise SpecError(
                f"model.distribution is {ModelSpec.in_yaml('distribution', model.distribution)!r}, and {algorithm} "
                "builds its own policy: leave it out."
            )
        changes: dict[str, Any] = {"module_options": options}
        if auto is not None and model.distribution == "auto":
            changes["distribution"] = auto
        model = model.model_copy(update=changes)
        return kind(self.observation_space, self.action_space, model)

    def state_value(self) -> StateValue:
        """A new V(s): batch -> `[B]`. `at_next(batch)` gives it the next observations.

        Raises:
            SpecError: the model's options do not fit the observations.
        """
        return StateValue(self.observation_space, self.model)

    def critics(self, members: int = 1, *, layer_norm: bool = False, dropout: float = 0.0) -> Critics:
        """New critics Q(s, a) of any action space, all members in one call: batch -> `[members, B]`.

        Raises:
            SpecError: the model's options do not fit the spaces.
        """
        return Critics(
            self.observation_space,
            self.action_space,
            self.model,
            members,
            layer_norm=layer_norm,
            dropout=dropout,
        )

    def action_values(
        self, members: int = 1, *, layer_norm: bool = False, dropout: float = 0.0
    ) -> ActionValues:
        """New critics Q(s, ·) of n discrete actions, all members in one call: batch -> `[members, B, n]`.

        Raises:
            SpecError: the action space is not Discrete, or the model's options do not fit the observations.
        """
        return ActionValues(
            self.observation_space,
            self.action_space,
            self.model,
            members,
            layer_norm=layer_norm,
            dropout=dropout,
        )


class Step(NamedTuple):
    """Where training stands when a loss is computed.

    Attributes:
        updates: updates made before this one.
        timesteps: timesteps trained before this update; schedules follow them.
        generator: the learner's source of randomness, checkpointed with it. On the learner's device.
        clock: `timesteps` as a float64 scalar there, for `ScheduledValue`; not to be changed.
    """

    updates: int
    timesteps: int
    generator: torch.Generator
    clock: Tensor = torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Losses:
    """Losses of one update, or of one stage of it.

    Attributes:
        losses: optimiser name -> scalar. Each optimiser gets the gradients of its own loss only. All
            gradients are computed before any of these optimisers moves; one that is not named rests.
        metrics: name -> scalar, averaged over updates. Detached by the learner.
        joint: the losses' graphs are disjoint (each reaches its own optimiser's parameters alone), so that one
            backward pass serves all. Where they are not, the learner raises UserCodeError.
        priorities: of each item of the batch, `[B]`, where the algorithm's needs draw by priority: mostly its errors,
            whose signs do not count. Detached by the learner.
    """

    losses: Tensors
    metrics: Tensors = field(default_factory=dict)
    joint: bool = False
    priorities: Tensor | None = None


class Algorithm(ABC):
    """One algorithm. The docstring of its `Options` has the objective and its source.

    Attributes:
        Options: its options.
        compiled: names of methods that torch.compile takes as one graph each (`spec.learners.compile`): those that
            compute losses, and neither draw noise from `Step.generator`, look at a number of `Step` nor change a
            buffer. The networks, where they take them, come first.
        captured: whether a GPU may record its updates as CUDA graphs: of one `update_kind`, all do the same operations.
        kinds: the resources that it can be used in.
        recurrent: whether its losses take sequences (`[B, T, ...]` with `loss_mask`) as well as timesteps, so that it
            trains policies with a recurrent state.
        live: whether it learns from what its own policy plays while it is trained (an input's `sampler`): its losses
            are valid for actions of any earlier policy, and its policy explores.
        own_policy: whether it builds its own kind of policy, so that `model.moduleClass` does not apply.
        distributions: those of `model.distribution` that it trains; None for all.
        target_networks: name of each target network -> the network of `networks()`, or the part of one, that it is a
            frozen copy of at first.
    """

    Options: ClassVar[type[AlgorithmOptions]]
    compiled_methods: ClassVar[tuple[str, ...]] = ()
    is_capturable: ClassVar[bool] = False
    kinds: ClassVar[frozenset[Kind]] = frozenset({"OfflineTraining"})
    can_train_recurrent: ClassVar[bool] = False
    can_train_online: ClassVar[bool] = False
    has_own_policy: ClassVar[bool] = False
    distributions: ClassVar[tuple[Distribution, ...] | None] = None
    target_networks: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init__(self, options: AlgorithmOptions) -> None:
        self.options = options

    @abstractmethod
    def needs(self) -> Needs:
        """What it takes of the data; may follow from the options (n-step returns, the length of sequences)."""

    @abstractmethod
    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        """New networks without `target_networks`. "policy" is the `RLModule` that acts; others are named freely."""

    @abstractmethod
    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        """Optimiser name -> what it trains. Parameters of no optimiser stay fixed."""

    @abstractmethod
    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses | Iterator[Losses]:
        """The losses of a batch.

        An algorithm whose later loss needs weights that an earlier one has just moved is a generator: each
        `Losses` is stepped before the next is computed.
        """

    def targets(self, nets: nn.ModuleDict, window: WindowData) -> Tensors:  # noqa: ARG002
        """Columns over the whole episodes of a window, `[S, ...]` each, where `needs().targets` says so.

        Batches hold them in addition to the other columns. Called without gradients, with the networks in evaluation
        mode, when a window is entered and every `needs().targets_every` updates while it is in use.

        Args:
            nets: as they are at that moment.
            window: its tensors are on the learner's device; `rewards` are those of single steps.
        """
        return {}

    def critic(self, nets: nn.ModuleDict) -> Critic | None:
        """Q(s, a) by its own critics, the least of them: those named "critics". None where it has none.

        To be overridden where Q is kept elsewhere.
        """
        critics = dict(nets).get("critics")
        if not isinstance(critics, Critics):
            return None
        return lambda batch, actions=None: critics(batch, actions).amin(0)

    def before_play(self, nets: nn.ModuleDict, timesteps: int) -> None:  # noqa: B027
        """Runs before the policy plays while it is trained (see `live`), `timesteps` after the first it played.

        To be overridden where exploring changes with them; what changes must be buffers of the networks.
        """

    def update_target_networks(self, nets: nn.ModuleDict, tau: float) -> None:
        """Move each of `target_networks` towards what it is a copy of, see `polyak`; to be called in `after_update`."""
        for target, source in self.target_networks.items():
            polyak_update(nets[target], nets.get_submodule(source), tau)

    def update_kind(self, updates: int) -> Hashable:  # noqa: ARG002
        """Which operations the update after so many does: to be overridden where `Step.updates` decides."""
        return 0

    def after_update(self, nets: nn.ModuleDict, step: Step) -> None:  # noqa: B027
        """Runs after every update, on the moved weights (target networks). `step` is the update's."""


def needs_for(algorithm: Algorithm, policy: RLModule) -> Needs:
    """What the algorithm takes of the data to train this policy: of one with a state sequences, as its model says.

    Raises:
        SpecError: the policy has a state, and the algorithm learns from single timesteps.
    """
    needs = algorithm.needs()
    if needs.seq_len is not None or not policy.is_stateful():
        return needs
    if not algorithm.can_train_recurrent:
        raise SpecError(
            f"{type(algorithm).__name__} learns from single timesteps and cannot train a recurrent policy; leave "
            "model.recurrent at none"
        )
    model = policy.model_config
    return replace(needs, seq_len=model.max_seq_len, burn_in=model.burn_in, initial_state=model.initial_state)


def new_networks(algorithm: Algorithm, inputs: ModelInputs, seed: int) -> nn.ModuleDict:
    """The algorithm's networks with weights that follow from `seed`.

    Seeds torch's global generator, which also drives dropout; the learner checkpoints it.

    Raises:
        SpecError: the algorithm does not train the model's distribution.
        UserCodeError: making them raised, or they are not what they must be.
    """
    distribution, trained = inputs.model.distribution, algorithm.distributions
    if trained is not None and distribution not in trained:
        problem = untrainable_problem(distribution, type(algorithm).__name__, trained)
        raise SpecError(f"spec.model.distribution {problem}.")
    torch.manual_seed(seed)
    with calling(f"algorithm {type(algorithm).__name__}", algorithm.networks):
        nets = algorithm.networks(inputs)
        if not isinstance(nets, nn.ModuleDict) or "policy" not in nets:
            raise Misuse('gave networks that are not an nn.ModuleDict with a "policy"')
        for target, source in algorithm.target_networks.items():
            nets[target] = frozen_copy(nets.get_submodule(source))
        return nets


@torch.no_grad()
def window_targets(algorithm: Algorithm, nets: nn.ModuleDict, window: WindowData) -> Tensors:
    """The algorithm's targets for a window, computed with the networks in evaluation mode.

    Raises:
        UserCodeError: computing them raised, or they are not one for each timestep.
    """
    with evaluation_mode(nets), calling(f"{type(algorithm).__name__}.targets", algorithm.targets):
        targets = algorithm.targets(nets, window)
        _refuse_others(targets, window)
        return targets


def _refuse_others(targets: Tensors, window: WindowData) -> None:
    if not isinstance(targets, Mapping):
        raise Misuse(f"gave a {type(targets).__name__}; it must return a dictionary of columns.")
    for name, column in targets.items():
        if not isinstance(column, Tensor) or column.shape[:1] != (window.num_steps,):
            is_tensor = isinstance(column, Tensor)
            found = f"of shape {[*column.shape]}" if is_tensor else f"as a {type(column).__name__}"
            raise Misuse(
                f"gave {name!r} {found} for a window of {window.num_steps:,} timesteps; it must be a tensor with one "
                "row for each."
            )
