"""The `hindcast` command."""
# Commands import their packages when they run: with torch and pyarrow imported here, --help would take seconds.

import sys
from pathlib import Path
from typing import Annotated

import typer

from hindcast.cli.command import USAGE_ERROR, Debug, Json, Quiet, add_module_folder
from hindcast.cli.commands.audit import audit
from hindcast.cli.commands.compare import compare
from hindcast.cli.commands.data import convert, data
from hindcast.cli.commands.evaluate import evaluate
from hindcast.cli.commands.export import export
from hindcast.cli.commands.gate import gate
from hindcast.cli.commands.init import init
from hindcast.cli.commands.inspect import inspect
from hindcast.cli.commands.logs import logs
from hindcast.cli.commands.plan import plan
from hindcast.cli.commands.render import render
from hindcast.cli.commands.run import demo, run
from hindcast.cli.commands.serve import serve
from hindcast.cli.commands.status import status
from hindcast.cli.commands.train import train
from hindcast.cli.commands.tune import tune
from hindcast.cli.commands.validate import validate
from hindcast.cli.commands.version import version
from hindcast.cli.failures import EXIT_CODES, EXIT_INTERRUPTED

_EPILOG = "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + "."

app = typer.Typer(
    name="hindcast",
    help="Offline reinforcement learning from recorded experience.",
    epilog=_EPILOG,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

for function in (
    init,
    run,
    train,
    tune,
    validate,
    inspect,
    convert,
    evaluate,
    gate,
    compare,
    export,
    serve,
    plan,
    render,
    status,
    logs,
    demo,
    version,
):
    app.command()(function)
app.add_typer(data, name="data")
app.add_typer(audit, name="audit")


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from hindcast.version import __version__

        typer.echo(f"hindcast {__version__}")
        raise typer.Exit()


@app.callback()
def _set_flags(
    context: typer.Context,
    json: Json = False,
    debug: Debug = False,
    quiet: Quiet = False,
    version: Annotated[  # noqa: ARG001  (its callback shows it)
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show Hindcast's version and exit."
        ),
    ] = False,
) -> None:
    from hindcast.cli.screen import Flags

    context.obj = Flags(json, debug, quiet)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit()


def main() -> None:
    """Run the command line and exit with its exit code."""
    add_module_folder(Path.cwd())
    try:
        code = app(prog_name="hindcast", standalone_mode=False)
    except USAGE_ERROR as error:
        if str(error):  # empty where a group without a command has printed its help
            print(f"error: {_usage_message(error)}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of the output has closed it, as `| head` does
        sys.stdout = None  # else the interpreter flushes into the closed pipe at exit and prints an error
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    # Outside standalone mode, click returns the code of a typer.Exit, or the result of the command: None.
    sys.exit(code if isinstance(code, int) else 0)


def _usage_message(error: BaseException) -> str:
    """Describe a mistake in the command line, and name the command's help."""
    if isinstance(error, typer.BadParameter) and isinstance(error.__cause__, ValueError):
        error.message = _describe_value_error(error.__cause__)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    message = " ".join(message.split()).rstrip(".")
    full_stop = "" if message.endswith("?") else "."
    context = getattr(error, "ctx", None)
    command_path = context.command_path if context is not None else "hindcast"
    return f"{message[:1].lower()}{message[1:]}{full_stop} See {command_path} --help."


def _describe_value_error(error: ValueError) -> str:
    """Describe why an option's value is invalid; Typer lets pydantic parse some options."""
    from pydantic import ValidationError

    from hindcast.api.sentences import value_problem

    return value_problem(error) if isinstance(error, ValidationError) else str(error)


if __name__ == "__main__":
    main()
