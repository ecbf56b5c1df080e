"""Custom readers as input, custom writers as output: a folder stands between them and what is trained or recorded.

Batches of readers are written to a folder and trained on like any data; episodes are recorded to a folder, and a
writer receives them at the end.

A training shuffles all of its data and sees each timestep once an epoch, which needs them to be there; and its batches
are the same when it is resumed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from hindcast import formatting
from hindcast.builder.batch_io.readers import DatasetReader, InputReader, IOContext, JsonWriter
from hindcast.builder.batch_io.sample_batch import SampleBatch
from hindcast.errors import SpecError, UserCodeError
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.storage.location import resolve
from hindcast.user_code import calling

Creator = Callable[[IOContext], Any]
MAX_TIMESTEPS: Final = 10_000_000
"""A reader that returns more is assumed to repeat forever."""
_registered: dict[str, Creator] = {}


def register_input(name: str, creator: Creator) -> None:
    """Make a reader known by name, for `offline_data(input_=name)` in this process.

    Args:
        name: what `input_` takes.
        creator: called with an `IOContext`; returns an `InputReader`.
    """
    _registered[name] = creator


def find_creator(given: Any) -> Creator | None:
    """The function that makes a reader, if an entry of `input_` is not a path."""
    if isinstance(given, str):
        return _registered.get(given)
    return given if callable(given) else None


def has_readers(given: Any) -> bool:
    """Whether any entry of `input_` is a reader."""
    entries = given if isinstance(given, Mapping | list | tuple) else [given]
    return any(find_creator(entry) for entry in entries)


class ReaderFolders:
    """Folders with the batches of readers, deleted when it is closed.

    Attributes:
        notes: how much each gave.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    def read(self, options: Mapping[str, Any]) -> Any:
        """`input_` with the folder of what it gave in each reader's place.

        Raises:
            SpecError: it did not make a reader, or one that never ends.
            UserCodeError: it raised, or returned something other than a batch.
        """
        given = options["input_"]
        if isinstance(given, Mapping):
            return {self._place(entry, options): weight for entry, weight in given.items()}
        if isinstance(given, list | tuple):
            return [self._place(entry, options) for entry in given]
        return self._place(given, options)

    def close(self) -> None:
        for folder in self._folders:
            folder.cleanup()
        self._folders = []

    def _place(self, entry: Any, options: Mapping[str, Any]) -> Any:
        creator = find_creator(entry)
        if creator is None:
            return entry
        folder = tempfile.TemporaryDirectory(prefix="hindcast-reader-")
        self._folders.append(folder)
        steps = _write_down(creator, IOContext(folder.name, options), Path(folder.name))
        name = entry if isinstance(entry, str) else getattr(entry, "__qualname__", type(entry).__name__)
        self.notes.append(f"input_: the reader {name} returned {formatting.plural(steps, 'timestep')}")
        return folder.name


def _write_down(creator: Creator, context: IOContext, folder: Path) -> int:
    """Write what a reader gives; how many timesteps."""
    with calling("the reader of input_", creator):
        reader = creator(context)
    writer, steps = JsonWriter(folder), 0
    for batch in _batches(reader):
        writer.write(batch)
        steps += batch.count
        if steps > MAX_TIMESTEPS:
            raise SpecError(
                f"input_: the reader continues after {formatting.integer(MAX_TIMESTEPS)} timesteps: let next() raise "
                "StopIteration at the end, or write its batches to a folder (JsonWriter), and name that."
            )
    if not steps:
        raise UserCodeError("input_: the reader returned no timesteps.")
    return steps


def _batches(reader: Any) -> Iterator[SampleBatch]:
    if not hasattr(reader, "next"):
        raise SpecError(
            f"input_ made a {type(reader).__name__}, expected an InputReader: a class with next() -> SampleBatch."
        )
    given = iter(reader) if hasattr(reader, "__iter__") else InputReader.__iter__(reader)
    while True:
        with calling("the reader of input_ in next()", type(reader).next):
            batch = next(given, None)
        if batch is None:
            return
        if not isinstance(batch, Mapping):
            raise UserCodeError(
                f"input_: {type(reader).__name__}.next() returned a {type(batch).__name__}, expected a SampleBatch."
            )
        yield SampleBatch(batch)


class WriterFolder:
    """The folder that is recorded to in place of a writer, deleted when it is closed.

    Args:
        creator: called with an `IOContext`; returns an `OutputWriter`.

    Raises:
        UserCodeError: it raised, or did not make a writer.
    """

    def __init__(self, creator: Callable[[IOContext], Any], options: Mapping[str, Any]) -> None:
        with calling("the writer of output", creator):
            self._writer = creator(IOContext(config=options))
        if not callable(getattr(self._writer, "write", None)):
            raise UserCodeError(
                f"output made a {type(self._writer).__name__}, expected an OutputWriter: a class with "
                "write(sample_batch)."
            )
        self._folder = tempfile.TemporaryDirectory(prefix="hindcast-writer-")
        self.path = str(Path(self._folder.name) / "episodes")

    def close(self) -> None:
        """Give the writer each recorded episode, as a `SampleBatch`; then delete them.

        Raises:
            UserCodeError: it raised.
        """
        with self._folder:
            if read_manifest(resolve(self.path)) is None:
                return
            for batch in DatasetReader(self.path):
                with calling("the writer of output in write()", type(self._writer).write):
                    self._writer.write(batch)
