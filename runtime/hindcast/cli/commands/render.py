"""`hindcast render FILE…`: print what the operator would create, without a cluster."""

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
            help="Values file of the chart, or only its defaults: section. Default: the chart's own values."
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace for resources that do not name one.")
    ] = "default",
) -> None:
    """Print all manifests that the operator would create for the first attempt of each resource."""
    from hindcast.api import load_resources

    # Read before importing the operator, whose extra is not needed to check resources.
    entries = load_resources(files)

    from hindcast_operator.defaults import Defaults, load_defaults
    from hindcast_operator.manifests.build import render as render_attempts

    platform = Defaults() if defaults is None else load_defaults(defaults)
    _refuse_unsupported(entries, platform)
    attempts = render_attempts([entry.resource for entry in entries], platform, namespace)
    for attempt in attempts:
        for reference in attempt.unknown_references:
            screen.note(
                f"{_title(attempt)} refers to {reference}, which is not in any of the files: its outputs are unknown"
            )
    if screen.flags.json:
        screen.print_json({"resources": [attempt.to_json() for attempt in attempts]})
        return
    # Not printed by rich, which replaces `:key:` in a value by an emoji.
    screen.out.file.write(
        "".join(_yaml_text(attempt, comments=not screen.flags.quiet) for attempt in attempts)
    )


def _refuse_unsupported(entries: "Iterable[LoadedResource]", defaults: "Defaults") -> None:
    """Raise SpecError, with file and line, for resources that the operator would refuse with these defaults."""
    from hindcast.errors import SpecError
    from hindcast_operator.manifests import effective_resource, find_refusals

    problems = [
        entry.locate(problem)
        for entry in entries
        for problem in find_refusals(effective_resource(entry.resource, defaults), defaults)
    ]
    if problems:
        raise SpecError.of(problems)


def _yaml_text(attempt: "RenderedAttempt", comments: bool) -> str:
    from hindcast_operator.manifests.yaml_text import yaml_documents

    return (_comment_lines(attempt) if comments else "") + yaml_documents(attempt.manifests)


def _comment_lines(attempt: "RenderedAttempt") -> str:
    pools: dict[str, Any] = attempt.sizes.to_status()["pools"]
    lines = [f"# {_title(attempt)}, attempt 1 of revision {attempt.resource.spec.revision}"]
    for pool, fields in pools.items():
        lines += [f"#   {pool}.{name}: {size['value']} ({size['reason']})" for name, size in fields.items()]
    return "\n".join(lines) + "\n"


def _title(attempt: "RenderedAttempt") -> str:
    return f"{attempt.resource.kind}/{attempt.resource.metadata.name}"
