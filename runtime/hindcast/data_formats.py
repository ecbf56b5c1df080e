"""The formats that inputs may have.

`api/generated/formats.json` describes each, written by `make crds` from the registered formats, so that resources are
checked without the packages that read files. The module is outside of `api` because the command line needs it for every
help text, and `api` takes a quarter of a second to import.
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
    read_option_names: tuple[str, ...] | None


@cache
def format_traits() -> dict[str, FormatTraits]:
    """Return name -> traits of each format, in the order in which a file's format is detected."""
    text = files("hindcast").joinpath("api/generated/formats.json").read_text(encoding="utf-8")
    return {
        name: FormatTraits(
            traits["title"],
            traits["hasTimesteps"],
            tuple(traits["rayMethods"]),
            None if traits["readOptions"] is None else tuple(traits["readOptions"]),
        )
        for name, traits in json.loads(text).items()
    }


def read_option_names(format_name: str) -> tuple[str, ...] | None:
    """Return the names of a format's read options, in snake case; None if they are only known when data are read.

    Args:
        format_name: name of the format; for `AUTO` the result has the options of all formats that can be detected.
    """
    if format_name != AUTO:
        return format_traits()[format_name].read_option_names
    names = (name for traits in format_traits().values() for name in traits.read_option_names or ())
    return tuple(dict.fromkeys(names))


if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[(AUTO, *format_traits())]
