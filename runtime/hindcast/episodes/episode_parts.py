"""Cutting, slicing and concatenating episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from hindcast.episodes import nested
from hindcast.episodes.episode_data import EpisodeData
from hindcast.episodes.lookback_buffer import InfiniteLookbackBuffer

E = TypeVar("E", bound=EpisodeData)


def cut(episode: E, lookback: int) -> E:
    """See `SingleAgentEpisode.cut`."""
    _require_open(episode)
    _require_lookback(lookback)
    end = episode.rewards.len_incl_lookback()
    return _make_section(episode, range(end, end), lookback)


def slice_steps(episode: E, steps: slice, lookback: int | None) -> E:
    """See `SingleAgentEpisode.slice`."""
    len_lookback = episode.rewards.lookback if lookback is None else lookback
    _require_lookback(len_lookback)
    num_steps = episode.rewards.len_incl_lookback()
    positions = episode.rewards.slice_positions(steps)
    if positions.step < 0:
        raise ValueError(
            f"a slice of episode {episode.id_} has the step {positions.step}: it must be positive"
        )
    start = min(max(positions.start, 0), num_steps)
    indices = range(start, max(start, min(positions.stop, num_steps)), positions.step)
    # A slice also has the observation after its last step, which follows it by `step`.
    stop = start + len(indices) * positions.step
    if stop > num_steps:
        raise ValueError(
            f"a slice of episode {episode.id_} with the step {positions.step} goes beyond its end"
        )
    section = _make_section(
        episode, range(start, stop, positions.step), len_lookback if positions.step == 1 else 0
    )
    if stop == num_steps:
        section.is_terminated, section.is_truncated = episode.is_terminated, episode.is_truncated
    return section


def concat(episode: EpisodeData, other: EpisodeData) -> None:
    """See `SingleAgentEpisode.concat_episode`."""
    _require_continuation(episode, other)
    pairs = [(episode.observations, other.observations), (episode.infos, other.infos)]
    if len(other):
        episode._prepare_output_buffers(
            other.extra_model_outputs, f"the fragment from timestep {other.t_started}"
        )
        pairs += [(episode.actions, other.actions), (episode.rewards, other.rewards)]
        pairs += [
            (buffer, other.extra_model_outputs[key]) for key, buffer in episode.extra_model_outputs.items()
        ]
    # the fragment begins with the episode's last observation and info
    episode.observations.pop()
    episode.infos.pop()
    for buffer, other_buffer in pairs:
        buffer.concat(other_buffer)
    episode.t = other.t
    episode.is_terminated, episode.is_truncated = other.is_terminated, other.is_truncated
    episode._last_step_time = other._last_step_time or episode._last_step_time
    episode.custom_data.update(other.custom_data)


def _make_section(episode: E, positions: range, lookback: int) -> E:
    """Return the steps at these positions (lookback included) as an episode, with at most `lookback` steps before."""
    lookback = min(lookback, positions.start)
    start, stop, step = positions.start - lookback, positions.stop, positions.step

    def section(buffer: InfiniteLookbackBuffer, buffer_stop: int) -> InfiniteLookbackBuffer:
        return buffer.section(start, buffer_stop, step, lookback)

    outputs = {key: section(buffer, stop) for key, buffer in episode.extra_model_outputs.items()}
    fragment = type(episode)(
        episode.id_,
        observations=section(episode.observations, stop + 1),
        infos=_make_infos_section(episode._infos, slice(start, stop + 1, step), lookback),
        actions=section(episode.actions, stop),
        rewards=section(episode.rewards, stop),
        extra_model_outputs=outputs,
        observation_space=episode.observation_space,
        action_space=episode.action_space,
        t_started=episode.t_started + positions.start - episode.rewards.lookback,
        agent_id=episode.agent_id,
        module_id=episode.module_id,
        multi_agent_episode_id=episode.multi_agent_episode_id,
    )
    fragment.custom_data.update(episode.custom_data)
    return fragment


def _make_infos_section(
    infos: InfiniteLookbackBuffer | Callable[[], Sequence[dict[str, Any]]], items: slice, lookback: int
) -> InfiniteLookbackBuffer | Callable[[], Sequence[dict[str, Any]]]:
    if isinstance(infos, InfiniteLookbackBuffer):
        return infos.section(items.start, items.stop, items.step, lookback)
    # a partial can be pickled, unlike a lambda
    return partial(_slice_infos, infos, items)


def _slice_infos(infos: Callable[[], Sequence[dict[str, Any]]], items: slice) -> Sequence[dict[str, Any]]:
    return infos()[items]


def _require_open(episode: EpisodeData) -> None:
    if episode.is_done:
        raise ValueError(f"episode {episode.id_} is done: nothing can follow it")


def _require_lookback(lookback: int) -> None:
    if lookback < 0:
        raise ValueError(f"len_lookback_buffer is {lookback}: it must be 0 or more steps")


def _require_continuation(episode: EpisodeData, other: EpisodeData) -> None:
    if other.id_ != episode.id_:
        raise ValueError(f"a fragment of episode {other.id_} cannot continue episode {episode.id_}")
    _require_open(episode)
    if other.t_started != episode.t:
        raise ValueError(
            f"episode {episode.id_} ends at timestep {episode.t}, but the next fragment starts at {other.t_started}"
        )
    if not (episode.is_reset and other.is_reset):
        raise ValueError(
            f"a fragment of episode {episode.id_} has no observation: both fragments must have their first observation"
        )
    if not nested.equal(episode.get_observations(-1), other.get_observations(0)):
        raise ValueError(
            f"the next fragment of episode {episode.id_} does not start with the previous fragment's last observation"
        )
