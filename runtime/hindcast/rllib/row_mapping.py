"""Pre-learners in RLlib's form, which turn batches of rows into episodes once, before training."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

import numpy as np
import orjson

from hindcast.episodes import batched, details, nested
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, root
from hindcast.episodes.convert import block_to_episodes, info_from_json
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.episodes.spaces import space_struct
from hindcast.formats.columns.packed_cells import PREFIX, unpack_cells
from hindcast.formats.columns.steps import read_agent_ids
from hindcast.formats.media.mapping import object_array
from hindcast.formats.messagepack.decoding import column_names, decode_states, read_states
from hindcast.formats.messagepack.encoding import StateEncoder
from hindcast.formats.spec import DataSpec
from hindcast.pipeline.prelearner import unpack_episodes
from hindcast.pipeline.rng import derive_seed, seeded_generators
from hindcast.rllib.connectors.module_batches import module_columns, rows_to_episodes_of_one_step
from hindcast.rllib.training_config import TrainingConfig
from hindcast.user_code import Misuse, is_user_code

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
_LOCATION_IN_FILE: Final = re.compile(r", (?:unit|rows?|lines?|record) .*$")
"""The part of a location in messages that follows the path, which may have commas too."""
_SAMPLING_METHODS: Final = ("_validate_episodes", "_postprocess_and_sample")
"""Methods of RLlib's pre-learner around its replay buffer."""
_PARAMETERS: Final = (
    "is_multi_agent",
    "batch",
    "schema",
    "to_numpy",
    "input_compress_columns",
    "observation_space",
    "action_space",
)
"""Parameters of the row mappers in RLlib 2.40, in order; in RLlib 2.60 only `batch` and `to_numpy` are positional."""
_ITEM: Final = "item"
_row_ids: ContextVar[Iterator[str] | None] = ContextVar("row_ids", default=None)
"""Ids for rows without `eps_id` while a pre-learner maps rows of a file; None outside of it."""
_instances: dict[bytes, tuple[TrainingConfig, Any]] = {}
"""Pre-learners constructed in this process and their configs, by class and arguments, as JSON."""


class EpisodeRows(dict[str, Any]):
    """Timesteps of complete episodes in the columns of RLlib's tabular data, in order: column -> `[rows, ...]`.

    The column `item`, the episodes' states as RLlib's recorder packs them, has a row for each episode. It is packed on
    first use and not among the keys.

    Args:
        block: the episodes.
        observation_space: determines the nesting of observations; None as in `nested.unflatten`.
        action_space: determines the nesting of actions.
    """

    def __init__(self, block: Block, observation_space: Any = None, action_space: Any = None) -> None:
        self._block = block
        self._spaces = (observation_space, action_space)
        structs = {Columns.OBS: space_struct(observation_space), Columns.ACTIONS: space_struct(action_space)}
        roots = dict.fromkeys([Columns.OBS, Columns.ACTIONS, Columns.REWARDS, *map(root, block.columns)])
        infos = roots.pop(Columns.INFOS, 0) is None
        super().__init__({Columns.EPS_ID: block.eps_id[block.episode_of_step]})
        for name in roots:
            column = nested.unflatten(block.columns, name, structs.get(name))
            if name == Columns.OBS:
                self[Columns.OBS] = _to_rows(batched.take(column, block.obs_row))
                self[Columns.NEXT_OBS] = _to_rows(batched.take(column, block.obs_row + 1))
            else:
                self[name] = _to_rows(batched.take(column, slice(None)))
        self[Columns.TERMINATEDS] = block.step_flags(block.terminated)
        self[Columns.TRUNCATEDS] = block.step_flags(block.truncated)
        self[Columns.T] = block.t
        if infos:
            texts = block.columns[Columns.INFOS][block.obs_row + 1]
            self[Columns.INFOS] = object_array([info_from_json(text) for text in texts])
        for name in (Columns.AGENT_ID, Columns.MODULE_ID):
            if block.details is not None and any(
                details.from_text(text).get(name) is not None for text in block.details
            ):
                self[name] = object_array(read_agent_ids(block, name).to_pylist())

    def __missing__(self, name: str) -> Any:
        if name != _ITEM:
            raise KeyError(name)
        observation_space, action_space = self._spaces
        spec = DataSpec.from_block(self._block)
        spec = replace(spec, observation_space=observation_space, action_space=action_space)
        return object_array(StateEncoder(spec).pack(self._block))


