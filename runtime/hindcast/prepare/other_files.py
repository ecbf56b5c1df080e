"""What lies beside Parquet that is opened where it is: other data, which count as well, or none, which is said."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from hindcast import formatting
from hindcast.errors import DataError
from hindcast.foreign.format import Telling
from hindcast.prepare.reading import Reading
from hindcast.prepare.source_files import Found, Place, recognised
from hindcast.storage.location import Location
from hindcast.store.dataset import Dataset
from hindcast.store.sources import beside
from hindcast.store.tabular.names import COLUMNS_LAYOUT

_THREADS: Final = 8


class Beside(NamedTuple):
    """What a dataset that was opened in place leaves to be read.

    Attributes:
        has_data: there are timesteps, so that all must be prepared together.
        notes: what to say of files that are none.
    """

    has_data: bool
    notes: tuple[str, ...] = ()


def look_beside(dataset: Dataset, locations: Sequence[Location], reading: Reading) -> Beside:
    """Look into the files that were not opened.

    Raises:
        DataError: timesteps in another format, beside episodes that are stored whole.
        StorageError: storage that refuses or fails.
    """
    others = [file for location in locations for file in beside(location)]
    if not others:
        return Beside(has_data=False)
    data = _with_data(others, reading)
    if not data:
        what = "that is no data" if len(others) == 1 else "that are no data"
        return Beside(has_data=False, notes=(left_out(others, what),))
    if set(dataset.layouts) != {COLUMNS_LAYOUT}:
        one = dataset.units[0].parts[0].path
        where = ", ".join(map(str, locations))
        raise DataError(
            f"{where} mixes whole episodes ({one}) and timesteps ({data[0]}): keep them in folders of their own, and "
            "give each as an input"
        )
    return Beside(has_data=True)


def left_out(files: Sequence[Location], what: str) -> str:
    """The note on files that are not read; `what` says what they are."""
    were = "was" if len(files) == 1 else "were"
    names = formatting.few([file.name for file in files], 3)
    return f"{formatting.plural(len(files), 'file')} {what} {were} left out: {names}"


def _with_data(files: Sequence[Location], reading: Reading) -> list[Location]:
    """Those of a known format and, where that can be told, with the columns of timesteps."""
    known, _ = recognised([Place(file, is_named=False) for file in files], reading)
    with ThreadPoolExecutor(_THREADS) as pool:
        kept = list(pool.map(_holds_data, known))
    return [one.location for one, keeps in zip(known, kept, strict=True) if keeps]


def _holds_data(found: Found) -> bool:
    if not isinstance(found.format, Telling):
        return True
    try:
        found.format.notes(found.location, found.options)
    except DataError:
        return False
    return True
