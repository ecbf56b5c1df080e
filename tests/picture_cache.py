"""Draw one picture of each kind and reuse it, since drawing all pictures of a run takes two seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hindcast.report.canvas import Picture, Theme, render


def render_once(folder: Path) -> Callable[[Picture, Theme], bytes]:
    """Return a stand-in for `render`, which stores the first picture of each drawing function in a folder.

    For further pictures of the same function and theme, it returns the stored picture.
    """
    folder.mkdir(exist_ok=True)

    def render_cached(picture: Picture, theme: Theme) -> bytes:
        code = picture.draw.__code__
        file = folder / f"{Path(code.co_filename).stem}-{code.co_firstlineno}-{theme.name}.png"
        if not file.exists():
            temporary_file = file.with_suffix(f".{os.getpid()}")
            temporary_file.write_bytes(render(picture, theme))
            temporary_file.replace(file)  # another process may draw the same picture at this time
        return file.read_bytes()

    return render_cached