def _to_rows(column: Any) -> Any:
    """Return a copy of a batched value as an array, with an object per row if the value is composite."""
    return object_array(batched.unstack(column)) if nested.is_composite(column) else column.copy()


def has_rllib_mapper(cls: type) -> bool:
    """Return True if `_map_to_episodes`, static or not, is in RLlib's form, with a parameter `batch`."""
    return _maps_batches(cls, _ROW_MAPPER)


def has_rllib_call(cls: type) -> bool:
    """Return True if the class maps a batch of rows to a module's batch, in RLlib's form.

    Either it overrides `__call__` in this form, or it changes the pipeline of connectors that `__call__` runs.
    """
    call = cls.__call__
    parameters = inspect.signature(call).parameters
    # Hindcast's has the parameters self, unit and epoch.
    has_call = is_user_code(call) and ("batch" in parameters or len(parameters) == 2)
    return has_call or (has_rllib_init(cls) and _uses(cls, "_learner_connector"))


def has_rllib_init(cls: type) -> bool:
    """Return True if `__init__` is in RLlib's form, with a parameter `config`."""
    constructor: Any = cls.__init__  # type: ignore[misc]
    return is_user_code(constructor) and "config" in inspect.signature(cls).parameters


def has_rllib_sampling(cls: type) -> bool:
    """Return True if the class changes what RLlib's pre-learner draws from its replay buffer."""
    names = (*_SAMPLING_METHODS, "default_prelearner_buffer_class", "default_prelearner_buffer_kwargs")
    is_overridden = any(name in vars(base) for base in cls.__mro__ if _is_user_class(base) for name in names)
    return is_overridden or (has_rllib_init(cls) and _uses(cls, "episode_buffer"))


def _uses(cls: type, attribute: str) -> bool:
    """Return True if the code of a user's class names an attribute."""
    methods = [value for base in cls.__mro__ if _is_user_class(base) for value in vars(base).values()]
    codes = [getattr(getattr(method, "__func__", method), "__code__", None) for method in methods]
    return any(code is not None and attribute in code.co_names for code in codes)


def is_in_rllib_form(cls: type) -> bool:
    """Return True if any method of a pre-learner is in RLlib's form: it maps rows, and no blocks."""
    return (
        has_rllib_mapper(cls)
        or has_rllib_call(cls)
        or _maps_batches(cls, _SAMPLE_BATCH_MAPPER)
        or has_rllib_sampling(cls)
        or has_rllib_init(cls)
    )


def mapper_name(cls: type, config: TrainingConfig) -> str:
    """Return the name of the method that a class in RLlib's form maps rows with."""
    if has_rllib_call(cls):
        return "__call__"
    if has_rllib_mapper(cls) and not (
        config.get("input_read_sample_batches") and _maps_batches(cls, _SAMPLE_BATCH_MAPPER)
    ):
        return _ROW_MAPPER
    if _maps_batches(cls, _SAMPLE_BATCH_MAPPER):
        return _SAMPLE_BATCH_MAPPER
    return next((name for name in _SAMPLING_METHODS if is_user_code(getattr(cls, name))), "__init__")


def prelearn_rows(
    cls: type, rows: Rows, kwargs: Mapping[str, Any], training: Mapping[str, Any], location: str
) -> Any:
    """Run a pre-learner in RLlib's form on rows, with global generators and spaces seeded for the file and its rows.

    Args:
        cls: class of the pre-learner, in RLlib's form.
        rows: column -> `[rows, ...]`.
        kwargs: `spec.pipeline.preLearnerKwargs`.
        training: the argument of `TrainingConfig`.
        location: file and batch of the rows; ids of episodes without one are derived from it.

    Returns:
        What the pre-learner returned: episodes, in any form that `_map_to_episodes` may return. If it returned a
        module's batch, a block with one episode per row.
    """
    # Without the folder, since data may be moved; with the rows, since files of several folders may share a name.
    seed, name = int(training.get("seed") or 0), f"{location.rpartition('/')[2]} {_digest_rows(rows)}"
    with seeded_generators(seed, "pre-learner", name), _row_ids_of(location):
        config, prelearner = _get_instance(cls, kwargs, training, location)
        for index, space in enumerate((config.observation_space, config.action_space)):
            if space is not None:
                space.seed(derive_seed(seed, "space", index, name))
        if has_rllib_call(cls):
            output = prelearner(rows)
            if isinstance(output, Mapping) and "episodes" in output:
                return output
            return rows_to_episodes_of_one_step(module_columns(output), _digest_location(location))
        if mapper_name(cls, config) == _SAMPLE_BATCH_MAPPER and not config.get("input_read_sample_batches"):
            raise Misuse(
                f"is only called for SampleBatch data: override {_ROW_MAPPER}, or set input_read_sample_batches=True."
            )
        episodes = call_row_mapper(cls if prelearner is None else prelearner, rows, config, **kwargs)
        if prelearner is None or not prelearner.samples_from_buffer():
            return episodes
        items = list_episodes(prelearner._postprocess_and_sample(list_episodes(episodes)))
        return {"episodes": _with_unique_ids(items)}


