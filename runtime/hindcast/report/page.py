"""The report's page: its content, and how it becomes one self-contained HTML file."""

from __future__ import annotations

import base64
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hindcast.report.canvas import DARK, LIGHT, Picture, render
from hindcast.storage.location import Location
from hindcast.version import __version__, package_versions

REPORT_FILE = "report.html"
PLOTS_FOLDER = "plots"

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Tile:
    """One of the key numbers at the top."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Pictures under a heading: file name (without ending) -> picture; a picture that is None is left out."""

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
    """Something to type, and what it does."""

    what: str
    text: str


@dataclass(frozen=True)
class ProblemRow:
    """Something wrong with the data."""

    severity: str
    message: str


@dataclass(frozen=True)
class Page:
    """A whole report."""

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
class _Shown:
    """A picture as data URIs, in both themes, and the light one's bytes."""

    name: str
    png: bytes
    alt: str
    light: str
    dark: str
    width: int
    height: int


def write_page(folder: Location, page: Page) -> str:
    """Write `report.html` and the light pictures as `plots/*.png`.

    Returns:
        The report's path as the user would write it.
    """
    drawn = [(section.title, _draw(section)) for section in page.sections]
    for _, pictures in drawn:
        for picture in pictures:
            folder.child(PLOTS_FOLDER, f"{picture.name}.png").write_bytes(picture.png)
    report = folder.child(REPORT_FILE)
    about = "This file is self-contained; its images are also in plots/."
    report.write_bytes(_html(page, drawn, about).encode())
    return str(report)


def write_alone(file: Location, page: Page) -> str:
    """Write the page as one file, its pictures in it.

    Returns:
        Its path as the user would write it.
    """
    drawn = [(section.title, _draw(section)) for section in page.sections]
    file.write_bytes(_html(page, drawn, "This file needs nothing else.").encode())
    return str(file)


def _draw(section: Section) -> list[_Shown]:
    shown = []
    for name, picture in section.pictures.items():
        if picture is None:
            continue
        light, dark = render(picture, LIGHT), render(picture, DARK)
        width, height = struct.unpack(">II", light[16:24])  # of the PNG's first chunk, IHDR
        alt = f"{picture.title}. {picture.caption}."
        shown.append(_Shown(name, light, alt, _data_uri(light), _data_uri(dark), width, height))
    return shown


def _html(page: Page, drawn: Sequence[tuple[str, Sequence[_Shown]]], about: str) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [{"title": title, "pictures": pictures} for title, pictures in drawn]
    footer = f"Written by Hindcast {__version__}. {about}"
    template = environment.get_template("report.html.j2")
    return template.render(page=page, sections=sections, versions=_versions(), footer=footer)


def _versions() -> Table:
    """What it ran on, in one row."""
    found = {"Hindcast": __version__, "Python": platform.python_version()}
    found |= {package: number for package, number in package_versions().items() if number is not None}
    found["machine"] = f"{platform.system()} {platform.machine()}"
    return Table("Versions", tuple(found), [tuple(found.values())])


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
