"""`Policy`: a module and its preprocessing, ready to act in an environment; does not need Ray."""

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
from hindcast.episodes.spaces import flatten_space, read_named
from hindcast.errors import DataError
from hindcast.models import policy_files
from hindcast.models.missing_values import element_names
from hindcast.models.preprocessing import EnvActions, Preprocessing
from hindcast.models.recurrent import SlotStates, State, as_leaves, extract_state
from hindcast.models.rl_module import PolicyModule, RLModule
from hindcast.storage.location import Location, resolve

F32 = NDArray[np.float32]

_VALUE_HEAD_PREFIXES = ("vf.", "vf_encoder.", "vf_memory.")
"""Prefixes of weights that acting does not use."""


class Actions(NamedTuple):
    """Actions of a policy in a step of B slots, and how they were chosen.

    Attributes:
        env_actions: item i is for slot i's `env.step`: an array `[B, *shape]`, or a list in composite spaces.
        actions: module actions, leaf -> `[B, *shape]`: integers (a `start` included) or float32.
        logp: `[B]` float32 log-probability of `actions` under the distribution that they were sampled from: 0 for
            greedy discrete actions; None for greedy continuous actions and for deterministic heads.
        dist_inputs: `[B, P]` float32 `action_dist_inputs`; None if no network acted.
        state_out: the state after the step, leaf (`state_out/h`) -> `[B, *shape]`; empty for stateless policies.
    """

    env_actions: EnvActions
    actions: dict[str, NDArray[Any]]
    logp: F32 | None
    dist_inputs: F32 | None
    state_out: Mapping[str, NDArray[Any]] = MappingProxyType({})


class ActingState(NamedTuple):
    """State of a policy in one episode in progress, or in the episodes of its slots.

    Attributes:
        preprocessing: has the episode's frames.
        states: the recurrent states.
        generator: source of the episode's noise; not used for slots, whose noise comes from the caller.
    """

    preprocessing: Preprocessing
    states: SlotStates
    generator: np.random.Generator


