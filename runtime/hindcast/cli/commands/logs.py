"""`hindcast logs KIND/NAME`: show the log of an attempt, from its pods or, later, from its run folder."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hindcast.cli.command import KubeContext, Namespace, command
from hindcast.cli.screen import Screen

if TYPE_CHECKING:
    from hindcast.api import Resource
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
    cluster: "Cluster", target: "ClusterResource", attempt: int | None, follow: bool, screen: Screen
) -> Iterable[bytes]:
    from hindcast.cli.cluster.live_log import open_live_log, runs_of
    from hindcast.cli.cluster.run_storage import read_stored_log
    from hindcast.errors import UserError

    document = cluster.read_resource(target)
    run = _choose_attempt(target, document, runs_of(document), attempt)
    chunks = open_live_log(cluster, target, run, follow, screen.note)
    if chunks is not None:
        return chunks
    if run.get("outcome") is None and not follow:
        message = document["status"].get("message") or "its pods do not exist yet"
        raise UserError(f"attempt {run['attempt']} of {target} has no log yet: {message}")
    return [read_stored_log(_resource_at_attempt(document, run), str(run["rayJobName"]))]


def _choose_attempt(
    target: "ClusterResource",
    document: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    attempt: int | None,
) -> Mapping[str, Any]:
    """Return an attempt of the latest revision that has attempts: the one with this number; the latest for None."""
    from hindcast.errors import UserError

    if not runs:
        status = document.get("status") or {}
        reason = status.get("message") or "the operator has not seen it yet"
        raise UserError(f"{target} has no attempts yet: {reason}")
    revision_runs = [run for run in runs if run["revision"] == runs[0]["revision"]]
    attempt_run = next((run for run in revision_runs if attempt in (None, run["attempt"])), None)
    if attempt_run is None:
        numbers = ", ".join(str(run["attempt"]) for run in reversed(revision_runs))
        raise UserError(
            f"revision {runs[0]['revision']} of {target} has no attempt {attempt}; its attempts: {numbers}"
        )
    return attempt_run


def _resource_at_attempt(document: Mapping[str, Any], run: Mapping[str, Any]) -> "Resource":
    """Return the resource with the revision and the absolute paths of an attempt."""
    from hindcast.api import validate_resource
    from hindcast_operator.manifests.storage import with_absolute_paths

    resource = validate_resource({key: value for key, value in document.items() if key != "status"})
    defaults = (run.get("inputs") or {}).get("defaults") or {}
    absolute_resource = with_absolute_paths(resource, defaults.get("storageRoot"))
    spec = absolute_resource.spec.model_copy(update={"revision": run["revision"]})
    return absolute_resource.model_copy(update={"spec": spec})


def _check_folder(text: str) -> None:
    """Raise SpecError, with the nearest kind, if a text is neither a URI nor an existing path."""
    from pathlib import Path

    from hindcast.cli.cluster.target import parse_target

    if "://" not in text and not Path(text).exists():  # checking a URI requires the runtime extra
        parse_target(text)


def _print_lines(chunks: Iterable[bytes], screen: Screen) -> None:
    """Print line by line, with --json one document per line; without a terminal, without colours."""
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
