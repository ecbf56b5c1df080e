"""Conversion between episodes (`SingleAgentEpisode`) and their columnar form (`Block`).

Nested observations and actions become one column per leaf (`obs/camera`, `actions/0`), every extra model
output becomes a separate column (with leaves such as `state_out/h`), and infos become JSON text, unless all are
empty. Ids of agent, module and multi-agent episode, times and custom data become the block's `details`. The lookback is
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import orjson
from gymnasium import spaces
from numpy.typing import NDArray

from hindcast.episodes import batched, details, nested
from hindcast.episodes.block import Block
from hindcast.episodes.columns import EMPTY_INFO, SEPARATOR, Columns, root
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.spaces import space_struct

_STANDARD_COLUMNS: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.INFOS)


def info_to_json(info: Mapping[str, Any]) -> str:
    """Encode a dict as JSON text: arrays as lists, NaN and infinities as null, other objects by their `str`."""
    if not info:
        return EMPTY_INFO
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(info, default=str, option=options).decode()


def info_from_json(text: str) -> dict[str, Any]:
    """Decode the JSON text of an info: the inverse of `info_to_json` for plain values; "" is an empty dict."""
    return dict(orjson.loads(text)) if text else {}


def episodes_to_block(episodes: Sequence[SingleAgentEpisode]) -> Block:
    """Convert episodes to a block with their steps end to end.

    Raises:
        ValueError: there are no episodes, or none of them has a step; an episode has no observation; episodes differ
            in columns or shapes; an extra output has the name of a column or a leaf; values are neither numbers nor
            text; custom data cannot be encoded (see `details`). The message names the episode.
    """
    if not episodes:
        raise ValueError("a block requires at least one episode")
    columns_by_episode = [_flatten_columns(episode) for episode in episodes]
    names = _find_common_names(episodes, columns_by_episode)
    columns = {
        name: _concat_column(
            name, [episode_columns[name] for episode_columns in columns_by_episode if name in episode_columns]
        )
        for name in names
    }
    if any(episode.has_infos for episode in episodes):
        texts = [info_to_json(info) for episode in episodes for info in episode.get_infos()]
        columns[Columns.INFOS] = np.array(texts, dtype=object)
    return Block(
        columns=columns,
        length=np.array([len(episode) for episode in episodes], dtype=np.int64),
        eps_id=np.array([episode.id_ for episode in episodes], dtype=object),
        t_started=np.array([episode.t_started for episode in episodes], dtype=np.int64),
        terminated=np.array([episode.is_terminated for episode in episodes], dtype=np.bool_),
        truncated=np.array([episode.is_truncated for episode in episodes], dtype=np.bool_),
        details=_encode_details(episodes),
    )


def block_to_episodes(
    block: Block,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
) -> list[SingleAgentEpisode]:
    """Convert a block to episodes in NumPy mode, without lookback; their arrays are views of the block's columns.

    Writing to an episode (`set_actions`, …) copies the column first. Infos are decoded from their JSON text on
    first use.

    Args:
        block: the episodes.
        observation_space: determines the nesting of the observations; if None, see `nested.unflatten`.
        action_space: determines the nesting of the actions; if None, see `nested.unflatten`.

    Raises:
        ValueError: a column is missing.
    """
    structs = {Columns.OBS: space_struct(observation_space), Columns.ACTIONS: space_struct(action_space)}
    roots = dict.fromkeys([Columns.OBS, Columns.ACTIONS, Columns.REWARDS, *map(root, block.columns)])
    roots.pop(Columns.INFOS, None)  # decoded on first use
    nested_columns = {name: nested.unflatten(block.columns, name, structs.get(name)) for name in roots}
    output_names = [name for name in nested_columns if name not in _STANDARD_COLUMNS]
    episodes = []
    for i in range(block.num_episodes):
        values = {
            name: batched.take(column, block.rows_of(name, i)) for name, column in nested_columns.items()
        }
        episode = SingleAgentEpisode(
            str(block.eps_id[i]),
            observations=values[Columns.OBS],
            observation_space=observation_space,
            actions=values[Columns.ACTIONS],
            action_space=action_space,
            rewards=values[Columns.REWARDS],
            infos=_make_info_reader(block, i),
            extra_model_outputs={name: values[name] for name in output_names},
            terminated=bool(block.terminated[i]),
            truncated=bool(block.truncated[i]),
            t_started=int(block.t_started[i]),
            len_lookback_buffer=0,
        )
        if block.details is not None:
            fields = details.from_text(block.details[i])
            episode.custom_data.update(fields.pop("custom_data", {}))
            for key, name in details.FIELDS.items():
                if name in fields:
                    setattr(episode, key, fields[name])
        episodes.append(episode)
    return episodes


def _encode_details(episodes: Sequence[SingleAgentEpisode]) -> NDArray[np.object_] | None:
    texts = [_encode_episode_details(episode) for episode in episodes]
    return np.array(texts, dtype=object) if any(texts) else None


def _encode_episode_details(episode: SingleAgentEpisode) -> str:
    try:
        return details.to_text(**{name: getattr(episode, key) for key, name in details.FIELDS.items()})
    except ValueError as error:
        raise ValueError(f"the custom data or ids of episode {episode.id_} hold {error}") from error


def _flatten_columns(episode: SingleAgentEpisode) -> dict[str, NDArray[Any]]:
    if not episode.is_reset:
        raise ValueError(f"episode {episode.id_} has no observation, so it cannot be part of a block")
    values = {Columns.OBS: episode.get_observations()}
    if len(episode):
        values[Columns.ACTIONS], values[Columns.REWARDS] = episode.get_actions(), episode.get_rewards()
        for name, buffer in episode.extra_model_outputs.items():
            # an output of this name would be read back as another column, or as a leaf of another column
            if name in _STANDARD_COLUMNS or SEPARATOR in name:
                raise ValueError(f"episode {episode.id_} has an extra model output named {name!r}: rename it")
            values[name] = buffer.get()
    columns: dict[str, NDArray[Any]] = {}
    for name, value in values.items():
        try:
            columns |= nested.flatten(value if batched.is_batch(value) else batched.stack(value), name)
        except ValueError as error:
            raise ValueError(f"{name} of episode {episode.id_}: {error}") from error
    for name, column in columns.items():
        if column.dtype == object and not all(isinstance(item, str) for item in column.flat):
            raise ValueError(
                f"{name} of episode {episode.id_} holds values that are neither numbers nor text"
            )
    return columns


def _find_common_names(
    episodes: Sequence[SingleAgentEpisode], columns_by_episode: Sequence[Mapping[str, NDArray[Any]]]
) -> list[str]:
    """Return the columns that all episodes have in common; episodes without steps have only their observation."""
    names = next(
        (
            list(episode_columns)
            for episode, episode_columns in zip(episodes, columns_by_episode, strict=True)
            if len(episode)
        ),
        None,
    )
    if names is None:
        raise ValueError(f"none of the {len(episodes)} episodes has a step")
    for episode, episode_columns in zip(episodes, columns_by_episode, strict=True):
        expected = {name for name in names if len(episode) or root(name) == Columns.OBS}
        if episode_columns.keys() != expected:
            raise ValueError(
                f"episodes differ in columns: {sorted(episode_columns)} in episode {episode.id_}, "
                f"{sorted(expected)} in others; all must have the same columns"
            )
    return names


def _concat_column(name: str, columns: list[NDArray[Any]]) -> NDArray[Any]:
    shapes = {column.shape[1:] for column in columns}
    if len(shapes) > 1:
        raise ValueError(f"episodes differ in the shape of {name}: {sorted(shapes)}")
    return np.concatenate(columns)


def _make_info_reader(block: Block, episode: int) -> partial[list[dict[str, Any]]] | None:
    if Columns.INFOS not in block.columns:
        return None
    # a partial can be pickled, unlike a lambda
    return partial(_read_infos, block.columns[Columns.INFOS][block.rows_of(Columns.INFOS, episode)])


def _read_infos(texts: NDArray[np.object_]) -> list[dict[str, Any]]:
    return [info_from_json(text) for text in texts]
