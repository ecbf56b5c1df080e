"""The formats "Text", "Images" and "Binary": files that a class of the user converts to episodes."""

from __future__ import annotations

import codecs
import io
import posixpath
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.format import FileGroup, Format, Piece, ReadOptions, has_suffix, is_hidden
from hindcast.formats.media.mapping import check_mapper, map_to_episodes, object_array
from hindcast.formats.tables.read_options import check_options, is_shape
from hindcast.formatting import natural_sort_key
from hindcast.storage.location import Entry, Location

_IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif")
_PILLOW_FORMATS: Final = ("PNG", "JPEG", "TIFF", "BMP", "GIF")
_PILLOW_MODES: Final = ("1", "L", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F")

FormatOptions = dict[str, Any]


class MappedFiles(Format):
    """Files that the class in `spec.pipeline.preLearner` converts to episodes.

    If files are grouped, those of a folder are converted together, in natural order (2 before 10), at most
    `readOptions.batch_size` at a time; by default all of them.

    Attributes:
        suffixes: suffixes of the files' names, in lower case.
        is_grouped_by_folder: whether the files of a folder are converted together.
    """

    has_timesteps = False
    suffixes: tuple[str, ...]
    read_option_names: ClassVar[tuple[str, ...]] = ("batch_size",)
    is_grouped_by_folder = True

    @abstractmethod
    def read_rows(self, files: Sequence[Location], format_options: FormatOptions) -> dict[str, NDArray[Any]]:
        """Read files as rows: column -> `[R, …]`.

        Args:
            files: files of one folder, or one file.
            format_options: checked `readOptions`.

        Raises:
            DataError: a file cannot be read.
        """

    def check_format_options(self, format_options: FormatOptions) -> None:
        """Check the values of the `readOptions`, except `batch_size`; this base class has no others.

        Raises:
            DataError: a value is invalid.
        """

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: by the suffix; a folder is recognised if its files are grouped."""
        return has_suffix(location.name, self.suffixes) or (
            self.is_grouped_by_folder and location.is_folder()
        )

    def group_files(self, entries: Sequence[Entry]) -> list[FileGroup]:
        """See `Format.group_files`: the files of each folder."""
        return group_by_folder(entries, self.suffixes) if self.is_grouped_by_folder else []

    def list_pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `Format.list_pieces`: `batch_size` files of a folder, or one file.

        Raises:
            DataError: an option is unknown or invalid.
            SpecError: the options do not name a class that converts the files to episodes.
        """
        format_options = self._parse_format_options(options)
        check_mapper(options, self.name)
        if not location.is_folder():
            return [Piece(location, location.info().size or 0)]
        data_files = (
            entry for entry in location.files() if _is_data_file(entry.relative_path, self.suffixes)
        )
        files = sorted(data_files, key=lambda entry: natural_sort_key(entry.relative_path))
        batch_size = format_options.get("batch_size", max(1, len(files)))
        return [
            Piece(location, sum(file.size for file in batch), tuple(file.relative_path for file in batch))
            for batch in (files[start : start + batch_size] for start in range(0, len(files), batch_size))
        ]

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Block]:
        """See `Format.read`: the episodes that the user's class returns for the rows.

        Raises:
            DataError: a file cannot be read.
            UserCodeError: the class raised.
        """
        location = piece.location
        files = [location] if piece.extent is None else [location.child(name) for name in piece.extent]
        rows = self.read_rows(files, self._parse_format_options(options))
        if len(next(iter(rows.values()))):
            yield from map_to_episodes(rows, options, str(location))

    def _parse_format_options(self, options: ReadOptions) -> FormatOptions:
        format_options = check_options(self.name, options.options, self.read_option_names)
        batch_size = format_options.get("batch_size", 1)
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise DataError(
                f"readOptions.batch_size is {batch_size!r}: expected a number of files, at least 1"
            )
        self.check_format_options(format_options)
        return format_options


class Binary(MappedFiles):
    """Files of any kind; the files of a folder are converted together."""

    name = "Binary"
    ray_methods = ("read_binary_files",)
    suffixes = ("",)  # matches every name

    def recognises(self, location: Location) -> bool:
        """See `Format.recognises`: only folders; a single file is read as Binary if the user sets the format."""
        return location.is_folder()

    def read_rows(self, files: Sequence[Location], format_options: FormatOptions) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        """Read `{"bytes": [R], "path": [R]}`, one row for each file."""
        return {
            "bytes": object_array([file.read_bytes() for file in files]),
            "path": object_array([str(file) for file in files]),
        }


