"""`hindcast validate FILE…`: check resources without the runtime extra or a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from hindcast.cli.command import command
from hindcast.cli.screen import Screen


@command
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="YAML files with resources.")],
    screen: Screen,
) -> None:
    """Check the resources in YAML files, including algorithm options, without running anything."""
    from hindcast.api import load_resources, spec_hash
    from hindcast.errors import SpecError
    from hindcast.run.registered_actions import find_action_problem

    entries = load_resources(files)
    problems = [
        entry.locate(problem)
        for entry in entries
        if (problem := find_action_problem(entry.resource)) is not None
    ]
    if problems:
        raise SpecError.of(problems)
    resources = [
        {
            "kind": entry.resource.kind,
            "name": entry.resource.metadata.name,
            "file": entry.file,
            "line": entry.line,
            "specHash": spec_hash(entry.resource),
        }
        for entry in entries
    ]
    lines = [
        f"{resource['file']}:{resource['line']}: {resource['kind']}/{resource['name']} is valid"
        for resource in resources
    ]
    screen.show_result({"resources": resources}, "\n".join(lines))