@contextmanager
def _row_ids_of(location: str) -> Iterator[None]:
    """Number the rows of a location without ids, so that preparing the data again gives the same ids."""
    digest = _digest_location(location)
    token = _row_ids.set(f"{digest}-{row}" for row in itertools.count())
    try:
        yield
    finally:
        _row_ids.reset(token)


def _digest_location(location: str) -> str:
    return hashlib.sha256(location.encode()).hexdigest()[:12]


def _digest_rows(rows: Rows) -> str:
    """Return a digest of the rows: all bytes of numbers, the first and the last of other values."""
    digest = hashlib.sha256()
    for name in sorted(rows):
        values = np.asarray(rows[name])
        digest.update(f"{name} {values.shape} {values.dtype}".encode())
        is_object = values.dtype == object
        digest.update(repr([*values.flat[:1], *values.flat[-1:]]).encode() if is_object else values.tobytes())
    return digest.hexdigest()[:16]


def _make_row_id() -> str:
    """Return the id of the next row without one, which is random outside of `prelearn_rows`."""
    row_ids = _row_ids.get()
    return uuid.uuid4().hex if row_ids is None else next(row_ids)


def call_row_mapper(prelearner: Any, rows: Rows, config: TrainingConfig, **kwargs: Any) -> Any:
    """Call the row mapper for the kind of rows, with RLlib's arguments by name.

    SampleBatch rows go to `_map_sample_batch_to_episode`; they are flattened to timesteps for a class that overrides
    only `_map_to_episodes`.

    Args:
        prelearner: an instance, or the class if its mapper is static.
        rows: column -> `[rows, ...]`.
        config: the training's options.
        kwargs: further arguments, such as `spec.pipeline.preLearnerKwargs`.
    """
    cls = prelearner if isinstance(prelearner, type) else type(prelearner)
    name = _ROW_MAPPER
    if config.get("input_read_sample_batches") and not isinstance(rows, EpisodeRows):
        if _maps_batches(cls, _SAMPLE_BATCH_MAPPER) or not has_rllib_mapper(cls):
            name = _SAMPLE_BATCH_MAPPER
        else:
            rows = flatten_sample_batches(rows)
    return _call_with_accepted(
        getattr(prelearner, name),
        is_multi_agent=False,
        batch=rows,
        schema={**SCHEMA, **(config.get("input_read_schema") or {})},
        to_numpy=True,
        input_compress_columns=config.get("input_compress_columns"),
        observation_space=config.observation_space,
        action_space=config.action_space,
        **kwargs,
    )


