"""`Dataset`: an HDF5 dataset by its identifier. h5py's own asks the file for type and shape with each use."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Dataset:
    """A dataset of an open file.

    Args:
        identifier: `h5py.h5d.DatasetID`.

    Attributes:
        dtype: as NumPy's; text and bytes of any number are objects.
        shape: `()` of a single value, and of one that holds none.
        is_empty: whether it holds none.
    """

    def __init__(self, identifier: Any) -> None:
        self.dtype: np.dtype = identifier.dtype
        self.shape: tuple[int, ...] = identifier.shape or ()
        self.is_empty = identifier.shape is None
        self._id = identifier

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def name(self) -> str:
        """Its path in the file."""
        return str(self._slow.name)

    @property
    def is_text(self) -> bool:
        """Whether it holds strings."""
        import h5py

        return self.dtype.kind in "OS" and h5py.check_string_dtype(self.dtype) is not None

    @property
    def is_bytes(self) -> bool:
        """Whether each element is bytes of any number, as Minari stores compressed images."""
        import h5py

        return self.dtype.kind == "O" and h5py.check_vlen_dtype(self.dtype) == np.dtype(np.uint8)

    @property
    def is_external(self) -> bool:
        """Whether its data may be in other files."""
        import h5py

        if self._id.get_offset() is not None:  # in this file, in one piece
            return False
        stored = self._id.get_create_plist()
        return bool(stored.get_layout() == h5py.h5d.VIRTUAL or stored.get_external_count())

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """`[stop - start, *shape]`: numbers in native byte order, text as objects of `str`, else as they are."""
        import h5py

        if self.is_text:
            return np.asarray(self._slow.asstr()[start:stop], dtype=object)
        is_whole = start == 0 and stop in (None, self.shape[0] if self.shape else None)
        if not is_whole or self.dtype.kind not in "biuf" or not self.shape:
            array = np.asarray(self._slow[start:stop] if self.shape else self._slow[()])
            return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        out = np.empty(self.shape, dtype=self.dtype.newbyteorder("="))
        if out.size:
            self._id.read(h5py.h5s.ALL, h5py.h5s.ALL, out)
        return out

    @cached_property
    def _slow(self) -> Any:
        import h5py

        return h5py.Dataset(self._id, readonly=True)
