"""Pre-learners in RLlib's form, which turn batches of rows into episodes once, before training."""

from __future__ import annotations

import hashlib
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from hindcast.episodes.columns import Columns
from hindcast.episodes.convert import block_to_episodes
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.formats.columns.packed_cells import PREFIX, unpack_cells
from hindcast.formats.messagepack.decoding import column_names, decode_states, read_states
from hindcast.rllib.connectors.module_batches import module_columns, rows_to_episodes_of_one_step
from hindcast.rllib.training_config import TrainingConfig
from hindcast.user_code import Misuse

Rows = Mapping[str, Any]
SCHEMA: Final = {
    column: column
    for column in (
        Columns.EPS_ID,
        Columns.AGENT_ID,
        Columns.MODULE_ID,
        Columns.OBS,
        Columns.ACTIONS,
        Columns.REWARDS,
        Columns.INFOS,
        Columns.NEXT_OBS,
        Columns.TERMINATEDS,
        Columns.TRUNCATEDS,
        Columns.T,
    )
}
"""RLlib's default schema: column -> its name in the data."""
_ROW_MAPPER: Final = "_map_to_episodes"
_SAMPLE_BATCH_MAPPER: Final = "_map_sample_batch_to_episode"
_instances: dict[bytes, Any] = {}
"""Pre-learners constructed in this process, by class and arguments, as JSON."""


def has_rllib_mapper(cls: type) -> bool:
    """Return True if `_map_to_episodes`, static or not, is in RLlib's form, with a parameter `batch`."""
    return _has_batch_parameter(cls, _ROW_MAPPER)


def has_rllib_call(cls: type) -> bool:
    """Return True if `__call__` is in RLlib's form: it maps a `batch` of rows to a module's batch."""
    return _has_batch_parameter(cls, "__call__")


def is_in_rllib_form(cls: type) -> bool:
    """Return True if any method of a pre-learner is in RLlib's form: it maps rows, and no blocks."""
    return has_rllib_mapper(cls) or has_rllib_call(cls) or _has_batch_parameter(cls, _SAMPLE_BATCH_MAPPER)


def mapper_name(cls: type, config: TrainingConfig) -> str:
    """Return the name of the method that a class in RLlib's form maps rows with."""
    if has_rllib_call(cls):
        return "__call__"
    maps_sample_batches = _has_batch_parameter(cls, _SAMPLE_BATCH_MAPPER)
    if maps_sample_batches and (config.get("input_read_sample_batches") or not has_rllib_mapper(cls)):
        return _SAMPLE_BATCH_MAPPER
    return _ROW_MAPPER


def prelearn_rows(
    cls: type, rows: Rows, kwargs: Mapping[str, Any], training: Mapping[str, Any], location: str
) -> Any:
    """Run a pre-learner in RLlib's form on rows.

    Args:
        cls: class of the pre-learner, in RLlib's form.
        rows: column -> `[rows, ...]`.
        kwargs: `spec.pipeline.preLearnerKwargs`.
        training: the argument of `TrainingConfig`.
        location: file and batch of the rows; the ids of episodes of one row are derived from it.

    Returns:
        What the pre-learner returned: episodes, in any form that `_map_to_episodes` may return. If it returned a
        module's batch, a block with one episode per row.
    """
    config = TrainingConfig(training)
    if isinstance(inspect.getattr_static(cls, _ROW_MAPPER), staticmethod) and not has_rllib_call(cls):
        return call_mapper(getattr(cls, _ROW_MAPPER), rows, config, **kwargs)
    prelearner = _get_instance(cls, config, kwargs, training)
    if has_rllib_call(cls):
        output = prelearner(dict(rows))
        if isinstance(output, Mapping) and "episodes" in output:
            return output
        return rows_to_episodes_of_one_step(
            module_columns(output), hashlib.sha256(location.encode()).hexdigest()[:12]
        )
    mapper = mapper_name(cls, config)
    if mapper == _SAMPLE_BATCH_MAPPER and not config.get("input_read_sample_batches"):
        raise Misuse(
            f"is only called for SampleBatch data: override {_ROW_MAPPER}, or set input_read_sample_batches=True."
        )
    return call_mapper(getattr(prelearner, mapper), rows, config, **kwargs)


def call_mapper(function: Callable[..., Any], rows: Rows, config: Any, **kwargs: Any) -> Any:
    """Call `_map_to_episodes` or `_map_sample_batch_to_episode` with RLlib's arguments, by name."""
    return _call_with_accepted(
        function,
        is_multi_agent=False,
        batch=dict(rows),
        schema={**SCHEMA, **(config.get("input_read_schema") or {})},
        to_numpy=True,
        input_compress_columns=config.get("input_compress_columns"),
        observation_space=config.observation_space,
        action_space=config.action_space,
        **kwargs,
    )


