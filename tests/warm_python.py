"""Python programs that start in milliseconds: each is forked from a process that has imported Hindcast or RLlib.

A program runs in a separate process, with its caller's files, folder and environment, as if the interpreter had started
it. With Hindcast, deprecation warnings are errors, unless the program belongs to an installed package.

    python warm_python.py ADDRESS MODULE…    (runs the process that is forked; ADDRESS is the path of its socket)
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

_COMMAND = """#!{python} -IS
import json, os, signal, socket, sys
files = sorted(map(int, os.listdir("/proc/self/fd")))
files = [file for file in files if os.path.exists(f"/proc/self/fd/{{file}}")]  # the list itself is read from one
request = [[{name!r}, *sys.argv[1:]], os.getcwd(), dict(os.environ), files, os.getpid()]
request = json.dumps(request).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [len(request).to_bytes(8, "big")], files)
    server.sendall(request)
    for file in files:
        if file > 2:
            os.close(file)
    answer = server.makefile()
    program = int(answer.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(program, number))
    status = int(answer.readline())
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
"""The stand-in of a program: it passes on its open files and signals, and ends with the program's status; if it is
killed, so is the program."""

_MAX_FILES = 250
_FLAGS = ("-B", "-s")  # flags of the interpreter, which already apply to the forked process
_HINDCAST = "hindcast.cli.main"
_SLOW_IMPORTS = (
    _HINDCAST,
    "hindcast.run.execute",
    "hindcast.run.training.training_run",
    "hindcast.record.pool",
    "hindcast.report.writing",
    *("jinja2", "matplotlib.backends.backend_agg"),  # for reports
    "tensorboard.summary.writer.event_file_writer",
    *("attrs", "filelock", "jsonschema", "loky", "requests", "yaml"),  # for Ray's workers, and loky's
)


class WarmPython:
    """Starts programs in milliseconds.

    Attributes:
        folder: contains `python` and `hindcast`; put it first on PATH.
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
    """A running program, with some methods and attributes of `subprocess.Popen`.

    Attributes:
        stdout: its standard output and standard error.
        pid: its process id.
        returncode: its exit status, negative for a signal that killed it; None while it runs.
    """

    def __init__(self, address: str, request: list[Any]) -> None:
        message = json.dumps([*request, [0, 1, 2], os.getpid()]).encode()
        read_end, write_end = os.pipe()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(address)
        null_device = os.open(os.devnull, os.O_RDONLY)
        socket.send_fds(self._server, [len(message).to_bytes(8, "big")], [null_device, write_end, write_end])
        os.close(null_device)
        os.close(write_end)
        self._server.sendall(message)
        self._answer = self._server.makefile()
        self.stdout = os.fdopen(read_end)
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

    def send_signal(self, signal_number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal_number)


@contextmanager
def warm_python(
    folder: Path,
    python: str = sys.executable,
    modules: Sequence[str] = _SLOW_IMPORTS,
    environment: Mapping[str, str] | None = None,
) -> Iterator[WarmPython]:
    """Run the process from which programs are forked, until the block ends.

    Args:
        folder: folder for the files of `WarmPython`.
        python: the interpreter.
        modules: modules that the process imports first.
        environment: environment variables of the process; None for those of this process.
    """
    warm = WarmPython(folder)
    command = [python, __file__, str(folder / "socket"), *modules]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdout is not None
        server.stdout.readline()  # wait until it listens
        try:
            yield warm
        finally:
            server.kill()


def fork_workers(python: str) -> None:
    """From now on, start the workers of this process's pools with a command: loky's pools, and spawned ones.

    Args:
        python: the command, of a `WarmPython`.
    """
    from multiprocessing import util

    from loky.backend import fork_exec

    spawn, start = util.spawnv_passfds, fork_exec.fork_exec

    def spawnv_passfds(path: bytes, arguments: Sequence[Any], files: Sequence[int]) -> int:
        is_worker = "--multiprocessing-fork" in arguments
        return spawn(os.fsencode(python) if is_worker else path, arguments, files)

    def start_worker(command: Sequence[str], *args: Any, **options: Any) -> int:
        return start([python, *command[1:]], *args, **options)

    util.spawnv_passfds, fork_exec.fork_exec = spawnv_passfds, start_worker


def fork_ray_workers(python: str) -> None:
    """From now on, start the workers of each Ray that this process starts with a command.

    Args:
        python: the command, of a `WarmPython` that has not imported Ray, since Ray reads the environment on import.
    """
    from ray._private import services

    start, option = services.start_ray_process, "--python_worker_command="

    def start_ray_process(command: Sequence[str], *args: Any, **options: Any) -> Any:
        command = [argument.replace(option + sys.executable, option + python) for argument in command]
        return start(command, *args, **options)

    services.start_ray_process = start_ray_process


def _fork_workers_of_programs(python: str) -> None:
    """Fork the workers of each program's pools, and of each Ray that Hindcast starts in it."""
    from hindcast import ray_session

    fork_workers(python)
    start = ray_session.start_ray

    def start_ray(**options: Any) -> None:
        fork_ray_workers(python)
        start(**options)

    ray_session.start_ray = start_ray


