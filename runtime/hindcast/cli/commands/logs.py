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

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

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

        _write(
            _read_resource_log(
                connect(namespace, kube_context), parse_target(resource), attempt, follow, screen
            ),
            screen,
        )
        return
    _check_folder(resource)

    from hindcast.cli.cluster.run_storage import folder_log

    path, log = folder_log(resource, attempt)
    screen.note(path)
    _write([log], screen)


def _read_resource_log(
    cluster: "Cluster", target: "ClusterResource", attempt: int | None, follow: bool, screen: Screen
) -> Iterable[bytes]:
    from hindcast.cli.cluster.live_log import live_log, runs_of
    from hindcast.cli.cluster.run_storage import stored_log
    from hindcast.errors import UserError

    document = cluster.resource(target)
    run = _choose_attempt(target, document, runs_of(document), attempt)
    chunks = live_log(cluster, target, run, follow, screen.note)
    if chunks is not None:
        return chunks
    if run.get("outcome") is None and not follow:
        message = document["status"].get("message") or "its pods do not exist yet"
        raise UserError(f"attempt {run['attempt']} of {target} has no log yet: {message}")
    return [stored_log(_resource_at_attempt(document, run), str(run["rayJobName"]))]


def _choose_attempt(
    target: "ClusterResource",
    document: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    attempt: int | None,
) -> Mapping[str, Any]:
    """Return the attempt with this number, or the latest one, of the latest revision that has attempts."""
    from hindcast.errors import UserError

    if not runs:
        status = document.get("status") or {}
        why = status.get("message") or "the operator has not seen it yet"
        raise UserError(f"{target} has no attempts yet: {why}")
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
    """Refuse a text that is neither KIND/NAME nor an existing path, with the nearest kind."""
    from pathlib import Path

    from hindcast.cli.cluster.target import parse_target

    if "://" not in text and not Path(text).exists():  # a URI needs the runtime extra to be checked
        parse_target(text)


def _write(chunks: Iterable[bytes], screen: Screen) -> None:
    """Print line by line, with --json a document per line; without a terminal, remove colours."""
    plain = screen.flags.json or not screen.out.is_terminal
    for line in _lines(chunks):
        text = _COLOURS.sub("", line) if plain else line
        if screen.flags.json:
            screen.json_line({"line": text.removesuffix("\n")})
            continue
        screen.out.file.write(text)
        screen.out.file.flush()


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield lines with their line ends; the last line may have none."""
    import codecs

    rest = ""  # a chunk may end within a line, and within a character
    for text in codecs.iterdecode(chunks, "utf-8", errors="replace"):
        complete, newline, rest = (rest + text).rpartition("\n")
        yield from (complete + newline).splitlines(keepends=True)
    if rest:
        yield rest