def rows_to_episodes(
    rows: Rows, schema: Mapping[str, str | Sequence[str]] | None = None
) -> list[SingleAgentEpisode]:
    """Group rows of timesteps by `eps_id` into episodes, in the order of `t`, else in stored order.

    Columns that are not in the schema become model outputs. Without `new_obs` the final observation repeats the last
    one; without `eps_id` each row is an episode.

    Args:
        rows: column -> `[rows, ...]`: `obs`, `actions`, `rewards`, `new_obs`, `terminateds` …
        schema: column -> its name in the rows, or a list of names, which are stacked to one vector.
    """
    names = {**SCHEMA, **(schema or {})}
    columns = {
        column: _read_column(rows, name)
        for column, name in names.items()
        if rows.keys() >= _source_names(name)
    }
    used_names = set[str]().union(*map(_source_names, names.values()))
    num_rows = len(columns[Columns.OBS])
    ids = columns.get(Columns.EPS_ID)
    rows_by_id: dict[str, list[int]] = {}
    for row in range(num_rows):
        rows_by_id.setdefault(uuid.uuid4().hex if ids is None else str(ids[row]), []).append(row)
    extra_names = [
        name for name in rows if name not in used_names and name not in ("dones", "agent_index", "type")
    ]
    # `dones` is the name of `terminateds` in data of RLlib's old versions.
    terminateds: Any = columns.get(Columns.TERMINATEDS, rows.get("dones", np.zeros(num_rows, np.bool_)))
    truncateds: Any = columns.get(Columns.TRUNCATEDS, np.zeros(num_rows, np.bool_))
    episodes = []
    for eps_id, indices in rows_by_id.items():
        if Columns.T in columns:
            indices.sort(key=lambda row: int(columns[Columns.T][row]))
        final_obs = columns[Columns.NEXT_OBS if Columns.NEXT_OBS in columns else Columns.OBS][indices[-1]]
        episodes.append(
            SingleAgentEpisode(
                eps_id,
                observations=[*(columns[Columns.OBS][row] for row in indices), final_obs],
                actions=[columns[Columns.ACTIONS][row] for row in indices],
                rewards=[float(columns[Columns.REWARDS][row]) for row in indices],
                terminated=bool(terminateds[indices[-1]]),
                truncated=bool(truncateds[indices[-1]]),
                extra_model_outputs={name: [rows[name][row] for row in indices] for name in extra_names},
                len_lookback_buffer=0,
            )
        )
    return episodes


def _read_column(rows: Rows, name: str | Sequence[str]) -> Any:
    """Return a column, unpacked; for a list of names, one column of vectors."""
    return (
        _unpack(rows[name]) if isinstance(name, str) else np.stack([rows[source] for source in name], axis=-1)
    )


def _source_names(name: str | Sequence[str]) -> set[str]:
    return {name} if isinstance(name, str) else {*name}


def sample_batches_to_episodes(rows: Rows) -> list[SingleAgentEpisode]:
    """Convert SampleBatch rows, each of which holds a fragment of an episode, to episodes."""
    columns: dict[str, list[Any]] = {}
    names = [name for name in rows if name not in ("type", "agent_index", "unroll_id")]
    for row in range(len(rows[Columns.OBS])):
        for name in names:
            columns.setdefault(name, []).extend(_unpack([rows[name][row]])[0])
    return rows_to_episodes(columns)


def items_to_episodes(rows: Rows) -> list[SingleAgentEpisode]:
    """Convert complete episodes, as RLlib's recorder packs them in `item`, or rows of timesteps, to episodes."""
    if Columns.OBS in rows:
        return rows_to_episodes(rows)
    states = read_states([memoryview(cell) for cell in rows["item"]])
    return block_to_episodes(decode_states(states, column_names(states), {}))


def _get_instance(
    cls: type, config: TrainingConfig, kwargs: Mapping[str, Any], training: Mapping[str, Any]
) -> Any:
    """Return the pre-learner of a class and its arguments, which is constructed once per process."""
    key = orjson.dumps(
        [id(cls), dict(kwargs), dict(training)], option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS
    )
    if key not in _instances:
        arguments: dict[str, Any] = {
            "config": config,
            "learner": None,
            "locality_hints": None,
            "spaces": (config.observation_space, config.action_space),
            "module_state": None,
        }
        if "module_spec" in inspect.signature(cls).parameters:
            arguments["module_spec"] = config.rl_module_spec
        _instances[key] = _call_with_accepted(cls, **arguments, **kwargs)
    return _instances[key]


def _call_with_accepted(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function with the arguments that it accepts by name, or with all if it has `**kwargs`."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return function(**arguments)
    return function(**{name: value for name, value in arguments.items() if name in parameters})


def _has_batch_parameter(cls: type, method: str) -> bool:
    return "batch" in inspect.signature(getattr(cls, method)).parameters


def _unpack(cells: Any) -> Any:
    """Unpack a column of cells that RLlib packed; return any other column unchanged."""
    if len(cells) and isinstance(cells[0], str) and cells[0].startswith(PREFIX):
        return unpack_cells(cells)
    return cells
