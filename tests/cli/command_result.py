"""`CommandResult`: exit code, stdout and stderr of a command. `Hindcast`: the type of the fixture `hindcast`."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    def assert_refused(self, code: int, sentence: str) -> None:
        """Check that the command printed nothing but one line, an error that contains the sentence."""
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self
        assert self.err.startswith("error: ") and sentence in self.err


Hindcast = Callable[..., CommandResult]
