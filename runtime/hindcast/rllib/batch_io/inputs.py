"""Custom readers as input and custom writers as output, through temporary folders.

The batches of a reader are written to a folder and trained on like any data: a training shuffles all of its data, sees
each timestep once per epoch, and delivers the same batches when it resumes. Episodes are recorded to a folder, and a
writer receives them at the end.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from hindcast import formatting
from hindcast.episodes import nested
from hindcast.errors import SpecError, UserCodeError
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.rllib.batch_io.folder_names import forget_name, register_name
from hindcast.rllib.batch_io.readers import DatasetReader, InputReader, IOContext, JsonReader, JsonWriter
from hindcast.rllib.batch_io.sample_batch import SampleBatch
from hindcast.rllib.batch_io.table_input import FILE_NAME, TableInput
from hindcast.storage.location import resolve
from hindcast.user_code import calling

Creator = Callable[[IOContext], Any]
MAX_TIMESTEPS: Final = 10_000_000
"""A reader that returns more timesteps is assumed never to end."""
FIRST_CHECK: Final = 100_000
"""Timesteps after which a reader is first checked for repeating its batches; later checks are at twice the last one."""
_LOG = logging.getLogger("hindcast")
_creators: dict[str, Creator] = {}
"""Name for `input_` -> the creator registered in this process."""


def register_input(name: str, creator: Creator) -> None:
    """Register a reader for `offline_data(input_=name)` in this process.

    Args:
        name: the name for `input_`.
        creator: called with an `IOContext`; returns an `InputReader`.
    """
    _creators[name] = creator


def find_creator(entry: Any) -> Creator | None:
    """Return the function that makes a reader, or None if an entry of `input_` is a path."""
    if isinstance(entry, str):
        return _creators.get(entry)
    return entry if callable(entry) else None


def has_readers(inputs: Any) -> bool:
    """Return True if any entry of `input_` is a table, a function that makes a reader, or its registered name."""
    entries = inputs if isinstance(inputs, Mapping | list | tuple) else [inputs]
    return any(isinstance(entry, TableInput) or find_creator(entry) for entry in entries)


class ReaderFolders:
    """Temporary folders with the batches of readers, and with tables, deleted by `close`.

    Attributes:
        notes: a note for the user for each reader, with its number of timesteps.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    def read(self, options: Mapping[str, Any]) -> Any:
        """Write the batches of all readers and all tables, and return `input_` with their folders in place.

        Raises:
            SpecError: a function does not return a reader, or a reader does not end.
            UserCodeError: a reader raised, or did not return a batch.
        """
        inputs = options["input_"]
        if isinstance(inputs, Mapping):
            return {self._replace_reader(entry, options): weight for entry, weight in inputs.items()}
        if isinstance(inputs, list | tuple):
            return [self._replace_reader(entry, options) for entry in inputs]
        return self._replace_reader(inputs, options)

    def close(self) -> None:
        """Delete the folders."""
        for folder in self._folders:
            forget_name(folder.name)
            folder.cleanup()
        self._folders = []

    def _replace_reader(self, entry: Any, options: Mapping[str, Any]) -> Any:
        """Return the folder with a reader's batches, or with a table; return a path unchanged."""
        if isinstance(entry, TableInput):
            folder = self._make_folder(f"the {entry.kind}")
            register_name(str(Path(folder) / FILE_NAME), f"the {entry.kind}")
            entry.write(folder)
            return folder
        creator = find_creator(entry)
        if creator is None:
            return entry
        name = entry if isinstance(entry, str) else getattr(entry, "__qualname__", type(entry).__name__)
        folder = self._make_folder(f"the batches of the reader {name}")
        num_steps, repeats = _write_batches(creator, IOContext(folder, options), Path(folder))
        repetition = ", which it repeats endlessly: they are read once" if repeats else ""
        self.notes.append(
            f"input_: the reader {name} returned {formatting.plural(num_steps, 'timestep')}{repetition}"
        )
        return folder

    def _make_folder(self, name: str) -> str:
        folder = tempfile.TemporaryDirectory(prefix="hindcast-reader-")
        self._folders.append(folder)
        register_name(folder.name, name)
        return folder.name


