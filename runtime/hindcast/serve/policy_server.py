"""`PolicyServer`: a policy that answers an application's requests for actions and logs its decisions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.columns import Columns
from hindcast.episodes.nested import unflatten
from hindcast.episodes.spaces import space_struct
from hindcast.errors import DataError
from hindcast.formats.spec import DataSpec
from hindcast.models.policy import ActingState, Actions, Policy
from hindcast.run.checkpoint_evaluation import choose_explore
from hindcast.serve.episode_writer import EpisodeWriter
from hindcast.serve.messages import unknown_episode_error
from hindcast.serve.step_schema import StepSchema
from hindcast.storage.location import Location
from hindcast.threads import torch_threads

_LOG = logging.getLogger(__name__)


class PolicyServer:
    """Decides for an application, in the application's process or behind `HttpServer`, and logs the decisions.

    The methods are those of RLlib's `ExternalEnv` and `PolicyClient`. The log equals a recording of the policy: with
    `action_logp` and `action_dist_inputs`, so that `hindcast evaluate --data` and the next training can use it. It has
    the guarantees of `EpisodeWriter`. Several threads may call at the same time; the policy decides one after another.

    Args:
        policy: the policy, or the path of its checkpoint.
        log: folder of the dataset, as for `EpisodeWriter`.
        explore: True to sample actions, False to take the most likely actions. None acts as the run of the checkpoint
            judges the policy (`spec.evaluation`), and takes the most likely actions if no run judges it. A log of
            sampled actions can evaluate other policies.
        seed: seed of the sampling; None draws a new seed for each server.
        writer_options: options of `EpisodeWriter`.

    Attributes:
        explore: True if the policy samples its actions, False if it takes the most likely ones.
    """

    def __init__(
        self,
        policy: Policy | str | Path,
        log: str | Path | Location,
        *,
        explore: bool | None = None,
        seed: int | None = None,
        **writer_options: Any,
    ) -> None:
        if isinstance(policy, Policy):
            self.policy, self.explore = policy, bool(explore)
        else:
            self.policy, self.explore = Policy.load(policy), choose_explore(policy, explore, _LOG.warning)
        self._seed_generator = np.random.default_rng(seed)
        self._acting_states: dict[str, ActingState] = {}
        self._rewards: dict[str, float | None] = {}  # sum since the last action; None before the first action
        self._decision_lock = threading.Lock()
        # For actions in the application's units; the log has the module's actions.
        self._application_schema = StepSchema(DataSpec({}, None, self.policy.action_space, None, False))
        self.log = EpisodeWriter(
            log,
            observation_space=self.policy.observation_space,
            action_space=self.policy.action_space,
            normalized_actions=True,
            allow_missing=bool(self.policy.preprocessing.missing),
            **writer_options,
        )

    def start_episode(self, episode_id: str | None = None) -> str:
        """Start an episode and return its id. See `EpisodeWriter.start_episode`."""
        id_ = self.log.start_episode(episode_id)
        with self._decision_lock:
            self._acting_states[id_] = self.policy.begin(int(self._seed_generator.integers(1 << 62)))
            self._rewards[id_] = None
        return id_

    def get_action(self, episode_id: str, observation: Any) -> Any:
        """Return the action for an observation, in the application's units, after logging it.

        Raises:
            UnknownEpisode: the episode is not running.
            DataError: the observation does not fit its space; nothing is logged.
        """
        decision = self._decide(episode_id, observation)
        self._log(episode_id, observation, decision.actions, decision, decision.logp)
        return decision.env_actions[0]

    def log_action(
        self, episode_id: str, observation: Any, action: Any, action_logp: float | None = None
    ) -> None:
        """Log an action that the application chose itself.

        Args:
            episode_id: a running episode.
            observation: the observation before the action.
            action: the action in the application's units.
            action_logp: the log-probability with which the action was chosen, 0.0 if it was certain; of a continuous
                action, the log-density in the application's units. Required if the policy's own actions have a
                log-probability.

        Raises:
            UnknownEpisode: the episode is not running.
            DataError: values do not fit their spaces, or `action_logp` is missing; nothing is logged.
        """
        where = f"episode {episode_id!r}: log_action"
        if action_logp is None and self.policy.has_logp(self.explore):
            raise DataError(
                f"{where} requires action_logp, the log-probability with which the application chose the action (0.0 "
                "if it was certain): it weights estimates from the log"
            )
        module_action = {
            leaf: self.policy.preprocessing.to_module(leaf, value[None])
            for leaf, value in self._application_schema.cast_action(action, {}, where).items()
        }
        decision = self._decide(episode_id, observation)
        logp = None
        if action_logp is not None:
            logp = self.policy.preprocessing.to_module_logp(np.array([action_logp], dtype=np.float32))
        self._log(episode_id, observation, module_action, decision, logp)

    def log_returns(
        self, episode_id: str, reward: SupportsFloat, info: Mapping[str, Any] | None = None
    ) -> None:
        """Log the reward of the last action. See `EpisodeWriter.log_returns`."""
        self.log.log_returns(episode_id, reward, info)
        with self._decision_lock:
            self._rewards[episode_id] = (self._rewards.get(episode_id) or 0.0) + float(reward)

    def end_episode(
        self, episode_id: str, observation: Any, *, terminated: bool = True, truncated: bool = False
    ) -> None:
        """End an episode. See `EpisodeWriter.end_episode`."""
        self.log.end_episode(episode_id, observation, terminated=terminated, truncated=truncated)
        with self._decision_lock:
            self._acting_states.pop(episode_id, None)
            self._rewards.pop(episode_id, None)

    def close(self) -> None:
        """Close the log."""
        self.log.close()

    def __enter__(self) -> PolicyServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decide(self, episode_id: str, observation: Any) -> Actions:
        """Return the policy's decision.

        The episode's frame stack and recurrent state advance, and its reward since the last action is used up, even if
        the caller does not use the decision.
        """
        self.log.check_observation(episode_id, observation)
        with self._decision_lock, torch_threads(1):
            if episode_id not in self._acting_states:  # ended by another thread since the check
                raise unknown_episode_error(episode_id)
            reward, self._rewards[episode_id] = self._rewards[episode_id], 0.0
            return self.policy.decide(self._acting_states[episode_id], observation, self.explore, reward)

    def _log(
        self,
        episode_id: str,
        observation: Any,
        actions: Mapping[str, NDArray[Any]],
        decision: Actions,
        logp: NDArray[np.float32] | None,
    ) -> None:
        outputs: dict[str, Any] = {}
        if decision.dist_inputs is not None:
            outputs[Columns.ACTION_DIST_INPUTS] = decision.dist_inputs[0]
        if logp is not None:
            outputs[Columns.ACTION_LOGP] = logp[0]
        action_leaves = {leaf: rows[0] for leaf, rows in actions.items()}
        action = unflatten(action_leaves, Columns.ACTIONS, space_struct(self.policy.action_space))
        self.log.log_action(episode_id, observation, action, **outputs)
