"""An episode as a map of plain values and arrays: the 18 keys that RLlib's episode files hold.

`msgpack.packb(state, default=msgpack_numpy.encode)` of it is one row of such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from hindcast.episodes.lookback_buffer import InfiniteLookbackBuffer
from hindcast.episodes.spaces import space_from_state, space_to_state

if TYPE_CHECKING:
    from hindcast.episodes.episode import SingleAgentEpisode

_REQUIRED = (
    "id_",
    "agent_id",
    "module_id",
    "multi_agent_episode_id",
    "observations",
    "actions",
    "rewards",
    "infos",
    "extra_model_outputs",
    "is_terminated",
    "is_truncated",
    "t_started",
    "t",
    "_observation_space",
    "_action_space",
    "_start_time",
    "_last_step_time",
)

E = TypeVar("E", bound="SingleAgentEpisode")


def state_of(episode: SingleAgentEpisode) -> dict[str, Any]:
    """See `SingleAgentEpisode.get_state`."""
    outputs = {key: buffer.get_state() for key, buffer in episode.extra_model_outputs.items()}
    spaces = (episode.observation_space, episode.action_space)
    observation_space, action_space = (None if space is None else space_to_state(space) for space in spaces)
    return {
        "id_": episode.id_,
        "agent_id": episode.agent_id,
        "module_id": episode.module_id,
        "multi_agent_episode_id": episode.multi_agent_episode_id,
        "observations": episode.observations.get_state(),
        "actions": episode.actions.get_state(),
        "rewards": episode.rewards.get_state(),
        "infos": episode.infos.get_state(),
        "extra_model_outputs": outputs or None,
        "is_terminated": episode.is_terminated,
        "is_truncated": episode.is_truncated,
        "t_started": episode.t_started,
        "t": episode.t,
        "_observation_space": observation_space,
        "_action_space": action_space,
        "_start_time": episode._start_time,
        "_last_step_time": episode._last_step_time,
        "custom_data": dict(episode.custom_data),
    }


def episode_from_state(cls: type[E], state: Mapping[str, Any]) -> E:
    """See `SingleAgentEpisode.from_state`."""
    missing = [key for key in _REQUIRED if key not in state]
    if missing:
        raise ValueError(f"the state of an episode lacks {', '.join(missing)}; it has {', '.join(state)}")
    buffer, outputs = InfiniteLookbackBuffer.from_state, state["extra_model_outputs"] or {}
    episode = cls(
        state["id_"],
        observations=buffer(state["observations"]),
        actions=buffer(state["actions"]),
        rewards=buffer(state["rewards"]),
        infos=buffer(state["infos"]),
        extra_model_outputs={key: buffer(output) for key, output in outputs.items()},
        observation_space=space_from_state(state["_observation_space"]),
        action_space=space_from_state(state["_action_space"]),
        terminated=state["is_terminated"],
        truncated=state["is_truncated"],
        t_started=state["t_started"],
        agent_id=state["agent_id"],
        module_id=state["module_id"],
        multi_agent_episode_id=state["multi_agent_episode_id"],
    )
    if episode.t != state["t"]:
        raise ValueError(
            f"the state of episode {episode.id_} says that it ends at timestep {state['t']}, "
            f"but its steps end at {episode.t}"
        )
    episode._start_time, episode._last_step_time = state["_start_time"], state["_last_step_time"]
    episode.custom_data.update(state.get("custom_data") or {})
    return episode
