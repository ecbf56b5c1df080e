"""The result of a call of the command line."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


Hindcast = Callable[..., CommandResult]
