"""Options shared by several commands, one by one or as a dataclass that a command takes as one argument."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_type_hints

import typer

Checkpoint = Annotated[
    str, typer.Argument(help="Checkpoint, run folder (its best checkpoint) or dataset (its policy).")
]
ModuleClass = Annotated[
    str | None, typer.Option(help="package.module:Class of the policy's network, if custom.")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the context's.")
]
KubeContext = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig. Default: the current one.")
]


def with_options(**groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of dataclasses: one for each field, whose annotation is typer's.

    Args:
        groups: the function's parameter -> the dataclass whose instance it gets.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(**arguments: Any) -> None:
            for name, group in groups.items():
                own = {field.name: arguments.pop(field.name) for field in fields(group)}
                arguments[name] = group(**own)
            function(**arguments)

        signature = inspect.signature(function, eval_str=True)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in groups]
        added = [parameter for group in groups.values() for parameter in _parameters(group)]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [parameter.replace(kind=keyword) for parameter in (*kept, *added)]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        del call.__wrapped__  # whose signature would be read instead
        return call

    return decorate


def _parameters(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(group)
    ]
