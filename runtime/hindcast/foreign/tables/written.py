"""What Hindcast wrote about its own text files: in the manifest of their folder, or before that in commits."""

from __future__ import annotations

from hindcast.errors import DataError
from hindcast.store.filesystem import Location
from hindcast.store.spec import DataSpec
from hindcast.store.text.recordings import recording_of


def written_spec(location: Location, layout: str) -> DataSpec:
    """The spec of a file that the recording beside it lists, in that layout; one that says nothing of any other.

    Raises:
        DataError: a manifest that cannot be read, or a file of another size than it says.
    """
    manifest = recording_of(location)
    if manifest is None or manifest.layout != layout:
        return DataSpec()
    entry = next((file for file in manifest.files if file.path == location.name), None)
    if entry is None:
        return DataSpec()
    size = location.info().size
    if size != entry.bytes:
        raise DataError(
            f"{location} has {size} bytes, but was recorded with {entry.bytes}: copy it again or record again"
        )
    return manifest.data_spec
