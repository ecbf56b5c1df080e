"""`CommandResult`: exit code, stdout and stderr of a command. `Hindcast`: the type of the fixture `hindcast`."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


Hindcast = Callable[..., CommandResult]
