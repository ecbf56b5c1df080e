"""`InputReader` and `OutputWriter`, RLlib's base classes to read and write batches, and their subclasses."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hindcast.datasets.prepare.opening import open_data
from hindcast.datasets.sources import expand_glob
from hindcast.episodes import nested
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns
from hindcast.episodes.convert import block_to_episodes, info_from_json
from hindcast.errors import DataError
from hindcast.formats.layout import CellError
from hindcast.formats.sample_batch.batches import decode_column, decode_infos, parse_batches
from hindcast.formats.tables.text_files import read_chunks
from hindcast.formats.text.sample_batch import batch_to_line
from hindcast.formatting import describe_type
from hindcast.rllib.batch_io.sample_batch import SampleBatch
from hindcast.storage.location import Location, resolve

_MIB: Final = 1 << 20
_EXTENSIONS: Final = (".json", ".json.gz", ".jsonl")


class IOContext:
    """The argument with which readers and writers are created.

    Args:
        log_dir: a folder for files of the reader or writer; None is the working directory.
        config: the options of the config, by name.
        worker_index: always 0: there is one reader or writer.
    """

    def __init__(
        self, log_dir: str | None = None, config: Mapping[str, Any] | None = None, worker_index: int = 0
    ) -> None:
        self.log_dir = log_dir or "."
        self.config = dict(config or {})
        self.worker_index = worker_index


class InputReader:
    """A source of batches. A subclass implements `next`, which raises StopIteration at the end."""

    def next(self) -> SampleBatch:
        """Return the next batch: column -> values of its timesteps."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield the results of `next` in order, until it raises StopIteration."""
        while True:
            try:
                yield self.next()
            except StopIteration:
                return


class OutputWriter:
    """A sink of batches. A subclass implements `write`."""

    def write(self, sample_batch: SampleBatch) -> None:
        """Write a batch."""
        raise NotImplementedError


class _RepeatingReader(InputReader):
    """A reader with a `next` that repeats the batches of `__iter__` forever; `__iter__` yields them once."""

    _batches: Iterator[Mapping[str, Any]] | None = None

    def next(self) -> SampleBatch:
        """Return the next batch; after the last batch, begin again with the first.

        Raises:
            DataError: there are no batches, or one cannot be read.
        """
        # The first pass ends without a batch after the last batch, the second pass only if there are none.
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self)
            for batch in self._batches:
                return SampleBatch(batch)
            self._batches = None
        raise DataError("the reader has no batches: pass data that contain timesteps")


class JsonReader(_RepeatingReader):
    """A reader of SampleBatch JSON, one batch per line, in the files' order.

    Args:
        inputs: a folder, file or glob, or a list of them; paths or URIs.
        ioctx: not used.

    Raises:
        DataError: the files do not exist.
    """

    def __init__(
        self,
        inputs: str | Path | Sequence[str | Path],
        ioctx: IOContext | None = None,  # noqa: ARG002
    ) -> None:
        paths = [inputs] if isinstance(inputs, str | Path) else list(inputs)
        locations = [location for path in paths for location in expand_glob(resolve(path))]
        self._files = [file for location in locations for file in _json_files(location)]
        if not self._files:
            raise DataError(f"no JSON files in {', '.join(map(str, paths))}")

    def read_all_files(self) -> Iterator[SampleBatch]:
        """Yield every batch once."""
        return iter(self)

    def __iter__(self) -> Iterator[SampleBatch]:
        for file in self._files:
            line_number = 0
            for _, text in read_chunks(file):
                for line in text.splitlines():
                    line_number += 1
                    if line.strip():
                        yield _parse_line(line, f"{file}, line {line_number}")


