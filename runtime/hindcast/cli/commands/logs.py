"""`hindcast logs KIND/NAME`: show the log of an attempt, from its pods or, later, from its run folder."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hindcast.cli.command import KubeContext, Namespace, command
from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from hindcast.cli.cluster.access import Cluster
    from hindcast.cli.cluster.target import ClusterResource

_COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")

TARGET_HELP = "For example training/clone or recording/data; or a run folder or dataset."


@command
def logs(
    resource: Annotated[str, typer.Argument(metavar="KIND/NAME", help=TARGET_HELP)],
    *,
    screen: Screen,
    attempt: Annotated[int | None, typer.Option(min=1, help="Attempt number. Default: the latest.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the attempt ends.")] = False,
    namespace: Namespace = None,
    kube_context: KubeContext = None,
) -> None:
    """Show the log of an attempt's driver: live, or from storage once its pods are gone."""
    from hindcast.cli.cluster.target import is_target, parse_target

    if is_target(resource):
        from hindcast.cli.cluster.access import connect

        _print_lines(
            _read_resource_log(
                connect(namespace, kube_context), parse_target(resource), attempt, follow, screen
            ),
            screen,
        )
        return
    _check_folder(resource)

    from hindcast.cli.cluster.run_storage import read_folder_log

    path, log = read_folder_log(resource, attempt)
    screen.note(path)
    _print_lines([log], screen)


def _read_resource_log(
    cluster: "Cluster", target: "ClusterResource", number: int | None, follow: bool, screen: Screen
) -> Iterable[bytes]:
    """Return the log of the attempt with a number, or by default of the latest attempt, in chunks."""
    from hindcast.cli.cluster.live_log import open_live_log
    from hindcast.cli.cluster.run_storage import attempts_of, read_stored_log, resource_at_attempt
    from hindcast.errors import UserError

    document = cluster.read_resource(target)
    attempt = _choose_attempt(target, document, attempts_of(document), number)
    chunks = open_live_log(cluster, target, attempt, follow, screen.note)
    if chunks is not None:
        return chunks
    if attempt.get("outcome") is None and not follow:
        message = document["status"].get("message") or "its pods do not exist yet"
        raise UserError(f"attempt {attempt['attempt']} of {target} has no log yet: {message}")
    return [read_stored_log(resource_at_attempt(document, attempt), str(attempt["rayJobName"]))]


def _choose_attempt(
    target: "ClusterResource",
    document: Mapping[str, Any],
    attempts: Sequence[Mapping[str, Any]],
    number: int | None,
) -> Mapping[str, Any]:
    """Return an attempt of the latest revision that has attempts.

    Args:
        target: name of the resource, for messages.
        document: the resource with its status.
        attempts: all attempts, newest first.
        number: number of the attempt; None for the latest attempt.

    Raises:
        UserError: there are no attempts, or none with this number.
    """
    from hindcast.errors import UserError

    if not attempts:
        status = document.get("status") or {}
        reason = status.get("message") or "the operator has not seen it yet"
        raise UserError(f"{target} has no attempts yet: {reason}")
    latest_revision = attempts[0]["revision"]
    candidates = [attempt for attempt in attempts if attempt["revision"] == latest_revision]
    match = next((attempt for attempt in candidates if number in (None, attempt["attempt"])), None)
    if match is None:
        numbers = ", ".join(str(attempt["attempt"]) for attempt in reversed(candidates))
        raise UserError(
            f"revision {latest_revision} of {target} has no attempt {number}; its attempts: {numbers}"
        )
    return match


def _check_folder(text: str) -> None:
    """Raise SpecError, which suggests the most similar kind, if a text is neither a URI nor an existing path."""
    from pathlib import Path

    from hindcast.cli.cluster.target import parse_target

    if "://" not in text and not Path(text).exists():  # checking a URI requires the runtime extra
        parse_target(text)


def _print_lines(chunks: Iterable[bytes], screen: Screen) -> None:
    """Print each line, with --json as a document; colours remain only in text on a terminal."""
    should_strip_colours = screen.flags.json or not screen.out.is_terminal
    for line in _split_lines(chunks):
        text = _COLOUR_CODES.sub("", line) if should_strip_colours else line
        if screen.flags.json:
            screen.print_json({"line": text.removesuffix("\n")})
            continue
        screen.out.file.write(text)
        screen.out.file.flush()


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield lines including their line ends, which the last line may lack."""
    import codecs

    incomplete_line = ""  # a chunk may end within a line, and within a character
    for text in codecs.iterdecode(chunks, "utf-8", errors="replace"):
        complete_lines, newline, incomplete_line = (incomplete_line + text).rpartition("\n")
        yield from (complete_lines + newline).splitlines(keepends=True)
    if incomplete_line:
        yield incomplete_line
