"""`hindcast validate FILE…`: check resources, without the runtime extra or a cluster."""

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

    found = [
        {
            "kind": loaded.resource.kind,
            "name": loaded.resource.metadata.name,
            "file": loaded.file,
            "line": loaded.line,
            "specHash": spec_hash(loaded.resource),
        }
        for loaded in load_resources(files)
    ]
    lines = [f"{one['file']}:{one['line']}: {one['kind']}/{one['name']} is valid" for one in found]
    screen.result({"resources": found}, "\n".join(lines))
