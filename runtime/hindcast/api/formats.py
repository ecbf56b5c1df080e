"""The formats that inputs may have.

`generated/formats.json` describes each, written by `make crds` from the registered formats, so that resources are
checked without the packages that read files.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

AUTO: Final = "Auto"
"""Stands for the format that a file is detected to have."""


class FormatTraits(NamedTuple):
    """The part of a format that resources and commands use; see the attributes of `Format` with these names."""

    title: str
    has_timesteps: bool
    ray_methods: tuple[str, ...]


@cache
def format_traits() -> dict[str, FormatTraits]:
    """Return name -> traits of each format, in the order in which a file's format is detected."""
    text = files("hindcast.api").joinpath("generated/formats.json").read_text(encoding="utf-8")
    return {
        name: FormatTraits(traits["title"], traits["hasTimesteps"], tuple(traits["rayMethods"]))
        for name, traits in json.loads(text).items()
    }


if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[(AUTO, *format_traits())]
