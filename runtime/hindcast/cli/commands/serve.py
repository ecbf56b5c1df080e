"""`hindcast serve CHECKPOINT --log DATASET`: serve a policy's actions to an application."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from hindcast.cli.command import Checkpoint, Explore, ModuleClass, command
from hindcast.cli.screen import Screen
from hindcast.errors import SpecError

_SWITCH_INTERVAL_SECONDS: Final = 0.0002
"""Time for which a thread runs before Python lets another thread run."""
_WAKE_INTERVAL_SECONDS: Final = 0.5


@command
def serve(
    checkpoint: Checkpoint,
    *,
    screen: Screen,
    log: Annotated[str, typer.Option(metavar="DATASET", help="Folder for the log; a path or a URI.")],
    token_file: Annotated[
        Path, typer.Option(help="File with the token that requests must carry, on its first line.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on. The default is reachable from this machine only.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free port.")
    ] = 9900,
    explore: Explore = None,
    module_class: ModuleClass = None,
) -> None:
    """Serve a policy's actions over HTTP, and log them, until Ctrl-C or SIGTERM.

    PolicyClient is the client. The log is a dataset for `hindcast evaluate --data` and for training.
    """
    from hindcast.formatting import acting
    from hindcast.run.checkpoint_evaluation import choose_explore, load_policy
    from hindcast.serve.http_server import HttpServer
    from hindcast.serve.policy_server import PolicyServer

    token = _read_token(token_file)
    # Python switches threads every 5 ms by default; answers on other connections would wait that long.
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    policy, _folder = load_policy(checkpoint, module_class)
    explore = choose_explore(checkpoint, explore, note=screen.note)
    with PolicyServer(policy, log, explore=explore) as server, HttpServer(server, token, host, port) as http:
        address = f"http://{http.host}:{http.port}"
        screen.show_result(
            {"address": address, "log": log, "explore": explore},
            f"serving at {address}, logging to {log}; {acting(explore)}",
        )
        _wait_for_signal()


def _read_token(file: Path) -> str:
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise SpecError(f"--token-file: {file} cannot be read: {reason}.") from error
    if not lines or not lines[0].strip():
        raise SpecError(f"--token-file: {file} has an empty first line: write the token there.")
    return lines[0].strip()


def _wait_for_signal() -> None:
    """Wait until the process receives SIGINT or SIGTERM."""
    import signal
    import threading

    stop_requested = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: stop_requested.set())
    # With a timeout, because Python runs handlers in this thread, which is not woken if the kernel delivers the signal
    # to a thread of another connection.
    while not stop_requested.wait(_WAKE_INTERVAL_SECONDS):
        pass
