"""File systems given as Python objects: the schemes by which paths, which are text, find them in this process."""

from __future__ import annotations

_named: dict[str, object] = {}


def scheme_of(filesystem: object) -> str:
    """The scheme of a file system, such as `S3FileSystem-1`; equal ones share it."""
    for scheme, known in _named.items():
        if type(known) is type(filesystem) and known == filesystem:
            return scheme
    scheme = f"{type(filesystem).__name__}-{len(_named) + 1}"
    _named[scheme] = filesystem
    return scheme


def filesystem_of(scheme: str) -> object | None:
    """The file system that was given the scheme; None where it is another's."""
    return _named.get(scheme)
