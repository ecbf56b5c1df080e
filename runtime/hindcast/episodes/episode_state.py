"""State of an episode as a map of plain values and arrays, with the 18 keys of RLlib's episode files.

`msgpack.packb(state, default=msgpack_numpy.encode)` returns one row of such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from hindcast.episodes.episode_data import EpisodeData
from hindcast.episodes.lookback_buffer import InfiniteLookbackBuffer
from hindcast.episodes.spaces import space_from_state, space_to_state

_REQUIRED_KEYS: Final = (
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
_COLUMN_KEYS: Final = ("observations", "actions", "rewards", "infos")
_SPACE_KEYS: Final = ("_observation_space", "_action_space")

E = TypeVar("E", bound=EpisodeData)


def episode_to_state(episode: EpisodeData) -> dict[str, Any]:
    """See `SingleAgentEpisode.get_state`."""
    state = {key: getattr(episode, key) for key in _REQUIRED_KEYS}
    for key in _COLUMN_KEYS:
        state[key] = state[key].get_state()
    for key in _SPACE_KEYS:
        state[key] = None if state[key] is None else space_to_state(state[key])
    outputs = {name: buffer.get_state() for name, buffer in episode.extra_model_outputs.items()}
    # RLlib writes None if there are no outputs
    return {**state, "extra_model_outputs": outputs or None, "custom_data": dict(episode.custom_data)}


def episode_from_state(cls: type[E], state: Mapping[str, Any]) -> E:
    """See `SingleAgentEpisode.from_state`."""
    missing_keys = [key for key in _REQUIRED_KEYS if key not in state]
    if missing_keys:
        raise ValueError(
            f"the state of an episode lacks {', '.join(missing_keys)}; it has {', '.join(state)}"
        )
    make_buffer = InfiniteLookbackBuffer.from_state
    outputs = state["extra_model_outputs"] or {}
    plain_fields: dict[str, Any] = {
        key: state[key] for key in ("t_started", "agent_id", "module_id", "multi_agent_episode_id")
    }
    columns: dict[str, Any] = {key: make_buffer(state[key]) for key in _COLUMN_KEYS}
    episode = cls(
        state["id_"],
        **columns,
        extra_model_outputs={key: make_buffer(output) for key, output in outputs.items()},
        observation_space=space_from_state(state["_observation_space"]),
        action_space=space_from_state(state["_action_space"]),
        terminated=state["is_terminated"],
        truncated=state["is_truncated"],
        **plain_fields,
    )
    if episode.t != state["t"]:
        raise ValueError(
            f"the state of episode {episode.id_} ends at timestep {state['t']}, but its steps end at "
            f"{episode.t}"
        )
    episode._start_time, episode._last_step_time = state["_start_time"], state["_last_step_time"]
    episode.custom_data.update(state.get("custom_data") or {})
    return episode
