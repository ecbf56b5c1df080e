"""The report's page: its content, and its rendering as one self-contained HTML file."""

from __future__ import annotations

import base64
import logging
import platform
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from hindcast.report.canvas import DARK, LIGHT, Picture, render
from hindcast.storage.location import Location
from hindcast.version import __version__, package_versions

Parameters = ParamSpec("Parameters")
_LOG = logging.getLogger("hindcast")
REPORT_FILE = "report.html"
PLOTS_FOLDER = "plots"

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Tile:
    """A key number at the top of the page."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Pictures under a heading.

    Attributes:
        title: the heading.
        pictures: file name without its ending -> picture; None values are left out.
    """

    title: str
    pictures: dict[str, Picture | None]


@dataclass(frozen=True)
class Table:
    """Rows of text under a heading; the first cell names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Command:
    """A text to copy, which is a command, code or YAML, and the purpose of the text."""

    purpose: str
    text: str


@dataclass(frozen=True)
class ProblemRow:
    """A problem with the data."""

    severity: str
    message: str


@dataclass(frozen=True)
class Page:
    """The content of a page.

    Attributes:
        kind: description of the page's subject, in the line above the name.
        name: name of the resource or the dataset, the page's title.
        outcome: the result in one sentence.
        tiles, sections, tables, commands, problems: content; the template puts the problems before the tables.
        spec: the resource as YAML; empty to leave it out.
    """

    kind: str
    name: str
    outcome: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    tables: Sequence[Table]
    commands: Sequence[Command]
    problems: Sequence[ProblemRow] = field(default=())
    spec: str = ""


@dataclass(frozen=True)
class _RenderedPicture:
    """A picture as a PNG in the light theme, and as data URIs in both themes.

    Attributes:
        name: file name without its ending.
        png: the light picture.
        alt: alternative text.
        light, dark: data URIs.
        width, height: size in pixels.
    """

    name: str
    png: bytes
    alt: str
    light: str
    dark: str
    width: int
    height: int


def warn_on_failure(write: Callable[Parameters, str]) -> Callable[Parameters, str | None]:
    """Make a function that writes a page return None, after a warning, if it fails: the work itself has finished."""

    @wraps(write)
    def write_or_warn(*args: Parameters.args, **kwargs: Parameters.kwargs) -> str | None:
        try:
            return write(*args, **kwargs)
        except Exception as error:  # a fault of the page must not make finished work fail
            _LOG.warning("The report could not be written (%s: %s).", type(error).__name__, error)
            return None

    return write_or_warn


def write_page(folder: Location, page: Page) -> str:
    """Write `report.html` and, in the light theme, its pictures as `plots/*.png`.

    Returns:
        The report's path or URI.
    """
    sections = [(section.title, _render_pictures(section)) for section in page.sections]
    for _, pictures in sections:
        for picture in pictures:
            folder.child(PLOTS_FOLDER, f"{picture.name}.png").write_bytes(picture.png)
    report = folder.child(REPORT_FILE)
    footer_note = "This file is self-contained; its images are also in plots/."
    report.write_bytes(_render_html(page, sections, footer_note).encode())
    return str(report)


def write_single_file(file: Location, page: Page) -> str:
    """Write the page as one file that contains its pictures.

    Returns:
        The file's path or URI.
    """
    sections = [(section.title, _render_pictures(section)) for section in page.sections]
    file.write_bytes(_render_html(page, sections, "This file needs nothing else.").encode())
    return str(file)


def _render_pictures(section: Section) -> list[_RenderedPicture]:
    rendered_pictures = []
    for name, picture in section.pictures.items():
        if picture is None:
            continue
        light, dark = render(picture, LIGHT), render(picture, DARK)
        width, height = struct.unpack(">II", light[16:24])  # in the first chunk of a PNG, IHDR
        alt = f"{picture.title}. {picture.caption}."
        rendered_pictures.append(
            _RenderedPicture(name, light, alt, _data_uri(light), _data_uri(dark), width, height)
        )
    return rendered_pictures


def _render_html(
    page: Page, rendered_sections: Sequence[tuple[str, Sequence[_RenderedPicture]]], footer_note: str
) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,  # messages and resources contain the user's text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [{"title": title, "pictures": pictures} for title, pictures in rendered_sections]
    footer = f"Written by Hindcast {__version__}. {footer_note}"
    template = environment.get_template("report.html.j2")
    return template.render(page=page, sections=sections, versions=_versions_table(), footer=footer)


def _versions_table() -> Table:
    """Return a table of one row: versions of packages, and the machine."""
    versions = {"Hindcast": __version__, "Python": platform.python_version()}
    versions |= {package: number for package, number in package_versions().items() if number is not None}
    versions["machine"] = f"{platform.system()} {platform.machine()}"
    return Table("Versions", tuple(versions), [tuple(versions.values())])


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