def _draw_once(folder: Path) -> None:
    """Let programs draw each kind of picture only once."""
    from hindcast.report import page
    from picture_cache import render_once

    page.render = render_once(folder)


def main(address: str, *modules: str) -> Any:
    """Fork programs on request; return only in the process of a program, with its exit code."""
    for name in modules:
        importlib.import_module(name)
    for finalizer in weakref.finalize._registry:
        finalizer.atexit = False  # undoing the imports at exit would take a program a second
    gc.freeze()
    if _HINDCAST in modules:
        _fork_workers_of_programs(str(Path(address).with_name("python")))
        _draw_once(Path(address).with_name("pictures"))

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
    """Fork the program; send the caller its process id and, when it has ended, its exit status."""
    size, files, _, _ = socket.recv_fds(caller, 8, _MAX_FILES)
    message = caller.makefile("rb").read(int.from_bytes(size, "big"))
    arguments, folder, environment, descriptors, stand_in = json.loads(message)
    program = os.fork()
    if program:
        for file in files:
            os.close(file)
        end_descriptor = os.pidfd_open(program)
        with suppress(BrokenPipeError):
            caller.sendall(f"{program}\n".encode())
        if end_descriptor not in select.select([caller, end_descriptor], [], [])[0]:
            os.kill(program, signal.SIGKILL)  # the caller was killed
        _, status = os.waitpid(program, 0)
        with suppress(BrokenPipeError):
            caller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    caller.close()
    _renumber_files(files, descriptors)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return _run(stand_in, *arguments)


def _renumber_files(files: list[int], descriptors: list[int]) -> None:
    """Give the received files the descriptors that they have in the caller."""
    copies = [fcntl.fcntl(file, fcntl.F_DUPFD, 1000) for file in files]
    for file in files:
        os.close(file)
    for file, descriptor in zip(copies, descriptors, strict=True):
        os.dup2(file, descriptor)
        os.close(file)


def _run(stand_in: int, name: str, *arguments: str) -> Any:
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if name == "hindcast":
        from hindcast.cli.main import main as hindcast

        sys.argv = [name, *arguments]
        sys.path[:1] = paths
        return hindcast()
    while arguments[0] in _FLAGS:
        arguments = arguments[1:]
    if arguments[0] in ("-c", "-m"):
        os.getppid = partial(parent_of, stand_in)
        sys.path[:0] = paths
        return _run_command(*arguments)
    if arguments[0].endswith("/ray/_private/workers/setup_worker.py"):
        arguments = _prepare_ray_worker(*arguments[1:])
    if _HINDCAST in sys.modules and "site-packages" not in arguments[0]:
        warnings.simplefilter("error", DeprecationWarning)
    sys.argv = list(arguments)
    sys.path[:1] = [str(Path(arguments[0]).resolve().parent), *paths]
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


def _run_command(option: str, program: str, *arguments: str) -> int:
    """Run a program, an operator, or a worker of loky or `multiprocessing`, which set `sys.path` themselves."""
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(program, {"__name__": "__main__"})
    return 0


def parent_of(process: int) -> int:
    """Return the id of a process's parent; for a program's stand-in, the process that started the program."""
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def _prepare_ray_worker(*arguments: str) -> tuple[str, ...]:
    """Set the environment of a Ray worker as Ray's `setup_worker.py` does, and return the worker's command."""
    option = "--serialized-runtime-env-context="
    (context,) = (argument.removeprefix(option) for argument in arguments if argument.startswith(option))
    os.environ.update(json.loads(context)["env_vars"])
    return tuple(argument for argument in arguments if not argument.startswith((option, "--language=")))


def _run_and_exit(work: Callable[[], Any]) -> NoReturn:
    """Run a function and exit like the interpreter, but without garbage collection, which would copy all pages."""
    try:
        code = work()
    except SystemExit as exited:
        code = exited.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            file.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    _run_and_exit(lambda: main(*sys.argv[1:]))
