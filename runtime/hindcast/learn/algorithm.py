"""`Algorithm`: the interface of all algorithms: options, networks, optimisers, losses.

An algorithm object holds its options and no state. Everything that training changes (weights, target networks,
moving norms, multipliers) is a parameter or buffer of its networks, so that a checkpoint of the networks is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import gymnasium as gym
import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from hindcast.api.base import Model, Positive
from hindcast.api.checks import untrainable_problem
from hindcast.api.model import Distribution, ModelOptions, ModelSpec
from hindcast.api.option_types import RelatedOptions
from hindcast.episodes.action_kinds import ActionKind
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.errors import SpecError
from hindcast.formatting import describe_type
from hindcast.learn.optimisers import ADAM_EPSILON, ClipBy, OptimiserSpec
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
    """Q(s, a), computed by networks."""

    def __call__(self, batch: Tensors, actions: Actions | None = None) -> Tensor:
        """Return `[B]` values of the batch's actions, or `[K, B]` values of `actions` `[K, B, *shape]`."""
        ...


class AlgorithmOptions(RelatedOptions, Model):
    """Options of every algorithm: camelCase in YAML, snake_case in Python; unknown options are refused.

    Defaults are validated too. An option's schema may name another option. With `x-only-with`, the option has no effect
    unless the other one is set (a note says so); with `x-at-most`, it must not exceed the other one; with
    `x-multiple-of`, it must be a multiple of the other one.
    """

    model_config = ConfigDict(validate_default=True)

    train_batch_size_per_learner: Positive = 1024
    """Timesteps in one learner's batch; the global batch is this times the number of learners."""
    grad_clip: AboveZero | None = None
    """Gradient clipping threshold, see gradClipBy; null disables clipping."""
    grad_clip_by: ClipBy = Field(default="global_norm", json_schema_extra={"x-only-with": "gradClip"})
    """What gradClip limits: the norm of all gradients of an optimiser together (GlobalNorm), the norm of each
    parameter's gradient (Norm), or each gradient value (Value)."""
    adam_epsilon: AboveZero = ADAM_EPSILON
    """ε of Adam (arXiv 1412.6980): larger values damp the steps of parameters with small gradients. Rainbow and other
    methods for Atari use 1.5e-4."""
    weight_decay: NonNegative = 0.0
    """Weight decay of AdamW (arXiv 1711.05101), for all parameters except single numbers such as SAC's α; 0 is
    Adam."""


