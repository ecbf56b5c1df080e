"""`hindcast demo`: CartPole from nothing to a cloned policy."""

from pathlib import Path
from typing import Annotated

import typer

from hindcast.cli.command import command
from hindcast.cli.commands.run import finish_run
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
    """Train an expert on CartPole, record it, clone it from the recording.

    The YAML file is written to the folder first, for you to read and change; one that is there is used.
    """
    file = folder / FILE_NAME
    if not file.exists():
        _write(file)
    screen.note(f"carrying out {file}")
    finish_run([file], screen)


def _write(file: Path) -> None:
    from hindcast.errors import StorageError

    text = PACKAGED.read_text(encoding="utf-8").replace("FOLDER", file.parent.as_posix())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror}; give another --folder") from error
