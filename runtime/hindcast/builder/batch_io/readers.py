"""Where batches come from and go to: `InputReader`, `OutputWriter`, and the ones there are."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hindcast.builder.batch_io.sample_batch import SampleBatch
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
from hindcast.storage.location import Location, resolve

_MIB: Final = 1 << 20
_ENDINGS: Final = (".json", ".json.gz", ".jsonl")


class IOContext:
    """What a reader or writer is made with.

    Args:
        log_dir: a folder for its files.
        config: the options of the config, by name.
        worker_index: 0: there is one reader.
    """

    def __init__(
        self, log_dir: str | None = None, config: Mapping[str, Any] | None = None, worker_index: int = 0
    ) -> None:
        self.log_dir = log_dir or "."
        self.config = dict(config or {})
        self.worker_index = worker_index


class InputReader:
    """Returns batches. A subclass implements `next`, which raises StopIteration at the end."""

    def next(self) -> SampleBatch:
        """The next batch: column -> values of its timesteps."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """The batches in order; once, for readers that repeat."""
        while True:
            try:
                yield self.next()
            except StopIteration:
                return


class OutputWriter:
    """Takes batches. A subclass has `write`."""

    def write(self, sample_batch: SampleBatch) -> None:
        """Save a batch."""
        raise NotImplementedError


class _Repeating(InputReader):
    """Repeats the batches of `__iter__` forever."""

    _batches: Iterator[Mapping[str, Any]] | None = None

    def next(self) -> SampleBatch:
        """The next batch; the first again after the last.

        Raises:
            DataError: there are none, or one cannot be read.
        """
        for _ in range(2):
            if self._batches is None:
                self._batches = iter(self)
            for batch in self._batches:
                return SampleBatch(batch)
            self._batches = None
        raise DataError("the reader has no batches: give data that contain timesteps")


class JsonReader(_Repeating):
    """Reads the lines of SampleBatch JSON, a batch each, in the files' order.

    Args:
        inputs: a folder, file or glob, or a list of them; paths or URIs.
        ioctx: not needed.

    Raises:
        DataError: there are no such files.
    """

    def __init__(
        self,
        inputs: str | Path | Sequence[str | Path],
        ioctx: IOContext | None = None,  # noqa: ARG002
    ) -> None:
        given = [inputs] if isinstance(inputs, str | Path) else list(inputs)
        places = [place for path in given for place in expand_glob(resolve(path))]
        self._files = [file for place in places for file in _json_files(place)]
        if not self._files:
            raise DataError(f"no JSON files in {', '.join(map(str, given))}")

    def read_all_files(self) -> Iterator[SampleBatch]:
        """Every batch once."""
        return iter(self)

    def __iter__(self) -> Iterator[SampleBatch]:
        for file in self._files:
            number = 0
            for _, text in read_chunks(file):
                for line in text.splitlines():
                    number += 1
                    if line.strip():
                        yield _batch_of(line, f"{file}, line {number}")


class DatasetReader(_Repeating):
    """Reads a dataset of any kind, an episode at a time.

    Args:
        data: path or URI, or a `ray.data.Dataset` of a row for each timestep, which is read in its own batches.
        ioctx: not needed.

    Raises:
        DataError: there are no such data.
    """

    def __init__(self, data: Any, ioctx: IOContext | None = None) -> None:  # noqa: ARG002
        self._data = open_data([str(data)]) if isinstance(data, str | Path) else data
        if not hasattr(self._data, "units") and not hasattr(self._data, "iter_batches"):
            raise DataError(
                f"DatasetReader was given a {type(data).__name__}, expected a path or a ray.data.Dataset"
            )

    def __iter__(self) -> Iterator[SampleBatch]:
        if hasattr(self._data, "iter_batches"):
            yield from map(SampleBatch, self._data.iter_batches(batch_format="numpy"))
            return
        for unit in self._data.units:
            yield from _batches_of_block(self._data.read(unit), self._data.spec)


class JsonWriter(OutputWriter):
    """Writes batches as lines of SampleBatch JSON, which trainings, `JsonReader` and RLlib's own read.

    On this machine a batch is in the file when `write` returns; on an object store each batch is a separate file.

    Args:
        path: folder; made if it is not there.
        ioctx: not needed.
        max_file_size: bytes after which another file begins.
        compress_columns: columns that are packed: LZ4 of arrays, in their own dtype.
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
        self._most = max_file_size
        self._packed = tuple(compress_columns)
        self._began = time.strftime("%Y-%m-%d_%H-%M-%S")
        self._number, self._size = self._free(), 0

    def write(self, sample_batch: Mapping[str, Any]) -> None:
        """Add a batch.

        Raises:
            DataError: columns of several lengths, or values that JSON cannot hold.
            StorageError: it could not be written.
        """
        line = batch_to_line(SampleBatch(sample_batch), self._packed)
        if self._size and (self._size + len(line) > self._most or not self._folder.is_local):
            self._number, self._size = self._number + 1, 0
        file = self._file(self._number)
        if self._folder.is_local:
            file.append_bytes(line)
        else:
            file.write_bytes(line)
        self._size += len(line)

    def _free(self) -> int:
        """The first unused number: two writers may start within one second."""
        return next(number for number in itertools.count() if not self._file(number).exists())

    def _file(self, number: int) -> Location:
        return self._folder.child(f"output-{self._began}_worker-0_{number}.json")


def _json_files(place: Location) -> list[Location]:
    if not place.is_folder():
        return [place]
    return [entry.location for entry in place.files(recursive=True) if entry.relative_path.endswith(_ENDINGS)]


def _batch_of(line: bytes, where: str) -> SampleBatch:
    try:
        found = parse_batches(line)
        if len(found) > 1 or found[0].policy is not None:
            raise DataError(
                f"{where} contains several agents: use DatasetReader, which reads each agent's episodes"
            )
        return SampleBatch({name: _read_column(name, value) for name, value in found[0].columns.items()})
    except CellError as error:
        raise DataError(f"{where}: {error}") from error


def _read_column(name: str, value: Any) -> Any:
    if name == Columns.INFOS:
        return [info_from_json(text) for text in decode_infos(value)]
    return nested.unflatten(decode_column(value, name), name)


def _batches_of_block(block: Block, spec: Any) -> Iterator[SampleBatch]:
    for episode in block_to_episodes(block, spec.observation_space, spec.action_space):
        data = episode.get_data_dict()
        data[Columns.NEXT_OBS] = episode.get_observations(slice(1, len(episode) + 1))
        yield SampleBatch(data)
