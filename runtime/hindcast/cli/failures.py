"""Reports a command's failure: one sentence and an exit code."""

import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from hindcast.cli.screen import Screen
from hindcast.errors import UserError

EXIT_KEPT = 8
EXIT_UNDECIDED = 9
EXIT_DEFECT = 70  # EX_SOFTWARE of sysexits.h
EXIT_INTERRUPTED = 130  # as shells report SIGINT: 128 + 2

EXIT_CODES = {
    0: "done, or there was nothing to do",
    1: "any other error, such as a missing extra or a cluster that cannot be read",
    2: "a resource or the command line is invalid",
    3: "recorded data or a checkpoint cannot be used",
    4: "the output folder belongs to something else",
    5: "storage failed or denied a request",
    6: "your own code raised an exception, or returned something unusable",
    7: "worker processes kept dying",
    EXIT_KEPT: "the gate keeps the recorded policy",
    EXIT_UNDECIDED: "the gate is undecided",
    EXIT_DEFECT: "a bug in Hindcast",
    EXIT_INTERRUPTED: "interrupted; run the command again to resume",
}

_PACKAGES_BY_EXTRA = {
    "cluster": "kubernetes",
    "runtime": "fsspec gymnasium jinja2 matplotlib msgpack numpy orjson pyarrow ray safetensors tensorboard torch",
    "serve": "httptools starlette uvicorn",
}
_EXTRA_BY_PACKAGE = {
    package: extra for extra, packages in _PACKAGES_BY_EXTRA.items() for package in packages.split()
}


def report_failure(error: BaseException, command: str, screen: Screen) -> int:
    """Print an error to stderr and, with --json, also as a document to stdout; return the exit code."""
    message, exit_code = _message_and_code(error, command, screen)
    if screen.flags.debug:
        traceback.print_exception(error, file=sys.stderr)
    for line in message.splitlines():
        text, style = (line, None) if exit_code == EXIT_INTERRUPTED else (f"error: {line}", "red")
        # Without markup, because a message may contain brackets; without wrapping, so that users can copy paths.
        screen.err.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
    if screen.flags.json:
        screen.print_json({"error": failure_document(error, message, exit_code)})
    return exit_code


def failure_document(error: BaseException, message: str, exit_code: int) -> dict[str, Any]:
    """Return the document that `--json` prints for a failure."""
    problems = error.problems if isinstance(error, UserError) else ()
    return {
        "type": type(error).__name__,
        "message": message,
        "exitCode": exit_code,
        "problems": [problem.to_json() for problem in problems],
    }


def _message_and_code(error: BaseException, command: str, screen: Screen) -> tuple[str, int]:
    if isinstance(error, UserError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", EXIT_INTERRUPTED
    package = _missing_package(error)
    if package is not None:
        install = f"pip install 'hindcast-rl[{_EXTRA_BY_PACKAGE[package]}]'"
        return f"hindcast {command} requires {package}, which is not installed: {install}", 1
    return _defect_message(error, screen), EXIT_DEFECT


def _missing_package(error: BaseException) -> str | None:
    """Return the package that an import did not find, if an extra installs it; else None."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    return package if package in _EXTRA_BY_PACKAGE else None


def _defect_message(error: BaseException, screen: Screen) -> str:
    message = f"this is a bug in Hindcast, not in your files: {type(error).__name__}: {error}"
    if screen.flags.debug:
        return f"{message} (traceback above)"
    # The file is kept, so that the user can attach it to a report.
    with tempfile.NamedTemporaryFile(
        "w", prefix="hindcast-", suffix=".traceback.txt", delete=False, encoding="utf-8"
    ) as file:
        file.write("".join(traceback.format_exception(error)))
    return f"{message}; please report it with the traceback in {Path(file.name)} (--debug prints it here)"