class Images(MappedFiles):
    """Image files; the files of a folder are converted together, since they may be the frames of an episode."""

    name = "Images"
    ray_methods = ("read_images",)
    suffixes = _IMAGE_SUFFIXES
    read_option_names = ("size", "mode", "batch_size")

    def check_format_options(self, format_options: FormatOptions) -> None:
        """See `MappedFiles.check_format_options`: `size` (height, width) and `mode` (of Pillow) of the result."""
        size, mode = format_options.get("size"), format_options.get("mode")
        if size is not None and not (is_shape(size) and len(size) == 2):
            raise DataError(f"readOptions.size is {size!r}: expected [height, width]")
        if mode is not None and mode not in _PILLOW_MODES:
            raise DataError(f"readOptions.mode is {mode!r}: allowed are {', '.join(_PILLOW_MODES)}")

    def read_rows(self, files: Sequence[Location], format_options: FormatOptions) -> dict[str, NDArray[Any]]:
        """Read `{"image": [R, height, width, …], "path": [R]}`; images of several shapes are an object array."""
        images = [_read_image(file, format_options.get("size"), format_options.get("mode")) for file in files]
        is_uniform = len({(image.shape, image.dtype) for image in images}) == 1
        return {
            "image": np.stack(images) if is_uniform else object_array(images),
            "path": object_array([str(file) for file in files]),
        }


class Text(MappedFiles):
    """Text files; each file is converted separately."""

    name = "Text"
    ray_methods = ("read_text",)
    suffixes = (".txt", ".text", ".log", ".md")
    read_option_names = ("encoding", "drop_empty_lines")
    is_grouped_by_folder = False

    def check_format_options(self, format_options: FormatOptions) -> None:
        """See `MappedFiles.check_format_options`: `encoding` must be known, `drop_empty_lines` true or false."""
        drop_empty_lines = format_options.get("drop_empty_lines", False)
        encoding = format_options.get("encoding", "utf-8")
        if not isinstance(drop_empty_lines, bool):
            raise DataError(f"readOptions.drop_empty_lines is {drop_empty_lines!r}: expected true or false")
        try:
            codecs.lookup(encoding)
        except (LookupError, TypeError) as error:
            raise DataError(f"readOptions.encoding is {encoding!r}, which is not a known encoding") from error

    def read_rows(self, files: Sequence[Location], format_options: FormatOptions) -> dict[str, NDArray[Any]]:
        """Read `{"text": [R], "path": [R]}`, one row for each line."""
        (file,) = files
        encoding = format_options.get("encoding", "utf-8")
        try:
            lines = file.read_bytes().decode(encoding).splitlines()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{file} is not {encoding} text (at byte {error.start}): set readOptions.encoding"
            ) from error
        if format_options.get("drop_empty_lines", False):
            lines = [line for line in lines if line.strip()]
        return {"text": object_array(lines), "path": object_array([str(file)] * len(lines))}


def group_by_folder(entries: Sequence[Entry], suffixes: tuple[str, ...]) -> list[FileGroup]:
    """Group the files of a recursive listing that have one of the suffixes by folder."""
    members_by_folder: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.is_file and _is_data_file(entry.relative_path, suffixes):
            members_by_folder.setdefault(posixpath.dirname(entry.relative_path), []).append(entry)
    return [
        FileGroup(members[0].location.parent(), frozenset(entry.relative_path for entry in members))
        for members in members_by_folder.values()
    ]


def _is_data_file(relative_path: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file is read: it has one of the suffixes and is not hidden."""
    return has_suffix(relative_path, suffixes) and not is_hidden(relative_path)


def _read_image(file: Location, size: Sequence[int] | None, mode: str | None) -> NDArray[Any]:
    """Read an image: `[height, width, …]`."""
    from PIL import Image

    try:
        image: Image.Image = Image.open(io.BytesIO(file.read_bytes()), formats=_PILLOW_FORMATS)
        if size is not None and image.size != (size[1], size[0]):
            image = image.resize((size[1], size[0]), resample=Image.Resampling.BILINEAR)
        if mode is not None and image.mode != mode:
            image = image.convert(mode)
        return np.array(image)
    # Pillow raises SyntaxError for broken PNG files
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{file} cannot be read as an image: {error}; copy it again, or leave it out"
        ) from error
