"""Mapping rows that are not timesteps to episodes, by the class that `spec.pipeline.preLearner` names."""

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
    """Check that the options name a class that maps the rows to episodes.

    Raises:
        SpecError: no class is named, or it has no `map_rows`.
        UserCodeError: importing the class raised.
        DataError: a schema map is given.
    """
    check_no_schema(options, form)
    if options.mapper is None:
        raise SpecError(
            f"{form} holds no timesteps: name a subclass of OfflinePreLearner in {_FIELD} with a map_rows "
            "that turns it into episodes"
        )
    if not hasattr(import_object(options.mapper, _FIELD), "make_episodes"):
        raise SpecError(
            f"{_FIELD} is {options.mapper!r}, which has no map_rows: derive it from OfflinePreLearner"
        )


def mapper_digest(options: ReadOptions) -> str | None:
    """Return a digest of the class's source code; None if no class is named.

    Raises:
        SpecError: the class does not exist.
        UserCodeError: importing the class raised.
    """
    return None if options.mapper is None else source_digest(import_object(options.mapper, _FIELD))


def map_to_episodes(rows: Mapping[str, NDArray[Any]], options: ReadOptions, where: str) -> list[Block]:
    """Map rows to episodes with the user's class: one block, or none without episodes.

    Args:
        rows: `[R, …]` by column, as `OfflinePreLearner.map_rows` describes them.
        options: name the class.
        where: source of the rows, for messages.

    Raises:
        UserCodeError: the class raised, or did not return episodes.
    """
    mapper = import_object(str(options.mapper), _FIELD)
    block: Block | None = mapper.make_episodes(
        dict(rows), options.mapper_kwargs, options.mapper_training, where
    )
    return [] if block is None else [block]


def object_array(values: list[Any]) -> NDArray[np.object_]:
    """Return `[len(values)]` an object array with one object for each value, even for values of equal length."""
    # np.array would make a matrix of values of equal length
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
