"""Files in the folders of data that are no data, which is said, or data of another kind, which is refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from hindcast import formatting
from hindcast.datasets.dataset import Dataset
from hindcast.datasets.prepare.reading import Reading
from hindcast.datasets.prepare.source_files import Found, Place, recognised
from hindcast.datasets.sources import unopened_files
from hindcast.errors import DataError
from hindcast.storage.location import Location

_THREADS: Final = 8
_PARQUET: Final = "Parquet"


def notes_on_others(dataset: Dataset, locations: Sequence[Location], reading: Reading) -> tuple[str, ...]:
    """What to say of files in a dataset's folders that are not of it.

    Raises:
        DataError: timesteps in another format, beside episodes that are stored whole.
        StorageError: storage that refuses or fails.
    """
    others = [file for location in locations for file in unopened_files(location)]
    if not others:
        return ()
    data = _with_data(others, reading)
    if data:
        one = dataset.units[0].parts[0].path
        where = ", ".join(map(str, locations))
        raise DataError(
            f"{where} mixes whole episodes ({one}) and timesteps ({data[0]}): keep them in folders of their own, and "
            "give each as an input"
        )
    return (left_out_as_no_data(others),)


def split_no_data(known: Sequence[Found], named: Collection[Location]) -> tuple[list[Found], list[Location]]:
    """Files beside Parquet tables: those of other formats which the user did not name may be no data (`params.json`).

    Args:
        known: all files, with their formats.
        named: those that the user named.

    Returns:
        The data, and the others.
    """
    doubtful = [one for one in known if one.format.name != _PARQUET and one.location not in named]
    if len(doubtful) == len(known):
        return list(known), []
    with ThreadPoolExecutor(_THREADS) as pool:
        no_data = [
            one.location
            for one, holds in zip(doubtful, pool.map(_holds_data, doubtful), strict=True)
            if not holds
        ]
    return [one for one in known if one.location not in no_data], no_data


def left_out_as_no_data(files: Sequence[Location]) -> str:
    """The note on files without timesteps."""
    return left_out(files, "that is no data" if len(files) == 1 else "that are no data")


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
    try:
        found.format.notes(found.location, found.options)
    except DataError:
        return False
    return True