def bind_mapper_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a row mapper by name, without `self`, in the form of RLlib 2.40 or 2.60."""
    arguments = [argument for argument in args if not hasattr(argument, "make_episodes")]
    # RLlib 2.40 passes is_multi_agent first.
    names = _PARAMETERS if arguments and isinstance(arguments[0], bool) else ("batch", "to_numpy")
    bound_arguments = {**dict(zip(names, arguments, strict=False)), **kwargs}
    if bound_arguments.get("is_multi_agent"):
        raise ValueError("is_multi_agent is True, but there is only one agent")
    return bound_arguments


def rows_to_episodes(
    rows: Rows,
    schema: Mapping[str, str | Sequence[str]] | None = None,
    *,
    to_numpy: bool = False,
    should_zero_final_obs: bool = False,
    ends_by_default: bool = False,
) -> list[SingleAgentEpisode]:
    """Group rows of timesteps by `eps_id` into episodes, in the order of `t`, else in stored order.

    Columns that are not in the schema become model outputs. Without `new_obs` the final observation repeats the last
    one; without `eps_id` each row is an episode. The infos of a row are those of its next observation.

    Args:
        rows: column -> `[rows, ...]`: `obs`, `actions`, `rewards`, `new_obs`, `terminateds` …
        schema: column -> its name in the rows, or a list of names, which are stacked to one vector.
        to_numpy: whether episodes contain arrays, else lists.
        should_zero_final_obs: whether final observations are zeros (`ignore_final_observation`).
        ends_by_default: whether episodes are terminated if no column says so.
    """
    names = {**SCHEMA, **(schema or {})}
    columns = {
        column: _read_column(rows, name)
        for column, name in names.items()
        if rows.keys() >= _source_names(name)
    }
    if Columns.OBS not in columns:
        raise KeyError(
            f"the rows have no column {names[Columns.OBS]!r} of observations, only {', '.join(map(repr, rows))}"
        )
    used_names = set[str]().union(*map(_source_names, names.values()))
    num_rows = len(columns[Columns.OBS])
    ids = columns.get(Columns.EPS_ID)
    rows_by_id: dict[str, list[int]] = {}
    for row in range(num_rows):
        rows_by_id.setdefault(_make_row_id() if ids is None else str(ids[row]), []).append(row)
    extra_columns = {
        name: _unpack(column)
        for name, column in rows.items()
        if name not in used_names and name not in ("dones", "agent_index", "type", "unroll_id")
    }
    # `dones` is the name of `terminateds` in data of RLlib's old versions.
    terminateds: Any = columns.get(Columns.TERMINATEDS, rows.get("dones"))
    if terminateds is None:
        terminateds = np.full(num_rows, ends_by_default and Columns.TRUNCATEDS not in columns)
    truncateds: Any = columns.get(Columns.TRUNCATEDS, np.zeros(num_rows, np.bool_))
    episodes = []
    for eps_id, indices in rows_by_id.items():
        if Columns.T in columns:
            indices.sort(key=lambda row: int(columns[Columns.T][row]))
        final_obs = columns[Columns.NEXT_OBS if Columns.NEXT_OBS in columns else Columns.OBS][indices[-1]]
        if should_zero_final_obs:
            final_obs = nested.map_leaves(np.zeros_like, columns[Columns.OBS][indices[-1]])
        infos = None
        if Columns.INFOS in columns:
            infos = [{}, *(_to_info(columns[Columns.INFOS][row]) for row in indices)]
        episode = SingleAgentEpisode(
            eps_id,
            agent_id=columns[Columns.AGENT_ID][indices[0]] if Columns.AGENT_ID in columns else None,
            observations=[*(columns[Columns.OBS][row] for row in indices), final_obs],
            infos=infos,
            actions=[columns[Columns.ACTIONS][row] for row in indices],
            rewards=[_to_reward(columns[Columns.REWARDS][row]) for row in indices],
            terminated=bool(terminateds[indices[-1]]),
            truncated=bool(truncateds[indices[-1]]),
            extra_model_outputs={
                name: [column[row] for row in indices] for name, column in extra_columns.items()
            },
            t_started=int(columns[Columns.T][indices[0]]) if Columns.T in columns else 0,
            len_lookback_buffer=0,
        )
        episodes.append(episode.to_numpy() if to_numpy else episode)
    return episodes


def _to_info(cell: Any) -> dict[str, Any]:
    """Return the info in a cell: a dictionary or JSON text; nulls, which pandas turns into NaN, are empty."""
    if isinstance(cell, Mapping):
        return dict(cell)
    return info_from_json(cell) if isinstance(cell, str) else {}


def _to_reward(value: Any) -> Any:
    return value if isinstance(value, np.floating) else float(value)


def _read_column(rows: Rows, name: str | Sequence[str]) -> Any:
    """Return a column, unpacked; for a list of names, one column of vectors."""
    return (
        _unpack(rows[name]) if isinstance(name, str) else np.stack([rows[source] for source in name], axis=-1)
    )


def _source_names(name: str | Sequence[str]) -> set[str]:
    return {name} if isinstance(name, str) else {*name}


def flatten_sample_batches(rows: Rows) -> dict[str, Any]:
    """Return the timesteps of SampleBatch rows, each of which holds a fragment of an episode, unpacked.

    Rows without `eps_id` are one episode each.
    """
    columns: dict[str, list[Any]] = {}
    names = [name for name in rows if name not in ("type", "agent_index", "unroll_id")]
    for row, observations in enumerate(rows[Columns.OBS]):
        cells = {name: _unpack([rows[name][row]])[0] for name in names}
        if Columns.EPS_ID not in cells:
            num_steps = len(_unpack([observations])[0])
            columns.setdefault(Columns.EPS_ID, []).extend([_make_row_id()] * num_steps)
        for name, cell in cells.items():
            columns.setdefault(name, []).extend(_unpack(cell))
    return {name: object_array([_to_array(value) for value in values]) for name, values in columns.items()}


def sample_batches_to_episodes(
    rows: Rows, schema: Mapping[str, str | Sequence[str]] | None = None, *, to_numpy: bool = False
) -> list[SingleAgentEpisode]:
    """Convert SampleBatch rows, each of which holds a fragment of an episode, to episodes.

    Without `terminateds`, `truncateds` and `dones` episodes are terminated, as in RLlib.
    """
    return rows_to_episodes(flatten_sample_batches(rows), schema, to_numpy=to_numpy, ends_by_default=True)


def items_to_episodes(rows: Rows) -> list[SingleAgentEpisode]:
    """Convert complete episodes, as RLlib's recorder packs them in `item`, to episodes."""
    states = read_states([memoryview(cell) for cell in rows[_ITEM]])
    return block_to_episodes(decode_states(states, column_names(states), {}))


