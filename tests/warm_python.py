"""Python programs that start in milliseconds: each is forked from a process with Hindcast or RLlib imported already.

A program runs in a process of its own, with its caller's files, folder and environment, as if the interpreter had
started it; but with Hindcast deprecation warnings are errors, unless the program is an installed package's.

    python warm_python.py ADDRESS MODULE…    (the process that is forked; ADDRESS is a socket to be made)
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_COMMAND = """#!{python} -IS
import json, os, socket, sys
request = json.dumps([[{name!r}, *sys.argv[1:]], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    pid, status = server.makefile().read().split()
sys.exit(int(status) % 256)
"""


_HINDCAST = "hindcast.cli.main"
_TAKE_LONG_TO_IMPORT = (
    _HINDCAST,
    "hindcast.run.carry_out",
    "hindcast.run.training",
    "hindcast.record.pool",
    "hindcast.report.writing",
    "tensorboard.summary.writer.event_file_writer",
)


class WarmPython:
    """What starts programs.

    Attributes:
        folder: holds `python` and `hindcast`, to be put first on PATH.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._address = str(folder / "socket")
        for name in ("python", "hindcast"):
            command = folder / name
            command.write_text(_COMMAND.format(python=sys.executable, address=self._address, name=name))
            command.chmod(0o755)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Program:
        """Start `python ARGUMENTS…`."""
        return Program(self._address, [["python", *arguments], str(Path.cwd()), dict(environment)])


class Program:
    """A program that runs, with what `subprocess.Popen` has of it.

    Attributes:
        stdout: what it prints, errors too.
        returncode: None while it runs; minus the signal that killed it.
    """

    def __init__(self, address: str, request: list[Any]) -> None:
        message = json.dumps(request).encode()
        reading, writing = os.pipe()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(address)
        nothing = os.open(os.devnull, os.O_RDONLY)
        socket.send_fds(self._server, [len(message).to_bytes(8, "big")], [nothing, writing, writing])
        os.close(nothing)
        os.close(writing)
        self._server.sendall(message)
        self._answer = self._server.makefile()
        self.stdout = os.fdopen(reading)
        self.pid = int(self._answer.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._server], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = int(self._answer.readline())
            self._answer.close()
            self._server.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


@contextmanager
def warm_python(
    folder: Path,
    python: str = sys.executable,
    modules: Sequence[str] = _TAKE_LONG_TO_IMPORT,
    environment: Mapping[str, str] | None = None,
) -> Iterator[WarmPython]:
    """Programs can be started until this ends.

    Args:
        folder: for what `WarmPython` has there.
        python: the interpreter.
        modules: that it imports before any program starts.
        environment: in which it does so; this process's by default.
    """
    warm = WarmPython(folder)
    command = [python, __file__, str(folder / "socket"), *modules]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdout is not None
        server.stdout.readline()  # it listens
        try:
            yield warm
        finally:
            server.kill()


def fork_workers(python: str) -> None:
    """Of each Ray that this process starts from now on, start the workers, seconds of imports each, by a command.

    Args:
        python: the command; a `WarmPython`'s that has not imported Ray, which reads its environment as it is imported.
    """
    from ray._private import services

    start, option = services.start_ray_process, "--python_worker_command="

    def start_ray_process(command: Sequence[str], *given: Any, **options: Any) -> Any:
        command = [part.replace(option + sys.executable, option + python) for part in command]
        return start(command, *given, **options)

    services.start_ray_process = start_ray_process


def _fork_workers_of_programs(python: str) -> None:
    """Those of each Ray that Hindcast starts in a program."""
    from hindcast import ray_session

    start = ray_session.start_ray

    def start_ray(**options: Any) -> None:
        fork_workers(python)
        start(**options)

    ray_session.start_ray = start_ray


def main(address: str, *modules: str) -> Any:
    """Serve; returns only in the process of a program, with its exit code."""
    for name in modules:
        importlib.import_module(name)
    if _HINDCAST in modules:
        _fork_workers_of_programs(str(Path(address).with_name("python")))

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("listening", flush=True)
        while True:
            caller, _ = listening.accept()
            _reap()
            if os.fork() == 0:
                listening.close()
                return _answer(caller)
            caller.close()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _answer(caller: socket.socket) -> Any:
    """Fork the program; tell the caller its process, then how it ended."""
    size, files, _, _ = socket.recv_fds(caller, 8, 3)
    arguments, folder, environment = json.loads(caller.makefile("rb").read(int.from_bytes(size, "big")))
    program = os.fork()
    if program:
        for file in files:
            os.close(file)
        caller.sendall(f"{program}\n".encode())
        _, status = os.waitpid(program, 0)
        with suppress(BrokenPipeError):  # Ray kills its workers' commands, too
            caller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    caller.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return _run(*arguments)


def _run(name: str, *arguments: str) -> Any:
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if name == "hindcast":
        from hindcast.cli.main import main as hindcast

        sys.argv = [name, *arguments]
        sys.path[:1] = paths
        return hindcast()
    if _HINDCAST in sys.modules and "site-packages" not in arguments[0]:
        warnings.simplefilter("error", DeprecationWarning)
    sys.argv = list(arguments)
    sys.path[:1] = [str(Path(arguments[0]).resolve().parent), *paths]
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
