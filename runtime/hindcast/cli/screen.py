"""Where a command writes: results to stdout, everything else to stderr, as the common flags say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


@dataclass(frozen=True)
class Flags:
    """The flags common to all commands.

    Attributes:
        json: results as JSON on stdout.
        debug: tracebacks on stderr.
        quiet: neither progress nor notes.
    """

    json: bool = False
    debug: bool = False
    quiet: bool = False

    def __or__(self, other: "Flags") -> "Flags":
        """Flags given in either place: before the command or after it."""
        return Flags(self.json or other.json, self.debug or other.debug, self.quiet or other.quiet)


@dataclass(frozen=True)
class Screen:
    """Both output streams, under the flags of this call."""

    flags: Flags = Flags()

    @cached_property
    def out(self) -> "Console":
        """Results."""
        return _console(stderr=False)

    @cached_property
    def err(self) -> "Console":
        """Progress, notes and errors."""
        return _console(stderr=True)

    def without_json(self) -> "Screen":
        """The same for people only."""
        return replace(self, flags=replace(self.flags, json=False))

    def result(self, document: Mapping[str, Any], *renderables: "RenderableType") -> None:
        """Show a command's result: the document as one line of JSON, or the renderables for people."""
        if self.flags.json:
            self.json_line(document)
            return
        from rich.text import Text

        for renderable in renderables:
            if isinstance(renderable, str | Text):
                self.out.print(renderable, markup=False, highlight=False, soft_wrap=True)
            else:
                self.out.print(renderable)

    def json_line(self, document: Mapping[str, Any]) -> None:
        """One JSON document on one line of stdout."""
        self.out.file.write(json.dumps(document, ensure_ascii=False, allow_nan=False, default=str) + "\n")
        self.out.file.flush()

    def note(self, message: str, style: str | None = None) -> None:
        """A line for people on stderr, unless they asked for quiet."""
        if not self.flags.quiet:
            self.err.print(message, style=style, markup=False, highlight=False, soft_wrap=True)


def _console(stderr: bool) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=120)