def split_block(block: Block, num_episodes: int) -> Iterator[Block]:
    """Yield blocks of up to `num_episodes` adjacent episodes."""
    for start in range(0, block.num_episodes, num_episodes):
        yield block.take(np.arange(start, min(start + num_episodes, block.num_episodes)))


def list_episodes(output: Any) -> list[SingleAgentEpisode]:
    """Return the episodes that a hook or a buffer returned, in any iterable.

    Raises:
        Misuse: it returned something else.
    """
    is_other_iterable = isinstance(output, Iterable) and not isinstance(output, Mapping | Block)
    episodes = unpack_episodes(list(output) if is_other_iterable else output)
    return block_to_episodes(episodes) if isinstance(episodes, Block) else list(episodes)


def _with_unique_ids(episodes: Sequence[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
    """Return the episodes that a buffer drew, renamed, since it may draw one episode several times."""
    for index, episode in enumerate(episodes):
        episode.id_ = f"{episode.id_}-{index}"
        # The next observation is already n steps ahead, and no algorithm may count them again.
        episode.extra_model_outputs.pop(Columns.N_STEP, None)
    return list(episodes)


def _get_instance(
    cls: type, kwargs: Mapping[str, Any], training: Mapping[str, Any], location: str
) -> tuple[TrainingConfig, Any]:
    """Return the config and the pre-learner of a class and its arguments, constructed once per process.

    A pre-learner with a replay buffer is constructed once per file, so that what it draws does not depend on which
    process reads which files. The pre-learner is None if only its static mapper is called.
    """
    config = TrainingConfig(training)
    samples = config.get("prelearner_buffer_class") is not None or has_rllib_sampling(cls)
    is_static = isinstance(inspect.getattr_static(cls, mapper_name(cls, config)), staticmethod)
    if is_static and not samples:
        return config, None
    key = orjson.dumps(
        [id(cls), dict(kwargs), dict(training), _LOCATION_IN_FILE.sub("", location) if samples else ""],
        option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS,
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
        _instances[key] = config, _call_with_accepted(cls, **arguments, **kwargs)
    return _instances[key]


def _call_with_accepted(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function with the arguments that it accepts by name, or with all if it has `**kwargs`."""
    return function(**accepted_arguments(function, arguments))


def accepted_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function accepts by name, or all if it has `**kwargs`."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def _maps_batches(cls: type, method: str) -> bool:
    """Return True if a user's row mapper is in RLlib's form: it has a parameter `batch`, or accepts any arguments."""
    function = getattr(cls, method)
    parameters = inspect.signature(function).parameters
    return is_user_code(function) and (
        "batch" in parameters
        or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    )


def _is_user_class(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in ("builtins", "hindcast")


def _to_array(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, list) else value


def _unpack(cells: Any) -> Any:
    """Unpack a column of cells that RLlib packed; return any other column unchanged."""
    if len(cells) and isinstance(cells[0], str) and cells[0].startswith(PREFIX):
        return unpack_cells(cells)
    return cells
