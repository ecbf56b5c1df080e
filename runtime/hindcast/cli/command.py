"""Code that all commands share: the flags --json, --debug and --quiet, error reporting, common options."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from hindcast.cli.failures import report_failure
from hindcast.cli.screen import Flags, Screen

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Suppress progress and notes.")]

Checkpoint = Annotated[
    str, typer.Argument(help="Checkpoint, run folder (its best checkpoint) or dataset (its policy).")
]
ModuleClass = Annotated[
    str | None, typer.Option(help="package.module:Class of the policy's network, if custom.")
]
Explore = Annotated[
    bool | None,
    typer.Option(
        "--explore/--greedy",
        help="Sample actions, or take the most likely ones. Default: as the run's spec.evaluation judges the policy.",
    ),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the context's.")
]
KubeContext = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig. Default: the current one.")
]

RunNamespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of training/NAME. Default: the context's.")
]

_FLAGS = {"json": Json, "debug": Debug, "quiet": Quiet}

# Typer's copy of click is private, so UsageError is reached through a public subclass.
USAGE_ERROR: type[BaseException] = typer.BadParameter.__mro__[1]
# Exceptions that `main` handles, so commands do not catch them.
_CONTROL_FLOW = (typer.Exit, typer.Abort, USAGE_ERROR, BrokenPipeError)


def add_module_folders(files: Iterable[Path]) -> None:
    """Make the Python modules beside YAML files importable; see `add_module_folder`."""
    for file in files:
        add_module_folder(file.resolve().parent)


def add_module_folder(folder: Path) -> None:
    """Make the Python modules in a folder importable, here and in worker processes, which get `sys.path`."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last: a file such as random.py must not hide an installed module


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a typer command from a function with a parameter `screen`.

    The command has the function's other parameters and the common flags. An exception becomes an error message and an
    exit code. A parameter that is a dataclass becomes one option per field, as the field's typer annotation declares.
    """
    parameters = dict(inspect.signature(function, eval_str=True).parameters)
    del parameters["screen"]
    option_groups = {
        name: parameters.pop(name).annotation
        for name in list(parameters)
        if is_dataclass(parameters[name].annotation)
    }

    @functools.wraps(function)
    def run_command(context: typer.Context, json: bool, debug: bool, quiet: bool, **arguments: Any) -> None:
        flags = Flags(json, debug, quiet)
        screen = Screen(flags | context.obj if isinstance(context.obj, Flags) else flags)
        for name, group in option_groups.items():
            arguments[name] = group(**{field.name: arguments.pop(field.name) for field in fields(group)})
        try:
            function(**arguments, screen=screen)
        except _CONTROL_FLOW:
            raise
        except BaseException as error:  # also KeyboardInterrupt, which has its own exit code
            if isinstance(error, SystemExit):
                raise
            raise typer.Exit(report_failure(error, function.__name__, screen)) from None

    all_parameters = [
        *parameters.values(),
        *chain(*(inspect.signature(group).parameters.values() for group in option_groups.values())),
    ]
    _set_signature(run_command, all_parameters)
    return run_command


def _set_signature(run_command: Callable[..., None], command_parameters: Iterable[inspect.Parameter]) -> None:
    """Set the signature from which typer reads the command's parameters."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", keyword, annotation=typer.Context)]
    parameters += [parameter.replace(kind=keyword) for parameter in command_parameters]
    parameters += [
        inspect.Parameter(name, keyword, annotation=annotation, default=False)
        for name, annotation in _FLAGS.items()
    ]
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
