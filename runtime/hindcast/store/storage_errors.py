"""What storage refuses, as one sentence with the path and the reason."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.fs as pafs

from hindcast.errors import DataError, StorageError, UserError
from hindcast.store.store_failures import failure_of

_REASONS = {
    errno.ENOSPC: "the disk is full: free some space, then run again",
    errno.EDQUOT: "the quota is used up: free some space, then run again",
    errno.EROFS: "the file system is read-only: choose another path",
    errno.EACCES: "permission denied: choose another path or change its permissions",
    errno.EPERM: "the operation is not permitted: choose another path or change its permissions",
    errno.ENOTDIR: "a part of the path is a file, not a folder: choose another path",
    errno.EEXIST: "a file is in the way: choose another path",
    errno.EISDIR: "it is a folder, and a file was expected",
    errno.EIO: "the disk reported an input/output error",
}


@contextmanager
def storage_errors(
    action: str, uri: str, filesystem: pafs.FileSystem, missing_is_error: bool = True
) -> Iterator[None]:
    """Turn what the file system raises into a `StorageError` (reading what is not there: `DataError`).

    fsspec drivers raise exceptions of their cloud's client, so there every exception counts as the storage's.
    """
    foreign = isinstance(filesystem, pafs.PyFileSystem)
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        if not missing_is_error:
            raise
        if action == "read":
            raise DataError(f"cannot read {uri}: it does not exist") from error
        raise StorageError(f"cannot {action} {uri}: {_missing(filesystem)}") from error
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"cannot {action} {uri}: {reason_of(error)}") from error
    except Exception as error:
        if not foreign:
            raise
        raise StorageError(f"cannot {action} {uri}: {reason_of(error)}") from error


def _missing(filesystem: pafs.FileSystem) -> str:
    if isinstance(filesystem, pafs.LocalFileSystem):
        return "there is no such file or folder"
    return "there is no such bucket, container or folder: make it, or correct its name"


def reason_of(error: BaseException) -> str:
    """Why storage failed, in words."""
    if isinstance(error, OSError) and error.errno in _REASONS and error.filename is not None:
        return _REASONS[error.errno]
    failure = failure_of(error)
    if failure is not None:
        return failure.words
    if isinstance(error, OSError) and error.errno in _REASONS:
        return _REASONS[error.errno]
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
