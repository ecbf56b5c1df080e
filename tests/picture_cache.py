"""One picture of each kind is drawn, and stands for the others: those of a run take two seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hindcast.report.canvas import Picture, Theme, render


def render_once(folder: Path) -> Callable[[Picture, Theme], bytes]:
    """`render`, which keeps in a folder what was drawn first by each function that draws."""
    folder.mkdir(exist_ok=True)

    def rendered(picture: Picture, theme: Theme) -> bytes:
        code = picture.draw.__code__
        file = folder / f"{Path(code.co_filename).stem}-{code.co_firstlineno}-{theme.name}.png"
        if not file.exists():
            own = file.with_suffix(f".{os.getpid()}")
            own.write_bytes(render(picture, theme))
            own.replace(file)  # others may draw it, too
        return file.read_bytes()

    return rendered
