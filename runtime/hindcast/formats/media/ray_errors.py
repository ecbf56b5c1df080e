"""Convert Ray's errors, which contain the tracebacks of other processes as text, to one sentence for the user."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hindcast.errors import DataError, UserCodeError, UserError, WorkerLost

_ANSI_CODE: Final = re.compile(r"\x1b\[[\d;]*m")
_FRAME: Final = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)
_ERROR_LINE: Final = re.compile(r"^([A-Za-z_][\w.<>]*)(?:: (.*))?$", re.MULTILINE)
_NEXT_TRACEBACK: Final = re.compile(r"\n(?:The above exception was|During handling of the above)")
_INSTALLED_FOLDERS: Final = (
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    f"{Path(__file__).parents[2]}{os.sep}",
    "<",
)
"""Beginnings of the file names of code that is not the user's."""


@contextmanager
def ray_errors_in_one_sentence(path: str) -> Iterator[None]:
    """Convert errors of Ray that are raised in the block.

    Args:
        path: file or folder of the data.

    Raises:
        UserCodeError: a function of the user's raised in another process.
        DataError: the data cannot be read.
        WorkerLost: a process of Ray was killed.
    """
    import ray.exceptions

    try:
        yield
    except ray.exceptions.RayError as error:
        raise _to_user_error(error, path) from error


def _to_user_error(error: Exception, path: str) -> UserError:
    text = _ANSI_CODE.sub("", str(error))
    first_traceback = _NEXT_TRACEBACK.split(text, maxsplit=1)[0]
    frames = _FRAME.findall(first_traceback)
    error_lines = [
        match
        for match in _ERROR_LINE.finditer(first_traceback)
        if not match[1].startswith("ray.exceptions.RayTaskError")
    ]
    if not frames or not error_lines:
        return WorkerLost(
            "a process of Ray died while it read or changed the data, perhaps because memory ran out: "
            f"{text.strip().partition(chr(10))[0][:300]}",
            path=path,
        )
    name, message = error_lines[0][1].rpartition(".")[2], (error_lines[0][2] or "no message")[:500]
    user_frames = [frame for frame in frames if not frame[0].startswith(_INSTALLED_FOLDERS)]
    if not user_frames:
        return DataError(f"cannot be read: {name}: {message}", path=path)
    file, line = user_frames[-1]
    return UserCodeError(f"a function on its rows raised {name} at {file}:{line}: {message}", path=path)
