"""A fork server: starts Python processes in which MCP is already imported.

The import takes 1.5 seconds of CPU time, for each server and each command that a test starts. So one process
per pytest run imports it once and forks on request. A forked process has its own arguments, folder,
environment, streams, signals and exit code, and a test can kill it like any other.

    process = await spawn("-m", "tests.mcp.server_process", url, cwd=ROOT, stdout=PIPE)

is `asyncio.create_subprocess_exec(sys.executable, ...)`, but faster. In a shell, write
`python tests/fork_server.py --ask SOCKET ARGUMENTS`. The commands of perdure are not imported in advance:
their output depends on the terminal that they find.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

PRELOADED = (
    *("mcp.client", "mcp.server", "mcp.server.mcpserver", "mcp.client.streamable_http", "mcp.client.stdio"),
    *("uvicorn", "uvicorn.protocols.http.h11_impl", "uvicorn.lifespan.on", "httpx2", "typer", "rich.live"),
    *("perdure", "perdure.mcp.client", "perdure.feeds.bluesky", "perdure.web", "perdure.operating"),
    *("perdure.storage.sqlite", "perdure.tasks.form_validation", "hypothesis"),
)
MAX_REQUEST_BYTES = 1024 * 1024
ADDRESS = "PERDURE_TEST_FORK_SERVER"
"""The environment variable with the socket of a fork server that another process has started."""

Stream: TypeAlias = int | IO[bytes] | None


class SpawnRequest(msgspec.Struct):
    """What to run. The three standard streams are sent along."""

    words: list[str]
    folder: str
    variables: dict[str, str]


class ForkedProcess:
    """A process with the interface of asyncio's."""

    def __init__(self, pid: int, end: asyncio.StreamReader, connection: asyncio.StreamWriter) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._connection = connection
        self._ended = asyncio.create_task(self._attend(end))

    async def _attend(self, end: asyncio.StreamReader) -> int:
        try:
            self.returncode = int(await end.readline())
        finally:
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        with suppress(ProcessLookupError):  # it has ended, but we are not notified yet
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    async def wait(self) -> int:
        code = await asyncio.shield(self._ended)
        if self.stdin is not None:
            self.stdin.close()
        return code

    async def communicate(self) -> tuple[bytes, bytes]:
        """Return the rest of its output, until it ends."""
        if self.stdin is not None:
            self.stdin.close()
        out, err, _ = await asyncio.gather(_rest(self.stdout), _rest(self.stderr), self.wait())
        return out, err


async def _rest(stream: asyncio.StreamReader | None) -> bytes:
    return b"" if stream is None else await stream.read()


async def spawn(
    *words: str,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Stream = DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
) -> ForkedProcess:
    """Start `python` with these arguments: `-m MODULE ...`, `-c CODE ...`, or `FILE ...`."""
    folder = os.path.abspath(cwd or ".")  # noqa: PTH100, ASYNC240 (asks no disk)
    order = SpawnRequest(list(words), folder, dict(os.environ if env is None else env))
    pipes = [_pipe(stdin, 0), _pipe(stdout, 1), _pipe(stderr, 2)]
    theirs = [child for child, _ in pipes]
    if stderr == STDOUT:
        theirs[2] = theirs[1]
    end, connection = await asyncio.open_unix_connection(
        sock=_send_request(str(socket_path()), order, theirs)
    )
    process = ForkedProcess(int(await end.readline()), end, connection)
    await _join(process, pipes)
    return process


def run_in_fork(*words: str, cwd: Path | str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a process and return its output, like `subprocess.run`."""
    order = SpawnRequest(list(words), str(cwd), dict(env))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open() as nothing:
        streams = [nothing.fileno(), out.fileno(), err.fileno()]
        with (
            _send_request(str(socket_path()), order, streams) as connection,
            connection.makefile() as answers,
        ):
            _pid, code = answers
        printed = [(file.seek(0), file.read().decode())[1] for file in (out, err)]
    return subprocess.CompletedProcess(list(words), int(code), *printed)


def _send_request(server: str, order: SpawnRequest, streams: list[int]) -> socket.socket:
    """Send a request. The returned socket receives the process id, and later the exit code."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(server)
    socket.send_fds(connection, [msgspec.json.encode(order)], streams)
    connection.shutdown(socket.SHUT_WR)
    return connection


def _pipe(wanted: Stream, place: int) -> tuple[int, int | None]:
    """Return the child's end of a stream, and ours if it is a pipe."""
    if wanted == PIPE:
        reading, writing = os.pipe()
        return (reading, writing) if place == 0 else (writing, reading)
    if wanted == DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    if wanted is None or wanted == STDOUT:
        return os.dup(place), None
    return os.dup(wanted if isinstance(wanted, int) else wanted.fileno()), None


async def _join(process: ForkedProcess, pipes: list[tuple[int, int | None]]) -> None:
    loop = asyncio.get_running_loop()
    for place, (child, ours) in enumerate(pipes):
        os.close(child)
        if ours is None:
            continue
        file = os.fdopen(ours, "wb" if place == 0 else "rb", buffering=0)
        if place == 0:
            process.stdin = await _writer(loop, file)
            continue
        stream = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda stream=stream: asyncio.StreamReaderProtocol(stream), file)
        if place == 1:
            process.stdout = stream
        else:
            process.stderr = stream