@dataclass(frozen=True)
class ModelInputs:
    """The spaces and model options that networks are built from.

    Attributes:
        observation_space: space of the module's observations, after preprocessing.
        action_space: space of the module's actions.
        model: complete options of the networks; `model.for_network` has those of the policy or of the critics.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    model: ModelSpec

    def policy(self, value: bool, auto: str = "auto") -> RLModule:
        """Build a policy module.

        Args:
            value: True if it has a value head.
            auto: the algorithm's choice of `model.distribution` if the user leaves it at "auto".

        Raises:
            SpecError: the model's options do not fit the spaces.
            UserCodeError: the user's class (`model.moduleClass`) raised.
        """
        model = self.model.for_network("policy")
        if model.distribution == "auto":
            model = model.model_copy(update={"distribution": auto})
        return build_module(self.observation_space, self.action_space, model, value)

    def own_policy(
        self, kind: type[RLModule], algorithm: str, auto: str | None = None, **options: Any
    ) -> RLModule:
        """Build a policy of a class that only this algorithm uses.

        Args:
            kind: class of the policy.
            algorithm: name of the algorithm, for messages.
            auto: see `policy`; None if the class has its own distribution, which the user cannot choose.
            options: arguments of the class's `setup()`.

        Raises:
            SpecError: the user requests another policy class, or the model's options do not fit the spaces.
        """
        model = self.model.for_network("policy")
        if model.recurrent != "none" or model.module_class is not None:
            raise SpecError(
                f"{algorithm} builds its own kind of policy: leave recurrent and moduleClass out.",
                field="spec.model",
            )
        if auto is None and model.distribution != "auto":
            raise SpecError(
                f"is {ModelSpec.in_yaml('distribution', model.distribution)!r}, but {algorithm} "
                "builds its own policy: leave distribution out.",
                field="model.distribution",
            )
        changes: dict[str, Any] = {"module_options": options}
        if auto is not None and model.distribution == "auto":
            changes["distribution"] = auto
        model = model.model_copy(update=changes)
        return kind(self.observation_space, self.action_space, model)

    def state_value(self) -> StateValue:
        """Build V(s): batch -> `[B]`. Call it with `next_observations(batch)` for V(s').

        Raises:
            SpecError: the model's options do not fit the observations.
        """
        return StateValue(self.observation_space, self.model.for_network("critics"))

    def critics(self, members: int = 1, *, layer_norm: bool = False, dropout: float = 0.0) -> Critics:
        """Build critics Q(s, a) for any action space, all members computed in one call: batch -> `[members, B]`.

        The arguments are those of `Critics`.

        Raises:
            SpecError: the model's options do not fit the spaces.
        """
        return Critics(
            self.observation_space,
            self.action_space,
            self.model.for_network("critics"),
            members,
            layer_norm=layer_norm,
            dropout=dropout,
        )

    def action_values(
        self, members: int = 1, *, layer_norm: bool = False, dropout: float = 0.0
    ) -> ActionValues:
        """Build critics Q(s, ·) for n discrete actions, all members computed in one call: batch -> `[members, B, n]`.

        The arguments are those of `ActionValues`.

        Raises:
            SpecError: the action space is not Discrete, or the model's options do not fit the observations.
        """
        return ActionValues(
            self.observation_space,
            self.action_space,
            self.model.for_network("critics"),
            members,
            layer_norm=layer_norm,
            dropout=dropout,
        )


class Step(NamedTuple):
    """The position in the training at which a loss is computed (not a timestep of an episode).

    Attributes:
        updates: number of updates made before this one.
        timesteps: number of timesteps trained before this update; schedules follow it.
        generator: the learner's source of randomness, on its device; checkpoints save its state.
        clock: `timesteps` as a float64 scalar on the device, for `ScheduledValue`; must not be changed.
    """

    updates: int
    timesteps: int
    generator: torch.Generator
    clock: Tensor = torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Losses:
    """Losses of one update, or of one stage of it.

    Attributes:
        losses: optimiser name -> scalar. Each optimiser gets the gradients of its own loss only. All gradients are
            computed before any of these optimisers steps; optimisers without a loss do not step.
        metrics: name -> scalar, averaged over updates. Detached by the learner.
        joint: True if the losses' graphs are disjoint (each reaches only its own optimiser's parameters), so that one
            backward pass computes all gradients. If they overlap, the learner raises UserCodeError.
        priorities: `[B]`, one for each item of the batch, if the algorithm's `needs` draw items by priority. Usually
            the TD errors; the sign is ignored. Detached by the learner.
    """

    losses: Tensors
    metrics: Tensors = field(default_factory=dict)
    joint: bool = False
    priorities: Tensor | None = None


class Algorithm(ABC):
    """Base class of all algorithms. The docstring of its `Options` states the objective and its source.

    Attributes:
        Options: class of its options.
        compiled_methods: methods that torch.compile can compile as one graph each (`spec.learners.compile`). They
            compute losses, draw no noise from `Step.generator`, read no number of `Step` and change no buffer. If a
            method takes the networks, they are its first argument.
        is_capturable: whether a GPU may record its updates as CUDA graphs: all updates of one `update_kind` run the
            same operations.
        kinds: the resources in which it can be used.
        can_train_recurrent: whether its losses accept sequences (`[B, T, ...]` with `loss_mask`) as well as timesteps,
            so that it can train recurrent policies.
        averages_sequences: whether its losses of sequences are means over the sequences, not over the steps that
            `loss_mask` selects; several learners weight their shards accordingly.
        can_train_online: whether it can learn from episodes that its own policy plays during the training (an input's
            `sampler`): its losses are valid for actions of any earlier policy, and its policy explores, by itself or by
            `action_noise`.
        has_own_policy: whether it builds its own class of policy, so that `model.moduleClass` does not apply.
        distributions: the values of `model.distribution` that it can train; None for all.
        actions: the kind of actions that it can learn; `hindcast validate` and the algorithm's networks refuse others.
        target_networks: name of a target network -> path of its source: a network of `networks()`, or a submodule of
            one ("policy.encoder"). A target network starts as a frozen copy of its source.
        unsupported_overrides: methods of RLlib's algorithms that Hindcast never calls -> what to do instead of
            overriding them.
    """

    Options: ClassVar[type[AlgorithmOptions]]
    compiled_methods: ClassVar[tuple[str, ...]] = ()
    is_capturable: ClassVar[bool] = False
    kinds: ClassVar[frozenset[Kind]] = frozenset({"OfflineTraining"})
    can_train_recurrent: ClassVar[bool] = False
    averages_sequences: ClassVar[bool] = False
    can_train_online: ClassVar[bool] = False
    has_own_policy: ClassVar[bool] = False
    distributions: ClassVar[tuple[Distribution, ...] | None] = None
    actions: ClassVar[ActionKind] = "any"
    target_networks: ClassVar[Mapping[str, str]] = MappingProxyType({})
    unsupported_overrides: ClassVar[Mapping[str, str]] = {
        "build_learner_connector": "name the connectors in spec.pipeline.connectors (learner_connector in Python)",
        "training_step": "its networks, optimisers and losses define the training step",
    }

    def __init__(self, options: AlgorithmOptions) -> None:
        self.options = options

    def model_defaults(self, action_space: gym.Space[Any] | None) -> ModelOptions:  # noqa: ARG002
        """Return the options of its networks that apply where the user sets none; by default RLlib's.

        Args:
            action_space: the space of the actions; None if it is not yet known.
        """
        return ModelOptions()

    @abstractmethod
    def needs(self) -> Needs:
        """Return the columns and the sampling that it needs; they may depend on its options, such as `n_step`."""

    @abstractmethod
    def networks(self, inputs: ModelInputs) -> nn.ModuleDict:
        """Build the networks, except `target_networks`. "policy" is the `RLModule` that acts; other names are free."""

    @abstractmethod
    def optimisers(self, nets: nn.ModuleDict) -> dict[str, OptimiserSpec]:
        """Return optimiser name -> parameters and options. Parameters that no optimiser has are not trained."""

    @abstractmethod
    def losses(self, nets: nn.ModuleDict, batch: Tensors, step: Step) -> Losses | Iterator[Losses]:
        """Compute the losses of a batch.

        If a loss needs weights that another loss of the same update has changed, this is a generator: the learner steps
        the optimisers of each `Losses` before it asks for the next one.
        """

    def fit(self, nets: nn.ModuleDict, blocks: Iterable[Block]) -> None:  # noqa: B027
        """Set buffers of the networks to statistics of the data, once, before the first update of a new training.

        Only the first learner calls it; the others get its networks.

        Args:
            nets: the networks, with the weights of `initialCheckpoint` if there is one.
            blocks: all training episodes, at least with the column `rewards`; read only when iterated over.
        """

    def targets(self, nets: nn.ModuleDict, window: WindowData) -> Tensors:  # noqa: ARG002
        """Compute columns over the whole episodes of a window, `[S, ...]` each, if `needs().targets` is set.

        Batches contain them in addition to the other columns. Called without gradients, with the networks in evaluation
        mode, when a window is entered and every `needs().targets_every` updates while it is in use. Each learner enters
        windows of its own, so this must not change the networks.

        Args:
            nets: the networks, with their current weights.
            window: its tensors are on the learner's device; `rewards` are those of single steps.
        """
        return {}

    def critic(self, nets: nn.ModuleDict) -> Critic | None:
        """Return Q(s, a) as the minimum over the networks named "critics", or None if it has none.

        Override it if Q is computed by other networks.
        """
        critics = dict(nets).get("critics")
        if not isinstance(critics, Critics):
            return None
        return lambda batch, actions=None: critics(batch, actions).amin(0)

    def before_play(self, nets: nn.ModuleDict, timesteps: int) -> None:  # noqa: B027
        """Prepare the policy to play during the training (see `can_train_online`), for example set its exploration.

        Override it if exploration depends on the timesteps. What it sets must be in buffers of the networks.

        Args:
            nets: the networks.
            timesteps: timesteps that the policy has played so far.
        """

    def action_noise(self) -> float:
        """Return the noise of the actions that a deterministic policy plays during the training.

        It is the standard deviation of normal noise, in units of half the range of one bounded float Box. 0 leaves
        exploration to the policy.
        """
        return 0.0

    def update_target_networks(self, nets: nn.ModuleDict, tau: float) -> None:
        """Move each of `target_networks` towards its source, see `polyak_update`. Call it in `after_update`."""
        for target, source in self.target_networks.items():
            polyak_update(nets[target], nets.get_submodule(source), tau)

    def update_kind(self, updates: int) -> Hashable:  # noqa: ARG002
        """Return a value that identifies the operations of the update that follows `updates` updates.

        Override it if the operations depend on `Step.updates`.
        """
        return 0

    def after_update(self, nets: nn.ModuleDict, step: Step) -> None:  # noqa: B027
        """Run after every update, with the updated weights, for example to move target networks.

        `step` is the one that the update's losses received.
        """


def needs_for(algorithm: Algorithm, policy: RLModule) -> Needs:
    """Return the columns and the sampling that the algorithm needs to train this policy.

    A policy with a recurrent state needs sequences, of the length in its model's options.

    Raises:
        SpecError: the policy has a state, but the algorithm learns from single timesteps, or its n-step targets reach
            further than a sequence.
    """
    needs = algorithm.needs()
    if needs.seq_len is not None or not policy.is_stateful():
        return needs
    if not algorithm.can_train_recurrent:
        raise SpecError(
            f"{type(algorithm).__name__} learns from single timesteps and cannot train a recurrent policy: leave "
            "model.recurrent at None, and give it the last observations with model.frameStack"
        )
    model = policy.model_config
    if needs.n_step > model.max_seq_len:
        raise SpecError(
            f"is {needs.n_step}, but sequences of a recurrent policy have {model.max_seq_len} steps: set it to at most "
            "model.maxSeqLen.",
            field="spec.config.nStep",
            mentions=("model.maxSeqLen",),
        )
    if needs.n_step > 1:
        needs = needs.with_columns(frozenset({Columns.N_STEP}))
    return replace(needs, seq_len=model.max_seq_len, burn_in=model.burn_in, initial_state=model.initial_state)


def new_networks(algorithm: Algorithm, inputs: ModelInputs, seed: int) -> nn.ModuleDict:
    """Build the algorithm's networks, target networks included, with weights that follow from `seed`.

    Seeds torch's global generator, which also drives dropout; the learner checkpoints it.

    Raises:
        SpecError: the algorithm cannot train the model's distribution.
        UserCodeError: `networks()` raised, or its result is not an nn.ModuleDict with a "policy".
    """
    distribution, distributions = inputs.model.distribution, algorithm.distributions
    if distributions is not None and distribution not in distributions:
        word = ModelSpec.in_yaml("distribution", distribution)
        problem = untrainable_problem(word, type(algorithm).__name__, distributions)
        raise SpecError(f"{problem}.", field="spec.model.distribution")
    torch.manual_seed(seed)
    with calling(f"algorithm {type(algorithm).__name__}", algorithm.networks):
        nets = algorithm.networks(inputs)
        if not isinstance(nets, nn.ModuleDict) or "policy" not in nets:
            raise Misuse('returned networks that are not an nn.ModuleDict with a "policy"')
        for target, source in algorithm.target_networks.items():
            nets[target] = frozen_copy(nets.get_submodule(source))
        return nets


@torch.no_grad()
def window_targets(algorithm: Algorithm, nets: nn.ModuleDict, window: WindowData) -> Tensors:
    """Compute the algorithm's targets for a window, with the networks in evaluation mode.

    Raises:
        UserCodeError: `targets()` raised or changed a network, or a target does not have one row for each timestep.
    """
    with evaluation_mode(nets), calling(f"{type(algorithm).__name__}.targets", algorithm.targets):
        versions_before = tensor_versions(nets)
        targets = algorithm.targets(nets, window)
        changed_names = [
            name for name, version in tensor_versions(nets).items() if version != versions_before[name]
        ]
        if changed_names:
            raise Misuse(
                f"changed {changed_names[0]!r} of the networks: learners would differ, since each computes targets of "
                "its own windows. Set it in fit(), which runs once before the training."
            )
        _check_targets(targets, window)
        return targets


def tensor_versions(nets: nn.ModuleDict) -> dict[str, int]:
    """Return name -> version of each parameter and buffer; changing it in place changes the version."""
    return {name: tensor._version for name, tensor in nets.state_dict(keep_vars=True).items()}


def _check_targets(targets: Tensors, window: WindowData) -> None:
    if not isinstance(targets, Mapping):
        raise Misuse(f"returned {describe_type(targets)}; it must return a dictionary of columns.")
    for name, column in targets.items():
        if not isinstance(column, Tensor) or column.shape[:1] != (window.num_steps,):
            is_tensor = isinstance(column, Tensor)
            description = f"of shape {[*column.shape]}" if is_tensor else f"as {describe_type(column)}"
            raise Misuse(
                f"returned {name!r} {description} for a window of {window.num_steps:,} timesteps; it must be a tensor "
                "with one row for each timestep."
            )
