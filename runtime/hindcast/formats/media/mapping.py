"""Rows that are not timesteps, made into episodes by the class that `spec.pipeline.preLearner` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.errors import SpecError
from hindcast.formats.format import ReadOptions, check_no_schema
from hindcast.user_code import import_object, source_digest

_FIELD: Final = "spec.pipeline.preLearner"


def check_mapper(options: ReadOptions, form: str) -> None:
    """Make sure that there is a class that makes episodes of the rows.

    Raises:
        SpecError: none is named, or it has no `map_rows`.
        UserCodeError: importing it raised.
        DataError: a schema map is given.
    """
    check_no_schema(options, form)
    if options.mapper is None:
        raise SpecError(
            f"{form} holds no timesteps: name a subclass of OfflinePreLearner in {_FIELD}, whose map_rows makes "
            "episodes of it"
        )
    if not hasattr(import_object(options.mapper, _FIELD), "make_episodes"):
        raise SpecError(
            f"{_FIELD} is {options.mapper!r}, which has no map_rows: make it an OfflinePreLearner"
        )


def mapper_digest(options: ReadOptions) -> str | None:
    """What changes with the class's code; None if none is named.

    Raises:
        SpecError: there is no such class.
        UserCodeError: importing it raised.
    """
    return None if options.mapper is None else source_digest(import_object(options.mapper, _FIELD))


def map_to_episodes(rows: Mapping[str, NDArray[Any]], options: ReadOptions, where: str) -> list[Block]:
    """What the class makes of the rows: one block, or none if it makes no episodes.

    Args:
        rows: `[R, …]` by column, as `OfflinePreLearner.map_rows` describes them.
        options: names the class.

    Raises:
        UserCodeError: the class raised, or returned something else than episodes.
    """
    mapper = import_object(str(options.mapper), _FIELD)
    made: Block | None = mapper.make_episodes(
        dict(rows), options.mapper_kwargs, options.mapper_training, where
    )
    return [] if made is None else [made]


def object_array(values: list[Any]) -> NDArray[np.object_]:
    """`[len(values)]` one object each, whatever their lengths."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
