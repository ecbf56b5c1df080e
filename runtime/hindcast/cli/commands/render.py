"""`hindcast render FILE…`: what the operator would create, without a cluster."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hindcast.cli.command import command
from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from hindcast.api import LoadedResource
    from hindcast_operator.defaults import Defaults
    from hindcast_operator.manifests.build import RenderedAttempt


@command
def render(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="YAML files with resources.")],
    screen: Screen,
    defaults: Annotated[
        Path | None,
        typer.Option(
            help="Values file of the chart; its defaults: are merged in. Default: the chart's own values."
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace for resources that do not name one.")
    ] = "default",
) -> None:
    """Print all manifests that the operator would create for the first attempt of each resource."""
    from hindcast.api import load_resources

    loaded = load_resources(files)

    from hindcast_operator.defaults import Defaults, load_defaults
    from hindcast_operator.manifests.build import render as manifests_of

    platform = Defaults() if defaults is None else load_defaults(defaults)
    _refuse(loaded, platform)
    found = manifests_of([entry.resource for entry in loaded], platform, namespace)
    for one in found:
        for reference in one.unknown_references:
            screen.note(
                f"{_title(one)} refers to {reference}, which is in none of the files: its outputs are unknown"
            )
    if screen.flags.json:
        screen.json_line({"resources": [one.to_json() for one in found]})
        return
    # Not through rich, which would take `:key:` in a value for an emoji.
    screen.out.file.write("".join(_text(one, comments=not screen.flags.quiet) for one in found))


def _refuse(loaded: "Iterable[LoadedResource]", defaults: "Defaults") -> None:
    from hindcast.errors import SpecError
    from hindcast_operator.manifests import effective_resource, refusals

    problems = [
        f"{entry.at(*_steps(sentence))}: {sentence}"
        for entry in loaded
        for sentence in refusals(effective_resource(entry.resource, defaults), defaults)
    ]
    if problems:
        raise SpecError("\n".join(problems))


def _steps(sentence: str) -> list[str | int]:
    """The field that a sentence begins with: `spec.input[0].path` is spec, input, 0, path."""
    steps = re.findall(r"[^.\[\]]+", sentence.split(" ", 1)[0])
    return [int(step) if step.isdigit() else step for step in steps]


def _text(one: "RenderedAttempt", comments: bool) -> str:
    from hindcast_operator.manifests.yaml_text import yaml_documents

    return (_comments(one) if comments else "") + yaml_documents(one.manifests)


def _comments(one: "RenderedAttempt") -> str:
    pools: dict[str, Any] = one.sizes.to_status()["pools"]
    lines = [f"# {_title(one)}, attempt 1 of revision {one.resource.spec.revision}"]
    for pool, fields in pools.items():
        lines += [
            f"#   {pool}.{name}: {found['value']} ({found['reason']})" for name, found in fields.items()
        ]
    return "\n".join(lines) + "\n"


def _title(one: "RenderedAttempt") -> str:
    return f"{one.resource.kind}/{one.resource.metadata.name}"
