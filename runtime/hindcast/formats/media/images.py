"""The format "Images": a row for each image file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hindcast.episodes.block import Block
from hindcast.errors import DataError
from hindcast.formats.format import Format, Group, Piece, ReadOptions
from hindcast.formats.media.folders import BATCH_SIZE, files_of, folders_of, pieces_of
from hindcast.formats.media.mapping import episodes_of, objects
from hindcast.formats.tables.read_options import check_options
from hindcast.storage.location import Entry, Location

_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif")
_KINDS: Final = ("PNG", "JPEG", "TIFF", "BMP", "GIF")
_MODES: Final = ("1", "L", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F")
_SIZE: Final = "size"
_MODE: Final = "mode"


class _Options(NamedTuple):
    """`readOptions`: height and width, and the colours (Pillow's mode), that images are brought to."""

    size: tuple[int, int] | None
    mode: str | None


class Images(Format):
    """image files; those of a folder are mapped together, so that they can be an episode."""

    name = "Images"

    def recognises(self, location: Location) -> bool:
        """By the name; or a folder."""
        return location.name.lower().endswith(_SUFFIXES) or location.is_folder()

    def groups(self, entries: Sequence[Entry]) -> list[Group]:
        """Each folder with its images."""
        return folders_of(entries, _SUFFIXES)

    def pieces(self, location: Location, options: ReadOptions) -> list[Piece]:
        """See `pieces_of`."""
        _options(options)
        return pieces_of(location, options, self.name, _SUFFIXES, (_SIZE, _MODE))

    def read(self, piece: Piece, options: ReadOptions) -> Iterator[Block]:
        """The episodes that the user's class makes of `{"image": [R, height, width, …], "path": [R]}`.

        Raises:
            DataError: a file that is not an image.
            UserCodeError: the class raised.
        """
        own, files = _options(options), list(files_of(piece))
        images = [_image(file, own) for file in files]
        same = len({(image.shape, image.dtype) for image in images}) == 1
        rows = {
            "image": np.stack(images) if same else objects(images),
            "path": objects([str(file) for file in files]),
        }
        yield from episodes_of(rows, options, str(piece.location))


def _image(file: Location, own: _Options) -> NDArray[Any]:
    from PIL import Image

    try:
        image: Image.Image = Image.open(io.BytesIO(file.read_bytes()), formats=_KINDS)
        if own.size is not None and image.size != own.size[::-1]:
            image = image.resize(own.size[::-1], resample=Image.Resampling.BILINEAR)
        if own.mode is not None and image.mode != own.mode:
            image = image.convert(own.mode)
        return np.array(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(
            f"{file} cannot be read as an image: {error}; copy it again, or leave it out"
        ) from error


def _options(options: ReadOptions) -> _Options:
    given = check_options("Images", options.options, (_SIZE, _MODE, BATCH_SIZE))
    size, mode = given.get(_SIZE), given.get(_MODE)
    if size is not None and not (
        isinstance(size, list | tuple)
        and len(size) == 2
        and all(type(side) is int and side > 0 for side in size)
    ):
        raise DataError(f"readOptions.{_SIZE} is {size!r}: expected [height, width]")
    if mode is not None and mode not in _MODES:
        raise DataError(f"readOptions.{_MODE} is {mode!r}: allowed are {', '.join(_MODES)}")
    return _Options(None if size is None else (size[0], size[1]), mode)
