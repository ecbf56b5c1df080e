"""`Policy`: a module with all that stands between it and its environment; needs no Ray."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hindcast.episodes.batched import batch_dtype
from hindcast.episodes.columns import Columns
from hindcast.episodes.nested import flatten, outline
from hindcast.episodes.spaces import flatten_space
from hindcast.errors import DataError
from hindcast.models import policy_files
from hindcast.models.preprocessing import EnvActions, Preprocessing
from hindcast.models.recurrent import SlotStates, State, as_leaves, state_of
from hindcast.models.rl_module import PolicyModule, RLModule
from hindcast.storage.location import Location, resolve

F32 = NDArray[np.float32]

_VALUE_HEAD = ("vf.", "vf_encoder.", "vf_memory.")
"""Prefixes of the weights that a policy acts without."""


class Actions(NamedTuple):
    """What a policy did in a step of B slots.

    Attributes:
        env_actions: item i is for slot i's `env.step`: an array `[B, *shape]`, a list in composite spaces.
        actions: the module's own, leaf -> `[B, *shape]`: integers (a `start` included) or float32.
        logp: `[B]` float32 log-probability of `actions` under the distribution they were taken from: 0 for
            greedy discrete actions; None where none exists (greedy continuous actions, a deterministic head).
        dist_inputs: `[B, P]` float32 `action_dist_inputs`; None where no network acted.
        state_out: the recurrent state after the step, leaf (`state_out/h`) -> `[B, *shape]`; empty without one.
    """

    env_actions: EnvActions
    actions: dict[str, NDArray[Any]]
    logp: F32 | None
    dist_inputs: F32 | None
    state_out: Mapping[str, NDArray[Any]] = MappingProxyType({})


class EpisodeState(NamedTuple):
    """What a policy keeps of one running episode, or of those in its slots.

    Attributes:
        preprocessing: with the episode's frames.
        states: with its recurrent state.
        generator: where its noise comes from; that of slots comes from the caller.
    """

    preprocessing: Preprocessing
    states: SlotStates
    generator: np.random.Generator


class Policy:
    """A module and its preprocessing.

    `policy(obs)` acts on one observation and keeps that environment's frames and recurrent state itself; `act` does a
    step of many slots at once, `decide` a step of one of many running episodes (`begin`), and `compute_actions` one of
    environments whose states the caller keeps.

    Args:
        module: on the device where it shall compute.
        preprocessing: made for the same spaces.
        observation_space: the environment's.
        action_space: the environment's.
    """

    def __init__(
        self,
        module: RLModule,
        preprocessing: Preprocessing,
        observation_space: gym.Space,
        action_space: gym.Space,
    ) -> None:
        self.module = module
        self.preprocessing = preprocessing
        self.observation_space = observation_space
        self.action_space = action_space
        self._leaves = flatten_space(observation_space, Columns.OBS)
        device = next(module.parameters()).device
        self._device = None if device.type == "cpu" else device
        self._initial_states = partial(module.initial_states, device=device)
        self._slots = EpisodeState(preprocessing, SlotStates(self._initial_states), np.random.default_rng())
        self._is_stateful = module.is_stateful()
        self.reset()

    @classmethod
    def load(
        cls, path: str | Path | Location, device: str = "cpu", allow_classes: policy_files.AllowedClasses = ()
    ) -> Policy:
        """Read a policy from a checkpoint folder, or from the `module` folder in it.

        Args:
            path: any path or URI that the store resolves.
            device: where the module shall compute.
            allow_classes: module classes of your own, or their paths "package.module:Class", that the checkpoint may
                name; those that are imported already need not be given.

        Raises:
            DataError: a file is missing, damaged, of a newer format, or names a class that is not allowed.
            UserError: an allowed class cannot be imported, or raised.
        """
        folder = policy_files.find_folder(resolve(path))
        files = {name: folder.child(name).read_bytes() for name in policy_files.NAMES}
        return cls._of(policy_files.read(files, allow_classes, str(folder)), device)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], device: str = "cpu") -> Policy:
        """The inverse of `to_files`, in another process of the same program: a class of the user's own is imported.

        Raises:
            DataError: as `load`.
        """
        return cls._of(policy_files.read(files, None, "policy"), device)

    @classmethod
    def _of(cls, contents: policy_files.PolicyContents, device: str) -> Policy:
        contents.module.to(device).eval()
        return cls(*contents)

    def to_files(self) -> dict[str, bytes]:
        """The files of a saved policy by name, the description last. The same policy gives the same bytes."""
        contents = policy_files.PolicyContents(
            self.module, self.preprocessing, self.observation_space, self.action_space
        )
        return policy_files.write(contents)

    def save(self, folder: str | Path | Location) -> None:
        """Write the files into `folder` (a checkpoint's `module`).

        Raises:
            StorageError: with path and reason.
        """
        location = resolve(folder)
        for name, data in self.to_files().items():
            location.child(name).write_bytes(data)

    def load_weights(self, saved: Policy, where: str) -> bool:
        """Take over the weights and filters of a policy of the same model.

        Args:
            saved: a value head that only one of the two has is left as it is.
            where: names `saved` in messages.

        Returns:
            Whether there is a value head here that `saved` does not have.

        Raises:
            DataError: it is of another model; nothing was taken.
        """
        own, given = self.module.state_dict(), saved.module.state_dict()
        value_head = _VALUE_HEAD if isinstance(self.module, PolicyModule) else ()
        for name in sorted(own.keys() | given.keys()):
            shapes = [list(state[name].shape) if name in state else None for state in (given, own)]
            if shapes[0] == shapes[1] or (None in shapes and name.startswith(value_head)):
                continue
            theirs, ours = ("none" if shape is None else f"one of shape {shape}" for shape in shapes)
            raise DataError(
                f"{where} is of another model: of the weights {name} it has {theirs}, and this model has {ours}."
            )
        self.module.load_state_dict({**own, **{name: given[name] for name in own if name in given}})
        self.preprocessing.load(saved.preprocessing.state())
        self.reset()
        return any(name not in given for name in own)

    @property
    def digest(self) -> str:
        """sha256 of all that makes the policy what it is: weights, filters, options, spaces."""
        return hashlib.sha256(self.to_files()[policy_files.DESCRIPTION]).hexdigest()

    def has_logp(self, explore: bool) -> bool:
        """Whether actions come with a log-probability."""
        head = self.module.action_head
        return head.is_stochastic if explore else head.is_discrete

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode for `policy(obs)`; with a seed, its exploration is the same each time."""
        self._alone = self.begin(seed)

    def begin(self, seed: int | None = None) -> EpisodeState:
        """An episode played alongside others, for `decide`; with a seed, its exploration is the same each time."""
        return EpisodeState(
            self.preprocessing.fork(), SlotStates(self._initial_states), np.random.default_rng(seed)
        )

    def __call__(self, obs: Any, explore: bool = False, reward: float | None = None) -> Any:
        """The environment action for one raw observation; call `reset()` at each episode's start.

        Args:
            obs: raw observation.
            explore: sample the action; False takes the policy's mode.
            reward: of the step before, for a policy that looks at it (`module.sees_rewards`).

        Raises:
            DataError: the observation does not have the space's shape; or the policy looks at rewards, and none is
                given.
        """
        return self.decide(self._alone, obs, explore, reward).env_actions[0]

    def decide(
        self, episode: EpisodeState, obs: Any, explore: bool = False, reward: float | None = None
    ) -> Actions:
        """Act on one raw observation of a running episode: `policy(obs)`, with all that came of it (B = 1).

        Raises:
            DataError: as `policy(obs)`.
        """
        rows = self._one_row(obs)
        noise = self.draw_noise(episode.generator, 1) if explore else None
        rewards = None if reward is None else np.array([reward])
        return self._act(episode, rows, noise, None, rewards)

    def act(
        self,
        obs: Any,
        noise: F32 | None = None,
        is_first: NDArray[np.bool_] | None = None,
        rewards: NDArray[np.float64] | None = None,
    ) -> Actions:
        """Act in B slots. A row's action depends on its own observations and noise only, and, in the last bits,
        on B and the row's position, by which matrix kernels may round.

        Args:
            obs: raw observations, `[B, *shape]` or leaf -> rows (see `Preprocessing.observe`).
            noise: `[B, K]` of the kind `module.action_head.noise`; None acts greedily.
            is_first: `[B]` slots that begin an episode; frame stacking and recurrent states look at it. None: none of
                them, or, in the very first step, all.
            rewards: `[B]` of the step before, for a policy that looks at them (`module.sees_rewards`); those of slots
                that begin an episode do not count.

        Raises:
            DataError: the policy looks at rewards, and none are given.
        """
        return self._act(self._slots, obs, noise, is_first, rewards)

    @torch.inference_mode()
    def compute_actions(
        self,
        obs: Any,
        state: Mapping[str, NDArray[Any]] | None = None,
        explore: bool = False,
        rewards: NDArray[np.float64] | None = None,
    ) -> tuple[EnvActions, dict[str, NDArray[Any]]]:
        """Act in B environments whose states the caller keeps, as RLlib's `forward_inference` with `state_in`.

        Args:
            obs: raw observations, as of `act`.
            state: as returned by the step before, name -> `[B, *shape]`; None where all episodes begin, and without a
                recurrent layer.
            explore: sample actions; False takes the policy's mode.
            rewards: as of `act`.

        Returns:
            Actions, item i for the i-th `env.step`, and the state after the step, empty without a recurrent layer.

        Raises:
            DataError: the policy stacks frames, which it keeps itself; or the state is another policy's; or the policy
                looks at rewards, and none are given.
        """
        if self.preprocessing.stacked_leaves:
            raise DataError(
                "compute_actions: the policy stacks frames, which it keeps itself: use policy(obs)."
            )
        rows = {**self.preprocessing.observe(obs), **as_leaves(Columns.STATE_IN, state or {})}
        noise = self.draw_noise(self._alone.generator, _count(rows)) if explore else None
        batch = {**self._tensors(rows), **self._previous(rewards, begins=state is None)}
        acted, _ = self._forward(batch, noise)
        return acted.env_actions, state_of(Columns.STATE_OUT, acted.state_out)

    def draw_noise(self, generator: np.random.Generator, count: int) -> F32:
        """`[count, K]` noise of the kind that `act` wants."""
        head = self.module.action_head
        draw = generator.standard_normal if head.noise_kind == "normal" else generator.random
        return draw((count, head.noise_size), dtype=np.float32)

    @torch.inference_mode()
    def _act(
        self,
        playing: EpisodeState,
        obs: Any,
        noise: F32 | None,
        is_first: NDArray[np.bool_] | None,
        rewards: NDArray[np.float64] | None,
    ) -> Actions:
        rows, states = playing.preprocessing.observe(obs, is_first), playing.states
        batch = self._tensors(rows)
        if self._is_stateful:
            batch |= states.before_step(_count(rows), is_first)
        batch |= self._previous(rewards, begins=states.is_all_first(is_first))
        acted, state = self._forward(batch, noise)
        states.update(state)
        return acted

    def _previous(self, rewards: NDArray[np.float64] | None, begins: bool) -> dict[str, Tensor]:
        """The rewards of the step before, for a module that looks at them."""
        if not self.module.sees_rewards or (rewards is None and begins):
            return {}
        if rewards is None:
            raise DataError(
                "the policy is conditioned on the return to go: give the reward of the previous step, "
                "policy(obs, reward=reward)."
            )
        return {Columns.PREV_REWARDS: self._tensor(np.asarray(rewards))}

    def _forward(self, batch: Mapping[str, Tensor], noise: F32 | None) -> tuple[Actions, State]:
        """What the module does with a step of all slots, and its state after the step."""
        module = self.module
        if module.training:  # of a learner, which goes back to it
            module.eval()
        outputs = module.forward_inference(batch) if noise is None else module.forward_exploration(batch)
        dist_inputs = outputs[Columns.ACTION_DIST_INPUTS]
        distribution = module.distribution(dist_inputs)
        drawn = None if noise is None else self._tensor(noise)
        chosen = distribution.mode() if drawn is None else distribution.sample(drawn)
        taken = {Columns.ACTIONS: chosen} if isinstance(chosen, Tensor) else chosen
        actions = {leaf: _array(tensor) for leaf, tensor in taken.items()}
        state: State = {}
        if self._is_stateful:
            state = state_of(Columns.STATE_OUT, outputs) | module.state_after(outputs, taken, drawn)
        state_out = {leaf: _array(tensor) for leaf, tensor in as_leaves(Columns.STATE_OUT, state).items()}
        logp: F32 | None = None
        if self.has_logp(explore=drawn is not None):
            logp = _array(torch.zeros(len(dist_inputs)) if drawn is None else distribution.logp(chosen))
        env_actions = self.preprocessing.to_env(actions)
        return Actions(env_actions, actions, logp, _array(dist_inputs), state_out), state

    def _one_row(self, obs: Any) -> dict[str, NDArray[Any]]:
        values = {leaf: np.asarray(value) for leaf, value in flatten(obs, Columns.OBS).items()}
        for leaf, space in self._leaves.items():
            found = values[leaf].shape if leaf in values else None
            if found != space.shape:
                given = outline(obs) if found is None else f"{leaf} of shape {found}"
                expected = self.observation_space if found is None else space
                raise DataError(
                    f"the policy was given {given}, expected {expected}: give one raw observation of the "
                    "environment that it was trained in."
                )
        return {leaf: values[leaf][None] for leaf in self._leaves}

    def _tensors(self, rows: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        return {leaf: self._tensor(each) for leaf, each in rows.items()}

    def _tensor(self, rows: NDArray[Any]) -> Tensor:
        rows = rows.astype(batch_dtype(rows.dtype), copy=False)
        if not rows.flags.writeable:  # torch has no read-only tensors, and warns
            rows = rows.copy()
        tensor = torch.from_numpy(rows)
        return tensor if self._device is None else tensor.to(self._device)


def _count(rows: Mapping[str, NDArray[Any]]) -> int:
    return len(next(iter(rows.values())))


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.cpu().numpy()
