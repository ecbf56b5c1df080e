"""Converting rows that are not timesteps to episodes with the class that `spec.pipeline.preLearner` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.errors import SpecError
from hindcast.formats.format import ReadOptions, check_no_schema
from hindcast.user_code import import_object

_FIELD: Final = "spec.pipeline.preLearner"


def check_mapper(options: ReadOptions, format_name: str) -> None:
    """Check that the options name a class that converts rows to episodes, and that they set no `schema`.

    Raises:
        SpecError: no class is named, or the class does not derive from `OfflinePreLearner`.
        UserCodeError: importing the class raised.
        DataError: `schema` is set.
    """
    check_no_schema(options, format_name)
    if options.mapper is None:
        raise SpecError(
            f"{format_name} holds no timesteps: name a subclass of OfflinePreLearner, with a map_rows that turns the "
            f"rows into episodes, in {_FIELD} (a training) or --pre-learner (a command)",
            mentions=(_FIELD,),
        )
    # `make_episodes` of OfflinePreLearner calls `map_rows`
    if not hasattr(import_object(options.mapper, _FIELD), "make_episodes"):
        raise SpecError(
            f"is {options.mapper!r}, which has no map_rows: derive it from OfflinePreLearner", field=_FIELD
        )


def map_to_episodes(
    rows: Mapping[str, NDArray[Any]] | Block, options: ReadOptions, source: str
) -> list[Block]:
    """Convert rows to episodes with the user's class.

    Args:
        rows: column -> `[R, …]`, as `OfflinePreLearner.map_rows` describes; or complete episodes.
        options: options that name the class.
        source: where the rows come from, for messages.

    Returns:
        One block; an empty list if there are no episodes.

    Raises:
        UserCodeError: the class raised, or did not return episodes.
    """
    mapper = import_object(str(options.mapper), _FIELD)
    block: Block | None = mapper.make_episodes(rows, options.mapper_kwargs, options.mapper_training, source)
    return [] if block is None else [block]


def object_array(values: list[Any]) -> NDArray[np.object_]:
    """Return an object array `[len(values)]` with one object per value."""
    # np.array would make a matrix of values of equal length
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
