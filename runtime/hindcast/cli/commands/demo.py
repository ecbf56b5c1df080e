"""`hindcast demo`: CartPole from nothing to a cloned policy."""

from pathlib import Path
from typing import Annotated

import typer

from hindcast.cli.command import command
from hindcast.cli.commands.run import finish_run, write_yaml
from hindcast.cli.screen import Screen

PACKAGED = Path(__file__).parents[1] / "demo.yaml"
FILE_NAME = "cartpole.yaml"


@command
def demo(
    screen: Screen,
    folder: Annotated[Path, typer.Option(help="Folder for the YAML file, the data and the run.")] = Path(
        "demo"
    ),
) -> None:
    """Train an expert on CartPole, record it, and clone it from the recording.

    The YAML file is written to the folder first, for you to read and change. An existing file is used unchanged.
    """
    file = folder / FILE_NAME
    if not file.exists():
        text = PACKAGED.read_text(encoding="utf-8").replace("FOLDER", folder.as_posix())
        write_yaml(file, text, "--folder")
    screen.note(f"running {file}")
    finish_run([file], screen)
