"""Whether a preparation takes rows as they are stored, or brings those of an episode together: kept in its folder.

Rows are taken as stored, which reads and writes them once, unless the first part shows that those of an episode lie
apart. Where that turns out later, what was made is given up, and they are brought together.
"""

from __future__ import annotations

from typing import Final

import orjson

from hindcast.datasets.prepare.partitions import made, read_made
from hindcast.formats.dataset_folder.commits import COMMITS
from hindcast.formats.dataset_folder.manifest import FOLDER
from hindcast.storage.location import Location

_FILE: Final = "dealing.json"
_IN_ORDER: Final = "inOrder"


def begins_in_order(folder: Location, may_be: bool) -> bool:
    """Whether the rows of a folder that is filled are taken as they are stored; said in it before anything is made.

    Args:
        folder: of the dataset that is made.
        may_be: whether those looked at stand in order; where the folder says already, that holds.
    """
    place = folder.child(FOLDER, _FILE)
    if place.exists():
        return bool(orjson.loads(place.read_bytes())[_IN_ORDER])
    if made(folder):  # by a Hindcast that always brought rows together
        return False
    _write(folder, in_order=may_be)
    return may_be


def give_up_order(folder: Location) -> None:
    """Forget what was made of rows as they are stored."""
    for number in made(folder):
        for file in read_made(folder, number).files:
            folder.child(file.path).delete()
        folder.child(COMMITS, f"{number:06d}.json").delete()
    _write(folder, in_order=False)


def _write(folder: Location, *, in_order: bool) -> None:
    folder.child(FOLDER, _FILE).write_bytes(orjson.dumps({_IN_ORDER: in_order}))