def _write_batches(creator: Creator, context: IOContext, folder: Path) -> tuple[int, bool]:
    """Write the batches of a reader to the folder, those that it repeats once.

    Returns:
        The number of timesteps, and whether the reader repeats its batches endlessly.

    Raises:
        SpecError: the reader does not end, and does not repeat its batches.
        UserCodeError: it returned no timesteps.
    """
    with calling("the reader of input_", creator):
        reader = creator(context)
    writer, num_steps, next_check = JsonWriter(folder), 0, FIRST_CHECK
    digests: list[bytes] = []
    counts: list[int] = []
    for batch in _read_batches(reader):
        writer.write(batch)
        num_steps += batch.count
        digests.append(_digest(batch))
        counts.append(batch.count)
        if num_steps >= next_check:
            next_check *= 2
            if (period := _find_period(digests)) is not None:
                _keep_first_batches(folder, period)
                return sum(counts[:period]), True
            _LOG.warning("input_: the reader returned %s timesteps so far", formatting.integer(num_steps))
        if num_steps > MAX_TIMESTEPS:
            raise SpecError(
                f"input_: the reader did not stop after {formatting.integer(MAX_TIMESTEPS)} timesteps: let "
                "next() raise StopIteration at the end, or write its batches to a folder (JsonWriter), and "
                "name that folder."
            )
    if not num_steps:
        raise UserCodeError("input_: the reader returned no timesteps.")
    return num_steps, False


def _find_period(digests: Sequence[bytes]) -> int | None:
    """Return the number of batches after which all of them repeat at least once; None if they do not."""
    candidates = (period for period in range(1, len(digests) // 2 + 1) if digests[period] == digests[0])
    return next((period for period in candidates if digests[period:] == digests[:-period]), None)


def _digest(batch: SampleBatch) -> bytes:
    digest = hashlib.sha256()
    for name, value in sorted(batch.items()):
        for leaf, array in nested.flatten(value, name).items():
            values = np.asarray(array)
            digest.update(f"{leaf} {values.shape} {values.dtype}".encode())
            digest.update(repr(values.tolist()).encode() if values.dtype == object else values.tobytes())
    return digest.digest()


def _keep_first_batches(folder: Path, num_batches: int) -> None:
    """Rewrite the folder of a `JsonWriter` with its first batches."""
    old_files = sorted(folder.iterdir())
    with tempfile.TemporaryDirectory(prefix="hindcast-reader-") as other_folder:
        writer = JsonWriter(other_folder)
        for batch in itertools.islice(JsonReader(str(folder)).read_all_files(), num_batches):
            writer.write(batch)
        for file in old_files:
            file.unlink()
        for file in Path(other_folder).iterdir():
            shutil.move(file, folder)


def _read_batches(reader: Any) -> Iterator[SampleBatch]:
    """Yield the batches of a reader until its end."""
    if not hasattr(reader, "next"):
        raise SpecError(
            f"input_: the function returned {formatting.describe_type(reader)}, expected an InputReader: an object "
            "with next() -> SampleBatch."
        )
    # The reader need not be an `InputReader`, since `__iter__` of that class only calls `next`.
    batches = iter(reader) if hasattr(reader, "__iter__") else InputReader.__iter__(reader)
    while True:
        with calling("the reader of input_ in next()", type(reader).next):
            batch = next(batches, None)
        if batch is None:
            return
        if not isinstance(batch, Mapping):
            raise UserCodeError(
                f"input_: {type(reader).__name__}.next() returned {formatting.describe_type(batch)}, expected a "
                "SampleBatch."
            )
        yield SampleBatch(batch)


class WriterFolder:
    """A temporary folder to which episodes are recorded until `close` passes them to a writer.

    Args:
        creator: called with an `IOContext`; returns an `OutputWriter`.
        options: the options of the config, for the `IOContext`.

    Attributes:
        path: the folder for the recording.

    Raises:
        UserCodeError: the creator raised, or did not return a writer.
    """

    def __init__(self, creator: Callable[[IOContext], Any], options: Mapping[str, Any]) -> None:
        with calling("the writer of output", creator):
            self._writer = creator(IOContext(config=options))
        if not callable(getattr(self._writer, "write", None)):
            raise UserCodeError(
                f"output: the function returned {formatting.describe_type(self._writer)}, expected an OutputWriter: an "
                "object with write(sample_batch)."
            )
        self._folder = tempfile.TemporaryDirectory(prefix="hindcast-writer-")
        self.path = str(Path(self._folder.name) / "episodes")

    def close(self) -> None:
        """Pass each recorded episode to the writer, as a `SampleBatch`; then delete the folder, also after an error.

        Raises:
            UserCodeError: the writer raised.
        """
        with self._folder:
            if read_manifest(resolve(self.path)) is None:
                return
            for batch in DatasetReader(self.path):
                with calling("the writer of output in write()", type(self._writer).write):
                    self._writer.write(batch)
