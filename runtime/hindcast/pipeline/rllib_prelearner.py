"""Pre-learners in RLlib's form: what they make of a batch of rows, once, before training."""

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
from hindcast.pipeline.module_batches import module_columns, rows_to_episodes_of_one_step
from hindcast.pipeline.training_config import TrainingConfig
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
"""RLlib's: from a column to its name in the data."""
_MAPPED: Final = "_map_to_episodes"
_OF_BATCHES: Final = "_map_sample_batch_to_episode"
_made: dict[bytes, Any] = {}
"""Pre-learners by class and what they were made with: they are made once in a process."""


def has_rllib_mapper(kind: type) -> bool:
    """Whether a pre-learner's `_map_to_episodes` is in RLlib's form, static or not: it takes a `batch`."""
    return _takes_batch(kind, _MAPPED)


def has_rllib_call(kind: type) -> bool:
    """Whether its `__call__` is in RLlib's form: it takes a `batch`, and returns that of a module."""
    return _takes_batch(kind, "__call__")


def is_in_rllib_form(kind: type) -> bool:
    """Whether it makes episodes, or batches, of rows."""
    return has_rllib_mapper(kind) or has_rllib_call(kind) or _takes_batch(kind, _OF_BATCHES)


def mapper_name(kind: type, config: TrainingConfig) -> str:
    """The method of a class in RLlib's form that gets rows."""
    if has_rllib_call(kind):
        return "__call__"
    of_batches = _takes_batch(kind, _OF_BATCHES)
    if of_batches and (config.get("input_read_sample_batches") or not has_rllib_mapper(kind)):
        return _OF_BATCHES
    return _MAPPED


def prelearn_rows(
    kind: type, rows: Rows, kwargs: Mapping[str, Any], training: Mapping[str, Any], where: str
) -> Any:
    """What a pre-learner in RLlib's form makes of rows.

    Args:
        kind: its class.
        rows: column -> `[rows, ...]`.
        kwargs: `spec.pipeline.preLearnerKwargs`.
        training: see `TrainingConfig`.
        where: file and batch; ids of rows follow from it.

    Returns:
        Episodes, or a block of one for each row of a module's batch.
    """
    config = TrainingConfig(training)
    if isinstance(inspect.getattr_static(kind, _MAPPED), staticmethod) and not has_rllib_call(kind):
        return call_mapper(getattr(kind, _MAPPED), rows, config, **kwargs)
    learner = _instance(kind, config, kwargs, training)
    if has_rllib_call(kind):
        made = learner(dict(rows))
        if isinstance(made, Mapping) and "episodes" in made:
            return made
        return rows_to_episodes_of_one_step(
            module_columns(made), hashlib.sha256(where.encode()).hexdigest()[:12]
        )
    own = mapper_name(kind, config)
    if own == _OF_BATCHES and not config.get("input_read_sample_batches"):
        raise Misuse(
            f"is called for SampleBatch data alone: override {_MAPPED}, or give input_read_sample_batches=True."
        )
    return call_mapper(getattr(learner, own), rows, config, **kwargs)


def call_mapper(function: Callable[..., Any], rows: Rows, config: Any, **kwargs: Any) -> Any:
    """What `_map_to_episodes` or `_map_sample_batch_to_episode` makes of rows, given RLlib's arguments by name."""
    return _call(
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
    """Rows of timesteps as episodes: those of one id are one, in the order of `t`, or in stored order.

    Args:
        rows: column -> `[rows, ...]`: `obs`, `actions`, `rewards`, `new_obs`, `terminateds` …
        schema: from these names to those in the rows; of several, which make one vector, to a list.
    """
    names = {**SCHEMA, **(schema or {})}
    known = {own: _column(rows, name) for own, name in names.items() if rows.keys() >= _parts(name)}
    taken = set[str]().union(*map(_parts, names.values()))
    count = len(known[Columns.OBS])
    ids = known.get(Columns.EPS_ID)
    by_id: dict[str, list[int]] = {}
    for row in range(count):
        by_id.setdefault(uuid.uuid4().hex if ids is None else str(ids[row]), []).append(row)
    others = [name for name in rows if name not in taken and name not in ("dones", "agent_index", "type")]
    ends: Any = known.get(Columns.TERMINATEDS, rows.get("dones", np.zeros(count, np.bool_)))
    cut: Any = known.get(Columns.TRUNCATEDS, np.zeros(count, np.bool_))
    episodes = []
    for eps_id, own in by_id.items():
        if Columns.T in known:
            own.sort(key=lambda row: int(known[Columns.T][row]))
        after = known[Columns.NEXT_OBS if Columns.NEXT_OBS in known else Columns.OBS][own[-1]]
        episodes.append(
            SingleAgentEpisode(
                eps_id,
                observations=[*(known[Columns.OBS][row] for row in own), after],
                actions=[known[Columns.ACTIONS][row] for row in own],
                rewards=[float(known[Columns.REWARDS][row]) for row in own],
                terminated=bool(ends[own[-1]]),
                truncated=bool(cut[own[-1]]),
                extra_model_outputs={name: [rows[name][row] for row in own] for name in others},
                len_lookback_buffer=0,
            )
        )
    return episodes


def _column(rows: Rows, name: str | Sequence[str]) -> Any:
    return (
        _unpacked(rows[name]) if isinstance(name, str) else np.stack([rows[part] for part in name], axis=-1)
    )


def _parts(name: str | Sequence[str]) -> set[str]:
    return {name} if isinstance(name, str) else {*name}


def sample_batches_to_episodes(rows: Rows) -> list[SingleAgentEpisode]:
    """Rows that each hold a fragment of an episode (SampleBatch) as episodes."""
    flat: dict[str, list[Any]] = {}
    names = [name for name in rows if name not in ("type", "agent_index", "unroll_id")]
    for row in range(len(rows[Columns.OBS])):
        for name in names:
            flat.setdefault(name, []).extend(_unpacked([rows[name][row]])[0])
    return rows_to_episodes(flat)


def items_to_episodes(rows: Rows) -> list[SingleAgentEpisode]:
    """Rows of complete episodes as RLlib's recorder writes them (`item`)."""
    if Columns.OBS in rows:
        return rows_to_episodes(rows)
    states = read_states([memoryview(cell) for cell in rows["item"]])
    return block_to_episodes(decode_states(states, column_names(states), {}))


def _instance(
    kind: type, config: TrainingConfig, kwargs: Mapping[str, Any], training: Mapping[str, Any]
) -> Any:
    key = orjson.dumps(
        [id(kind), dict(kwargs), dict(training)], option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS
    )
    if key not in _made:
        given: dict[str, Any] = {
            "config": config,
            "learner": None,
            "locality_hints": None,
            "spaces": (config.observation_space, config.action_space),
            "module_state": None,
        }
        if "module_spec" in inspect.signature(kind).parameters:
            given["module_spec"] = config.rl_module_spec
        _made[key] = _call(kind, **given, **kwargs)
    return _made[key]


def _call(function: Callable[..., Any], **given: Any) -> Any:
    """With those arguments that it takes by name; all where it takes any."""
    taken = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return function(**given)
    return function(**{name: value for name, value in given.items() if name in taken})


def _takes_batch(kind: type, method: str) -> bool:
    return "batch" in inspect.signature(getattr(kind, method)).parameters


def _unpacked(cells: Any) -> Any:
    """Cells, those unpacked that RLlib packed."""
    if len(cells) and isinstance(cells[0], str) and cells[0].startswith(PREFIX):
        return unpack_cells(cells)
    return cells
