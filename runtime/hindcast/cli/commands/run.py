"""`hindcast run FILE…` and `hindcast demo`: run the resources of YAML files on this machine."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hindcast.cli.command import add_module_folders, command
from hindcast.cli.failures import EXIT_INTERRUPTED
from hindcast.cli.screen import Screen

DEMO_FILE = Path(__file__).parents[1] / "demo.yaml"
DEMO_FILE_NAME = "cartpole.yaml"


@command
def run(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="YAML files with resources.")],
    screen: Screen,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run runners, data workers and learners on this Ray cluster. This machine must be one of its nodes. "
            "auto finds the cluster.",
        ),
    ] = None,
) -> None:
    """Record and train, in dependency order. Run the command again to resume, or to show the result.

    With --json, each resource prints one line of JSON when it ends.
    """
    run_files(files, screen, ray)


def run_files(files: list[Path], screen: Screen, ray_address: str | None = None) -> None:
    """Run all resources in the files and report to the screen.

    Args:
        ray_address: address of the Ray cluster that runs them; None for this machine.

    Raises:
        typer.Exit: with code 130, if the run was interrupted.
    """
    from hindcast.api import load_resources

    # Read before the imports below, so that a mistake in a file shows without waiting for torch.
    entries = load_resources(files)
    add_module_folders(files)

    from hindcast.cli.progress import open_reporter
    from hindcast.run.execute import execute

    if ray_address is not None:
        from hindcast.cluster.existing_cluster import execute_on_ray

        execute = partial(execute_on_ray, address=ray_address)
    with open_reporter(screen) as reporter:
        outcomes = execute(entries, reporter)
    if any(outcome.state == "Interrupted" for outcome in outcomes):
        raise typer.Exit(EXIT_INTERRUPTED)


def write_yaml(file: Path, text: str, option: str) -> None:
    """Write a resource file that is about to be run; errors name `option`, which sets the file's folder."""
    from hindcast.errors import StorageError

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error.strerror}; choose another {option}.") from error


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
    file = folder / DEMO_FILE_NAME
    if not file.exists():
        text = DEMO_FILE.read_text(encoding="utf-8").replace("FOLDER", folder.as_posix())
        write_yaml(file, text, "--folder")
    screen.note(f"running {file}")
    run_files([file], screen)
