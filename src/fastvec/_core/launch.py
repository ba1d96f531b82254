"""Starting worker processes: by fork, as a new interpreter, or from a fork server.

Whatever the method, a worker is born with one thing, its end of a channel, and with the
environment variables that it is to run with; everything else comes over the channel. The program's
``__main__`` is never imported again, so scripts need no ``if __name__ == "__main__"`` guard and
a worker does not hold the libraries that the script imports.

We do not use ``multiprocessing.Process``: it re-imports ``__main__``, its one fork server a program
is configured by whoever starts it first, and it forbids environments to have processes of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from multiprocessing.spawn import get_executable
from typing import NamedTuple, Protocol

from fastvec._core.channel import Channel, wait_for
from fastvec._core.lineage import close_in_children, forking_a_worker
from fastvec._core.protocol import WorkerInit

__all__ = [
    "EXIT_UNKNOWN",
    "Ending",
    "ForkedProcess",
    "SpawnedProcess",
    "WorkerProcess",
    "fork_worker",
    "reap",
    "spawn_process",
]


#: In place of an exit code that somebody else has collected, or that went with a fork server; no process has it.
EXIT_UNKNOWN = 1 << 16


class Ending(NamedTuple):
    """How a process has ended.

    Attributes:
        code: Its exit code, ``-N`` for signal N.
        peak_rss: Bytes of resident memory that neither it nor a child that it has waited for ever exceeded; None where
            that is not known.
    """

    code: int
    peak_rss: int | None


class WorkerProcess(Protocol):
    """A handle on another process. It owns the sentinel; ``release`` gives it back."""

    pid: int
    #: A descriptor that is readable once the process has ended, or None where the system has none.
    sentinel: int | None

    def poll(self) -> int | None:
        """The exit code, ``-N`` for signal N; None while it runs."""

    def peak_rss(self) -> int | None:
        """See :class:`Ending`; None while it runs."""

    def kill(self, signal_number: int) -> None:
        """Send a signal, if it still runs."""

    def release(self) -> None:
        """Give back what the handle holds."""


def open_pidfd(pid: int) -> int | None:
    """A descriptor of a process, readable once it has ended; None where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def reap(pid: int) -> tuple[int, Ending] | None:
    """Collect a child that has ended, or with -1 any, by its number; None if it has not.

    Raises:
        ChildProcessError: There is no such child, or somebody else has collected it.
    """
    ended, status, usage = os.wait4(pid, os.WNOHANG)
    if not ended:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return ended, Ending(os.waitstatus_to_exitcode(status), usage.ru_maxrss * unit)


def wait_for_exit(processes: list[WorkerProcess], seconds: float) -> list[WorkerProcess]:
    """Wait until all have ended, at most some time; returns those that have not."""
    deadline = time.monotonic() + seconds
    while True:
        running = [process for process in processes if process.poll() is None]
        left = deadline - time.monotonic()
        if not running or left <= 0:
            return running
        sentinels = [process.sentinel for process in running if process.sentinel is not None]
        # Not all of `left`: an exit code may come later than the end it belongs to, or there is no sentinel.
        if len(sentinels) == len(running):
            wait_for(sentinels, min(left, 0.1))
        if running == [process for process in running if process.poll() is None]:
            time.sleep(min(left, 0.001))


class ForkedProcess:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.sentinel = open_pidfd(pid)
        self._ending: Ending | None = None

    def poll(self) -> int | None:
        """See :class:`WorkerProcess`."""
        if self._ending is None:
            try:
                reaped = reap(self.pid)
            except ChildProcessError:  # somebody else has waited for it
                self._ending = Ending(EXIT_UNKNOWN, None)
            else:
                self._ending = reaped and reaped[1]
        return self._ending and self._ending.code

    def peak_rss(self) -> int | None:
        """See :class:`WorkerProcess`."""
        self.poll()
        return self._ending and self._ending.peak_rss

    def kill(self, signal_number: int) -> None:
        """See :class:`WorkerProcess`."""
        if self.poll() is None:
            os.kill(self.pid, signal_number)

    def release(self) -> None:
        """See :class:`WorkerProcess`."""
        if self.sentinel is not None:
            os.close(self.sentinel)
            self.sentinel = None


class SpawnedProcess:
    """A new interpreter."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.sentinel = open_pidfd(process.pid)

    def poll(self) -> int | None:
        """See :class:`WorkerProcess`."""
        return self._process.poll()

    def peak_rss(self) -> None:
        """Not known: before it became an interpreter it counted as this process, whose peak it keeps."""

    def kill(self, signal_number: int) -> None:
        """See :class:`WorkerProcess`."""
        self._process.send_signal(signal_number)

    def release(self) -> None:
        """See :class:`WorkerProcess`."""
        if self.sentinel is not None:
            os.close(self.sentinel)
            self.sentinel = None


def fork_worker(init: WorkerInit) -> tuple[WorkerProcess, Channel]:
    """Fork this process into a worker."""
    from fastvec._core.worker import run_worker

    ours, theirs = Channel.pair()
    close_in_children(ours)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    with _signals_held(), warnings.catch_warnings(), forking_a_worker():
        # Python warns of native threads too, such as those of BLAS; EngineConfig has looked at what matters.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded.*fork")
        pid = os.fork()
        if pid == 0:
            run_worker(theirs, init)  # does not return
    theirs.close()
    return ForkedProcess(pid), ours


def spawn_process(entry: str, environ: Mapping[str, str]) -> tuple[SpawnedProcess, Channel]:
    """Start an interpreter that calls a function with its end of a channel.

    Args:
        entry: ``"module:function"``.
        environ: Its environment variables.
    """
    module, _, function = entry.partition(":")
    ours, theirs = Channel.pair()
    close_in_children(ours)
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # sys.path first: fastvec itself may be importable only through it.
    code = (
        f"import sys; sys.path = {import_path()!r}; from {module} import {function}; "
        f"from fastvec._core.launch import inherited_socket; {function}(inherited_socket())"
    )
    command = [_text(get_executable()), *flags, "-c", code]
    try:
        with _signals_held():
            if sys.platform == "win32":
                process = subprocess.Popen(command, env=dict(environ), stdin=subprocess.PIPE)
                assert process.stdin is not None
                process.stdin.write(theirs.share(process.pid))
                process.stdin.close()
            else:
                process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return SpawnedProcess(process), ours


def inherited_socket() -> socket.socket:
    """In a process that :func:`spawn_process` has started: its end of the channel."""
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    return sock


def import_path() -> list[str]:
    """``sys.path`` for another process; the empty entry means another folder there."""
    return [path or os.getcwd() for path in sys.path if isinstance(path, str)]  # as the import system does


def _text(executable: str | bytes) -> str:
    return os.fsdecode(executable)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Keep Ctrl-C from a process that is not yet able to ignore it; the new process inherits the mask."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
