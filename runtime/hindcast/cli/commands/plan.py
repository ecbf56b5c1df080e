"""`hindcast plan FILE`: show what a training would do, without doing it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hindcast.cli.command import add_module_folders, command
from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from rich.tree import Tree


@command
def plan(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="YAML files with resources.")],
    screen: Screen,
) -> None:
    """Show each training's dataset, feed, windows, units, batch sizes, updates per epoch and model size."""
    from hindcast.api import load_resources

    # Read before the imports below, so that a mistake in a file shows without waiting for torch.
    resources = [entry.resource for entry in load_resources(files)]
    add_module_folders(files)

    from rich.tree import Tree

    from hindcast.errors import SpecError
    from hindcast.run.planning import plan as plan_training

    trainings = [resource for resource in resources if resource.kind == "OfflineTraining"]
    if not trainings:
        names = ", ".join(map(str, files))
        raise SpecError(f"{names} contains no OfflineTraining to plan.")
    plans = {
        f"{training.kind}/{training.metadata.name}": plan_training(training, resources)
        for training in trainings
    }
    trees = []
    for name, content in plans.items():
        trees.append(Tree(f"[bold]{name}", guide_style="dim"))
        _add_branches(trees[-1], content)
    screen.show_result({"plans": plans}, *trees)


def _add_branches(tree: "Tree", content: Mapping[str, Any]) -> None:
    for key, value in content.items():
        if isinstance(value, Mapping):
            _add_branches(tree.add(_label(key)), value)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            branch = tree.add(_label(key))
            for index, entry in enumerate(value):
                _add_branches(branch.add(f"[dim]{index}"), entry)
        else:
            tree.add(f"{_label(key)}: [cyan]{_format_value(key, value)}")


def _label(key: str) -> str:
    """Return a key as words: `runFolder` -> `run folder`."""
    return re.sub(r"(?<=[a-z])[A-Z]", lambda match: f" {match[0].lower()}", key)


def _format_value(key: str, value: Any) -> str:
    from rich.markup import escape

    from hindcast import formatting

    if isinstance(value, int) and key.endswith(("Bytes", "Budget")):
        return formatting.size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return escape(", ".join(map(str, value)))
    return "-" if value is None else escape(str(value))