async def _writer(loop: asyncio.AbstractEventLoop, file: IO[bytes]) -> asyncio.StreamWriter:
    reader = asyncio.StreamReader()
    transport, protocol = await loop.connect_write_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return asyncio.StreamWriter(transport, protocol, reader, loop)


@cache
def socket_path() -> Path:
    """Return the socket of the fork server, started if necessary. It ends with its parent process."""
    if ADDRESS in os.environ:
        return Path(os.environ[ADDRESS])
    path = Path(tempfile.mkdtemp(prefix="fork-server")) / "socket"
    command = [sys.executable, "-m", __name__, "--serve", str(path)]
    process = subprocess.Popen(
        command,
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    atexit.register(process.communicate)
    os.environ[ADDRESS] = str(path)  # for the other processes of the run
    return path


# In the process that forks


class ForkServer:
    def __init__(self, path: str) -> None:
        self._folder = Path(path).parent
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(128)
        self._waiting: dict[int, socket.socket] = {}
        self._ended, woken = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(self._ended, False)
        signal.signal(signal.SIGCHLD, _be_woken)
        signal.set_wakeup_fd(woken)
        self._woken = woken

    def next_child(self) -> tuple[SpawnRequest, list[int]]:
        """Fork on request, and return in each child. Exits when the process that started the server ends."""
        with selectors.DefaultSelector() as selector:
            for each in (self._listener, self._ended, sys.stdin):
                selector.register(each, selectors.EVENT_READ)
            while True:
                events = {key.fileobj for key, _ in selector.select()}
                if sys.stdin in events:
                    self._end()
                if self._ended in events:
                    self._report_ended()
                if self._listener in events and (child := self._fork()) is not None:
                    return child

    def _fork(self) -> tuple[SpawnRequest, list[int]] | None:
        connection, _ = self._listener.accept()
        order, streams = _receive(connection)
        pid = os.fork()
        if pid == 0:
            self._forget(connection)
            return order, streams
        for each in streams:
            os.close(each)
        self._waiting[pid] = connection
        with suppress(OSError):  # the requester did not wait
            connection.sendall(f"{pid}\n".encode())
        return None

    def _end(self) -> None:
        for pid in self._waiting:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._folder)
        os._exit(0)

    def _forget(self, connection: socket.socket) -> None:
        """Close what belongs to the server, in a child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (connection, self._listener, *self._waiting.values()):
            each.close()
        os.close(self._ended)
        os.close(self._woken)

    def _report_ended(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._ended, 4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                with self._waiting.pop(pid) as connection, suppress(OSError):
                    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _be_woken(_number: int, _frame: object) -> None:
    """Do nothing: a signal without a handler would not interrupt the wait."""


def _receive(connection: socket.socket) -> tuple[SpawnRequest, list[int]]:
    data, streams, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
    while more := connection.recv(MAX_REQUEST_BYTES):
        data += more
    return msgspec.json.decode(data, type=SpawnRequest), streams


def become(order: SpawnRequest, streams: list[int]) -> None:
    """Set up the child as if the interpreter had just started it."""
    os.environ.clear()
    os.environ.update(order.variables)
    os.chdir(order.folder)
    for place, each in enumerate(streams):
        os.dup2(each, place)
        os.close(each)
    sys.dont_write_bytecode = bool(order.variables.get("PYTHONDONTWRITEBYTECODE"))
    is_unbuffered = bool(order.variables.get("PYTHONUNBUFFERED"))
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", 1 if is_unbuffered or os.isatty(1) else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    _run(order.words)


def _run(words: list[str]) -> None:
    first, *rest = words
    sys.path[0] = ""
    match first:
        case "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        case "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        case _:
            sys.argv = words
            sys.path[0] = str(Path(first).absolute().parent)
            runpy.run_path(first, run_name="__main__")


def ask(server: str, words: list[str]) -> int:
    """Run a command in a fork, with our streams; return its exit code."""
    order = SpawnRequest(words, str(Path.cwd()), dict(os.environ))
    with _send_request(server, order, [0, 1, 2]).makefile() as response:
        _pid, code = response
    return int(code) % 256


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
    for module in PRELOADED:
        import_module(module)
    gc.freeze()  # so that no child collects it when it ends
    server = ForkServer(sys.argv[2])
    print("ready", flush=True)
    become(*server.next_child())
