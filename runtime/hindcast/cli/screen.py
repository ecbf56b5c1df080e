"""The output streams of a command: results to stdout, everything else to stderr, subject to the common flags."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text


@dataclass(frozen=True)
class Flags:
    """The flags common to all commands.

    Attributes:
        json: print results as JSON on stdout.
        debug: print tracebacks on stderr.
        quiet: print neither progress nor notes.
    """

    json: bool = False
    debug: bool = False
    quiet: bool = False

    def __or__(self, other: "Flags") -> "Flags":
        """Combine flags before the command's name with flags after it: a flag is set if either has it."""
        return Flags(self.json or other.json, self.debug or other.debug, self.quiet or other.quiet)


@dataclass(frozen=True)
class Screen:
    """The two output streams of a command, and the flags with which it was called."""

    flags: Flags = Flags()

    @cached_property
    def out(self) -> "Console":
        """Console for results."""
        return _make_console(stderr=False)

    @cached_property
    def err(self) -> "Console":
        """Console for progress, notes and errors."""
        return _make_console(stderr=True)

    def without_json(self) -> "Screen":
        """Return the same screen without JSON output."""
        return replace(self, flags=replace(self.flags, json=False))

    def show_result(self, document: Mapping[str, Any], *renderables: "RenderableType") -> None:
        """Show a command's result: the document as one line of JSON, or the renderables for people."""
        if self.flags.json:
            self.print_json(document)
            return
        from rich.text import Text

        for renderable in renderables:
            if isinstance(renderable, str | Text):
                print_text(self.out, renderable)
            else:
                self.out.print(renderable)

    def print_json(self, document: Mapping[str, Any]) -> None:
        """Print a JSON document on one line of stdout."""
        # Not through rich, which would wrap the line.
        self.out.file.write(json.dumps(document, ensure_ascii=False, allow_nan=False, default=str) + "\n")
        self.out.file.flush()

    def note(self, message: str, style: str | None = None) -> None:
        """Print a line to stderr, except with --quiet."""
        if not self.flags.quiet:
            print_text(self.err, message, style)


def print_text(console: "Console", text: "str | Text", style: str | None = None) -> None:
    """Print text: on a terminal wrapped between words, elsewhere as it is.

    Text with a word that is longer than a line, such as a path, is not wrapped, so that it can be copied whole.
    """
    can_wrap = console.is_terminal and max(map(len, str(text).split()), default=0) <= console.width
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=not can_wrap)


def _make_console(stderr: bool) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr)
    # Without a terminal rich assumes 80 columns and would wrap tables in logs and pipes.
    return console if console.is_terminal else Console(stderr=stderr, width=120)
