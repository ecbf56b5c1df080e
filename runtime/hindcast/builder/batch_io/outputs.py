"""A custom writer as the output of a recording: episodes are recorded to a folder, and given to it at the end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hindcast.builder.batch_io.readers import DatasetReader, IOContext
from hindcast.errors import UserCodeError
from hindcast.formats.dataset_folder.manifest import read_manifest
from hindcast.storage.location import resolve
from hindcast.user_code import calling


class WrittenOutput:
    """The folder that is recorded to in place of a writer, deleted when it is closed.

    Args:
        creator: called with an `IOContext`; returns an `OutputWriter`.
        options: the options of the config, by name.

    Attributes:
        path: of the folder.

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