class Policy:
    """A module and its preprocessing.

    `policy(obs)` acts on one observation and keeps the frames and recurrent state of that environment. `act` acts in
    many slots at once, `decide` in one of many episodes in progress (see `begin`), and `compute_actions` in
    environments whose states the caller keeps.

    Args:
        module: the module, on the device where it computes.
        preprocessing: the preprocessing, built for the same spaces.
        observation_space: the environment's observation space.
        action_space: the environment's action space.
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
        self._slot_state = ActingState(
            preprocessing, SlotStates(self._initial_states), np.random.default_rng()
        )
        self._is_stateful = module.is_stateful()
        self.reset()

    @classmethod
    def load(
        cls, path: str | Path | Location, device: str = "cpu", allow_classes: policy_files.AllowedClasses = ()
    ) -> Policy:
        """Read a policy from a checkpoint folder, or from the `module` folder in it.

        Args:
            path: a path or URI.
            device: where the module computes.
            allow_classes: custom module classes, or their paths "package.module:Class", that the checkpoint may name;
                classes that are imported already need not be listed.

        Raises:
            DataError: a file is missing or damaged, has a newer format, or names a class that is not allowed.
            UserError: an allowed class cannot be imported, or raised.
        """
        folder = policy_files.find_folder(resolve(path))
        files = {name: folder.child(name).read_bytes() for name in policy_files.FILE_NAMES}
        return cls._from_contents(policy_files.from_files(files, allow_classes, str(folder)), device)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], device: str = "cpu") -> Policy:
        """Build a policy from `to_files` of another process of the same program; its custom class is imported.

        Raises:
            DataError: see `load`.
        """
        return cls._from_contents(policy_files.from_files(files, None, "policy"), device)

    @classmethod
    def _from_contents(cls, contents: policy_files.PolicyContents, device: str) -> Policy:
        contents.module.to(device).eval()
        return cls(*contents)

    def to_files(self) -> dict[str, bytes]:
        """Return the files of a saved policy by name, the description last. The same policy gives the same bytes."""
        contents = policy_files.PolicyContents(
            self.module, self.preprocessing, self.observation_space, self.action_space
        )
        return policy_files.to_files(contents)

    def save(self, folder: str | Path | Location) -> None:
        """Write the files into `folder` (a checkpoint's `module`).

        Raises:
            StorageError: the storage fails or denies access.
        """
        location = resolve(folder)
        for name, data in self.to_files().items():
            location.child(name).write_bytes(data)

    def load_weights(self, saved: Policy, where: str) -> bool:
        """Copy the weights and filters of a policy of the same model.

        Args:
            saved: the other policy. A value head that only one of the two has is ignored.
            where: name of `saved` in messages, such as its path.

        Returns:
            True if this policy has a value head that `saved` does not have.

        Raises:
            DataError: `saved` has another model; nothing was copied.
        """
        weights, saved_weights = self.module.state_dict(), saved.module.state_dict()
        # All weights are compared before any is copied. Only PolicyModule acts without its value head.
        value_head = _VALUE_HEAD_PREFIXES if isinstance(self.module, PolicyModule) else ()
        for name in sorted(weights.keys() | saved_weights.keys()):
            saved_shape, shape = (
                list(state[name].shape) if name in state else None for state in (saved_weights, weights)
            )
            is_in_one = saved_shape is None or shape is None
            if saved_shape == shape or (is_in_one and name.startswith(value_head)):
                continue
            raise DataError(
                f"{where} does not match this model: weight {name} {_describe_shape(saved_shape)} in the file and "
                f"{_describe_shape(shape)} in the model."
            )
        self.module.load_state_dict(
            {**weights, **{name: saved_weights[name] for name in weights if name in saved_weights}}
        )
        self.preprocessing.load(saved.preprocessing.state())
        self.reset()
        return any(name not in saved_weights for name in weights)

    @property
    def digest(self) -> str:
        """sha256 of everything that defines the policy: weights, filters, options, spaces."""
        return hashlib.sha256(self.to_files()[policy_files.DESCRIPTION]).hexdigest()

    def has_logp(self, explore: bool) -> bool:
        """Return True if actions have a log-probability."""
        head = self.module.action_head
        return head.is_stochastic if explore else head.is_discrete

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode for `policy(obs)`; a seed makes its exploration reproducible."""
        self._episode = self.begin(seed)

    def begin(self, seed: int | None = None) -> ActingState:
        """Begin an episode for `decide`, which may act in several at a time; a seed makes exploration reproducible."""
        return ActingState(
            self.preprocessing.fork(), SlotStates(self._initial_states), np.random.default_rng(seed)
        )

    def __call__(self, obs: Any, explore: bool = False, reward: float | None = None) -> Any:
        """Return the environment action for one raw observation; call `reset()` at the start of each episode.

        Args:
            obs: raw observation; of a vector with names also a mapping, such as `{"heart_rate": 80, …}`, in which a
                value that is None or left out is missing.
            explore: sample the action; False takes the mode.
            reward: of the previous step, for policies that use it (`module.sees_rewards`).

        Raises:
            DataError: the observation does not have the space's shape, or the policy uses rewards and none is given.
        """
        return self.decide(self._episode, obs, explore, reward).env_actions[0]

    def decide(
        self, episode: ActingState, obs: Any, explore: bool = False, reward: float | None = None
    ) -> Actions:
        """Act on one raw observation of an episode from `begin`; the result has B = 1.

        Raises:
            DataError: see `policy(obs)`.
        """
        rows = self._to_row(obs)
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
        """Act in B slots.

        A row's action depends only on its own observations and noise, except for the last bits: matrix kernels may
        round differently by B and by the row's position.

        Args:
            obs: raw observations, `[B, *shape]` or leaf -> rows (see `Preprocessing.observe`).
            noise: `[B, K]` of the kind `module.action_head.noise_kind`; None acts greedily.
            is_first: `[B]` slots that begin an episode, for frame stacking and recurrent states. None: no slot does,
                or, in the very first step, all slots.
            rewards: `[B]` of the previous step, for policies that use them (`module.sees_rewards`); ignored for slots
                that begin an episode.

        Raises:
            DataError: the policy uses rewards and none are given.
        """
        return self._act(self._slot_state, obs, noise, is_first, rewards)

    @torch.inference_mode()
    def compute_actions(
        self,
        obs: Any,
        state: Mapping[str, NDArray[Any]] | None = None,
        explore: bool = False,
        rewards: NDArray[np.float64] | None = None,
    ) -> tuple[EnvActions, dict[str, NDArray[Any]]]:
        """Act in B environments whose states the caller keeps, like RLlib's `forward_inference` with `state_in`.

        Args:
            obs: raw observations, see `act`.
            state: the result of the previous step, name -> `[B, *shape]`; None if all episodes begin, or without a
                recurrent layer.
            explore: sample actions; False takes the mode.
            rewards: see `act`.

        Returns:
            Actions, item i for the i-th `env.step`, and the state after the step, empty without a recurrent layer.

        Raises:
            DataError: the policy stacks frames, which it keeps itself; or the state is that of another policy; or the
                policy uses rewards and none are given.
        """
        if self.preprocessing.stacked_leaves or self.preprocessing.carries_forward:
            raise DataError(
                "compute_actions does not support policies that stack frames or carry values forward: use policy(obs), "
                "which keeps them."
            )
        rows = {**self.preprocessing.observe(obs), **as_leaves(Columns.STATE_IN, state or {})}
        noise = self.draw_noise(self._episode.generator, _num_rows(rows)) if explore else None
        batch = {**self._to_tensors(rows), **self._previous_rewards(rewards, is_first_step=state is None)}
        actions, _ = self._forward(batch, noise)
        return actions.env_actions, extract_state(Columns.STATE_OUT, actions.state_out)

    def draw_noise(self, generator: np.random.Generator, count: int) -> F32:
        """Draw `[count, K]` noise of the kind that `act` needs."""
        head = self.module.action_head
        draw = generator.standard_normal if head.noise_kind == "normal" else generator.random
        return draw((count, head.noise_size), dtype=np.float32)

    @torch.inference_mode()
    def _act(
        self,
        episode: ActingState,
        obs: Any,
        noise: F32 | None,
        is_first: NDArray[np.bool_] | None,
        rewards: NDArray[np.float64] | None,
    ) -> Actions:
        rows, states = episode.preprocessing.observe(obs, is_first), episode.states
        batch = self._to_tensors(rows)
        if self._is_stateful:
            batch |= states.before_step(_num_rows(rows), is_first)
        batch |= self._previous_rewards(rewards, is_first_step=states.is_all_first(is_first))
        actions, state = self._forward(batch, noise)
        states.update(state)
        return actions

    def _previous_rewards(
        self, rewards: NDArray[np.float64] | None, is_first_step: bool
    ) -> dict[str, Tensor]:
        """Return the rewards of the previous step as a column, for modules that use them."""
        if not self.module.sees_rewards or (rewards is None and is_first_step):
            return {}
        if rewards is None:
            raise DataError(
                "the policy is conditioned on the return to go: pass the reward of the previous step, "
                "policy(obs, reward=reward)."
            )
        return {Columns.PREV_REWARDS: self._to_tensor(np.asarray(rewards))}

    def _forward(self, batch: Mapping[str, Tensor], noise: F32 | None) -> tuple[Actions, State]:
        """Compute the actions of a step of all slots, and the state after the step."""
        module = self.module
        if module.training:  # a learner trains this module; its next update restores training mode
            module.eval()
        outputs = module.forward_inference(batch) if noise is None else module.forward_exploration(batch)
        dist_inputs = outputs[Columns.ACTION_DIST_INPUTS]
        distribution = module.distribution(dist_inputs)
        noise_tensor = None if noise is None else self._to_tensor(noise)
        raw_actions = distribution.mode() if noise_tensor is None else distribution.sample(noise_tensor)
        action_leaves = {Columns.ACTIONS: raw_actions} if isinstance(raw_actions, Tensor) else raw_actions
        actions = {leaf: _to_array(tensor) for leaf, tensor in action_leaves.items()}
        state: State = {}
        if self._is_stateful:
            state = extract_state(Columns.STATE_OUT, outputs) | module.state_after(
                outputs, action_leaves, noise_tensor
            )
        state_out = {leaf: _to_array(tensor) for leaf, tensor in as_leaves(Columns.STATE_OUT, state).items()}
        logp: F32 | None = None
        if self.has_logp(explore=noise_tensor is not None):
            logp = _to_array(
                torch.zeros(len(dist_inputs)) if noise_tensor is None else distribution.logp(raw_actions)
            )
        env_actions = self.preprocessing.to_env(actions)
        return Actions(env_actions, actions, logp, _to_array(dist_inputs), state_out), state

    def _to_row(self, obs: Any) -> dict[str, NDArray[Any]]:
        try:
            named_obs = read_named(obs, self.observation_space)
        except DataError as error:
            raise DataError(f"the observation {error}") from error
        values = {leaf: np.asarray(value) for leaf, value in flatten(named_obs, Columns.OBS).items()}
        for leaf, space in self._leaves.items():
            shape = values[leaf].shape if leaf in values else None
            if shape != space.shape:
                description = outline(obs) if shape is None else f"{leaf} of shape {shape}"
                expected = self.observation_space if shape is None else space
                raise DataError(
                    f"the policy received {description}, expected {expected}: pass one raw observation of the "
                    "environment in which it was trained."
                )
            self._refuse_missing(leaf, space, values[leaf])
        return {leaf: values[leaf][None] for leaf in self._leaves}

    def _refuse_missing(self, leaf: str, space: gym.Space, value: NDArray[Any]) -> None:
        """Refuse an observation with a missing value (NaN) that nothing replaces."""
        if value.dtype.kind != "f" or not np.isnan(value).any():
            return
        is_missing = np.isnan(value) & ~self.preprocessing.fillable.get(leaf, np.False_)
        if is_missing.any():
            names = element_names(leaf, space)
            name = names[int(np.argmax(is_missing))] if len(names) == value.size else leaf
            raise DataError(
                f"the observation has no {name} (NaN), and the policy was trained without a rule for that: set "
                "prepare.missing in its training."
            )

    def _to_tensors(self, rows: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        return {leaf: self._to_tensor(array) for leaf, array in rows.items()}

    def _to_tensor(self, rows: NDArray[Any]) -> Tensor:
        rows = rows.astype(batch_dtype(rows.dtype), copy=False)
        if not rows.flags.writeable:  # torch has no read-only tensors and would warn
            rows = rows.copy()
        tensor = torch.from_numpy(rows)
        return tensor if self._device is None else tensor.to(self._device)


def _describe_shape(shape: list[int] | None) -> str:
    return "is missing" if shape is None else f"has shape {shape}"


def _num_rows(rows: Mapping[str, NDArray[Any]]) -> int:
    return len(next(iter(rows.values())))


def _to_array(tensor: Tensor) -> NDArray[Any]:
    return tensor.cpu().numpy()