class DatasetReader(_RepeatingReader):
    """A reader of any data that Hindcast can open, one episode per batch.

    Args:
        data: path or URI, or a `ray.data.Dataset` with a row per timestep, which yields Ray Data's batches instead of
            episodes.
        ioctx: not used.

    Raises:
        DataError: the data do not exist.
    """

    def __init__(self, data: Any, ioctx: IOContext | None = None) -> None:  # noqa: ARG002
        self._data = open_data([str(data)]) if isinstance(data, str | Path) else data
        if not hasattr(self._data, "units") and not hasattr(self._data, "iter_batches"):
            raise DataError(
                f"DatasetReader: data is {describe_type(data)}, expected a path or a ray.data.Dataset"
            )

    def __iter__(self) -> Iterator[SampleBatch]:
        if hasattr(self._data, "iter_batches"):
            yield from map(SampleBatch, self._data.iter_batches(batch_format="numpy"))
            return
        for unit in self._data.units:
            yield from _batches_of_block(self._data.read(unit), self._data.spec)


class JsonWriter(OutputWriter):
    """A writer of SampleBatch JSON, one batch per line; trainings, `JsonReader` and RLlib's reader read it.

    On this machine a batch is in the file when `write` returns; on an object store each batch is a separate file.

    Args:
        path: folder; created if it does not exist.
        ioctx: not used.
        max_file_size: maximum bytes of a file; a batch that is larger has a file of its own.
        compress_columns: columns to store as LZ4-compressed arrays, in their own dtype, rather than as JSON numbers.
    """

    def __init__(
        self,
        path: str | Path | Location,
        ioctx: IOContext | None = None,  # noqa: ARG002
        max_file_size: int = 64 * _MIB,
        compress_columns: Sequence[str] = (Columns.OBS, Columns.NEXT_OBS),
    ) -> None:
        self._folder = resolve(path)
        self._folder.mkdirs()
        self._max_file_bytes = max_file_size
        self._compress_columns = tuple(compress_columns)
        self._start_time = time.strftime("%Y-%m-%d_%H-%M-%S")
        self._file_number, self._file_bytes = self._first_free_file_number(), 0

    def write(self, sample_batch: Mapping[str, Any]) -> None:
        """Append a batch.

        Raises:
            DataError: columns differ in length, or values cannot be written as JSON.
            StorageError: the batch cannot be written.
        """
        line = batch_to_line(SampleBatch(sample_batch), self._compress_columns)
        # Objects of a store cannot be appended to.
        if self._file_bytes and (
            self._file_bytes + len(line) > self._max_file_bytes or not self._folder.is_local
        ):
            self._file_number, self._file_bytes = self._file_number + 1, 0
        file = self._file_at(self._file_number)
        if self._folder.is_local:
            file.append_bytes(line)
        else:
            file.write_bytes(line)
        self._file_bytes += len(line)

    def _first_free_file_number(self) -> int:
        """Return the first number without a file: writers that start in the same second share the prefix of names."""
        return next(
            file_number for file_number in itertools.count() if not self._file_at(file_number).exists()
        )

    def _file_at(self, number: int) -> Location:
        return self._folder.child(f"output-{self._start_time}_worker-0_{number}.json")


def _json_files(location: Location) -> list[Location]:
    if not location.is_folder():
        return [location]
    return [
        entry.location
        for entry in location.files(recursive=True)
        if entry.relative_path.endswith(_EXTENSIONS)
    ]


def _parse_line(line: bytes, label: str) -> SampleBatch:
    try:
        batches = parse_batches(line)
        if len(batches) > 1 or batches[0].policy is not None:
            raise DataError(
                f"{label} contains several agents: use DatasetReader, which reads each agent's episodes"
            )
        return SampleBatch({name: _read_column(name, value) for name, value in batches[0].columns.items()})
    except CellError as error:
        raise DataError(f"{label}: {error}") from error


def _read_column(name: str, value: Any) -> Any:
    if name == Columns.INFOS:
        return [info_from_json(text) for text in decode_infos(value)]
    return nested.unflatten(decode_column(value, name), name)


def _batches_of_block(block: Block, spec: Any) -> Iterator[SampleBatch]:
    """Yield each episode of a block as a batch; `spec` has the spaces."""
    for episode in block_to_episodes(block, spec.observation_space, spec.action_space):
        data = episode.get_data_dict()
        data[Columns.NEXT_OBS] = episode.get_observations(slice(1, len(episode) + 1))
        yield SampleBatch(data)
