"""What calling the command line gives."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


Hindcast = Callable[..., CommandResult]
