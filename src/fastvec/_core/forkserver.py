"""A process that imports what workers need once, and forks them.

Its forks share the pages of all those modules, so a worker costs a few megabytes however big the
libraries are. It has one thread and runs no code of environments, which makes forking it safe. A
server belongs to the engines that asked for the same modules and variables, and ends with the last.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import socket
import threading
from collections.abc import Mapping
from typing import NamedTuple

from fastvec._core.channel import Channel, Gone, wait_for
from fastvec._core.launch import (
    EXIT_UNKNOWN,
    Ending,
    SpawnedProcess,
    WorkerProcess,
    import_path,
    open_pidfd,
    reap,
    spawn_process,
    wait_for_exit,
)
from fastvec._core.lineage import close_in_children
from fastvec.errors import WorkerDiedError

__all__ = ["ForkServer", "ServerKey", "serve"]


#: Seconds to wait for another thread to finish its request.
_CONVERSATION_PATIENCE = 0.1


class ServerKey(NamedTuple):
    """What two engines must agree on to share a server."""

    preload: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    path: tuple[str, ...]
    cwd: str

    @classmethod
    def of(cls, preload: tuple[str, ...], environ: Mapping[str, str]) -> ServerKey:
        """The key for some modules and variables in this program as it is now."""
        return cls(preload, tuple(sorted(environ.items())), tuple(import_path()), os.getcwd())


class ServedProcess:
    """A worker that a server has forked."""

    def __init__(self, server: ForkServer, pid: int, sentinel: int | None) -> None:
        self._server = server
        self.pid = pid
        self.sentinel = sentinel
        self._ended: Ending | None = None

    def poll(self) -> int | None:
        """See :class:`~fastvec._core.launch.WorkerProcess`."""
        ending = self._ending()
        return ending and ending.code

    def peak_rss(self) -> int | None:
        """See :class:`~fastvec._core.launch.WorkerProcess`."""
        ending = self._ending()
        return ending and ending.peak_rss

    def _ending(self) -> Ending | None:
        if self._ended is None:
            self._ended = self._server.ending(self.pid, self.sentinel)
        return self._ended

    def kill(self, signal_number: int) -> None:
        """See :class:`~fastvec._core.launch.WorkerProcess`."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if self.sentinel is not None:
                    signal.pidfd_send_signal(self.sentinel, signal_number)
                else:
                    os.kill(self.pid, signal_number)

    def release(self) -> None:
        """See :class:`~fastvec._core.launch.WorkerProcess`."""
        self._server.forget(self.pid)
        if self.sentinel is not None:
            os.close(self.sentinel)
            self.sentinel = None


class ForkServer:
    """The program's side of a server. Made by :meth:`acquire`, given back by :meth:`release`."""

    _running: dict[ServerKey, ForkServer] = {}
    # Reentrant, as a collection of garbage may close other engines at any moment.
    _lock = threading.RLock()
    _hooked = False

    def __init__(self, key: ServerKey) -> None:
        self.key = key
        self._users = 0
        self._endings: dict[int, Ending] = {}
        self._requests = 0
        self._conversation = threading.Lock()
        self._process: SpawnedProcess
        self._process, self._channel = spawn_process("fastvec._core.forkserver:serve", dict(key.environ))
        self._channel.send(pickle.dumps((key.preload, key.cwd)))
        close_in_children(self)

    @classmethod
    def acquire(cls, key: ServerKey) -> ForkServer:
        """The running server for a key, or a new one."""
        if not cls._hooked:
            os.register_at_fork(after_in_child=cls._forget)
            cls._hooked = True
        with cls._lock:
            server = cls._running.get(key)
            if server is not None:
                server._users += 1
                if server._process.poll() is None:
                    return server
                server._users -= 1
            server = cls._running[key] = cls(key)
            server._users += 1
            return server

    @classmethod
    def _forget(cls) -> None:
        """In a forked child: the servers are its parent's, and so is whoever holds the lock."""
        cls._running = {}
        cls._lock = threading.RLock()

    def forget(self, pid: int) -> None:
        """Nobody will ask for the ending of this worker any more."""
        self._endings.pop(pid, None)

    def has_died(self) -> bool:
        """Whether it cannot fork any more."""
        return self._process.poll() is not None

    def release(self) -> None:
        """Say that one user less needs the server; without any, it is ended."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if self._running.get(self.key) is self:
                del self._running[self.key]
        self._channel.close()
        if wait_for_exit([self._process], 1.0):
            self._process.kill(signal.SIGKILL)
            wait_for_exit([self._process], 1.0)
        self._process.release()

    def close(self) -> None:
        """In a forked child: give up the channel, which is its parent's."""
        self._channel.close()

    def fork(self, deadline: float | None) -> tuple[WorkerProcess, Channel]:
        """Have a worker forked.

        Raises:
            WorkerDiedError: The server is gone.
            TimeoutError: It did not answer in time.
        """
        ours, theirs = Channel.pair()
        close_in_children(ours)
        try:
            with self._conversation:
                self._requests += 1
                request = pickle.dumps(self._requests)
                self._channel.send(request, fds=(theirs.fileno(),), sentinel=self._process.sentinel)
                pid, sentinel = self._forked(self._requests, deadline)
        except Gone:
            ours.close()
            wait_for_exit([self._process], 0.5)
            raise WorkerDiedError(
                f"the fork server (pid {self._process.pid}) has died with exit code {self._process.poll()}; if its "
                f"output above does not say why, one of these imports may have: {', '.join(self.key.preload)}",
                pid=self._process.pid,
                exitcode=self._process.poll(),
            ) from None
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ServedProcess(self, pid, sentinel), ours

    def _forked(self, request: int, deadline: float | None) -> tuple[int, int | None]:
        """Pid and pidfd in the reply to a request; the replies to earlier ones, which came too late, are dropped."""
        while True:
            message = self._channel.receive(deadline=deadline, sentinel=self._process.sentinel)
            kind, pid, value = pickle.loads(message)
            if kind == "ended":
                self._endings[pid] = value
                continue
            # The descriptors of all messages read so far, in their order.
            fds = self._channel.take_fds()
            if value == request:
                self._endings.pop(pid, None)  # of an earlier process of that number
                for fd in fds[:-1]:
                    os.close(fd)
                return int(pid), fds[-1] if fds else None
            for fd in fds:
                os.close(fd)

    def ending(self, pid: int, sentinel: int | None) -> Ending | None:
        """How a worker has ended, None while it runs; with EXIT_UNKNOWN where the server took that along."""
        # Not for ever: a collection of garbage may ask in the midst of this very thread's conversation.
        if self._conversation.acquire(timeout=_CONVERSATION_PATIENCE):
            try:
                while self._channel.poll():
                    _, ended, ending = pickle.loads(self._channel.receive())
                    self._endings[ended] = ending
            except Gone:
                pass
            finally:
                self._conversation.release()
        elif not _runs(pid, sentinel):
            return Ending(EXIT_UNKNOWN, None)
        if pid not in self._endings and self._process.poll() is not None and not _runs(pid, sentinel):
            self._endings[pid] = Ending(EXIT_UNKNOWN, None)
        return self._endings.get(pid)


def _runs(pid: int, sentinel: int | None) -> bool:
    if sentinel is not None:  # also true of a zombie that nobody collects
        return not wait_for([sentinel], 0)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def serve(sock: socket.socket) -> None:
    """Run a server in this process, until the program closes its end."""
    from fastvec._core.surroundings import start_signals

    start_signals()
    channel = Channel(sock)
    preload, cwd = pickle.loads(channel.receive())
    os.chdir(cwd)
    for module in preload:
        # The worker that needs a module which fails will raise where its user can see it, or may not need it at all.
        with contextlib.suppress(BaseException):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    with contextlib.suppress(Gone):
        ended = False
        while not ended:
            # First what has been read already, perhaps together with an earlier message: no descriptor tells of it.
            while channel.poll():
                request = pickle.loads(channel.receive())
                _fork_worker(channel, request, channel.take_fds()[0], (wake_read, wake_write))
            if wake_read in wait_for([channel.fileno(), wake_read], None):
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                _report_ended(channel)
            ended = channel.at_end()
    channel.close()


def _fork_worker(channel: Channel, request: int, worker_fd: int, server_only: tuple[int, ...]) -> None:
    from fastvec._core.worker import run_worker

    worker_socket = socket.socket(fileno=worker_fd)
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        channel.close()
        for fd in server_only:
            os.close(fd)
        run_worker(worker_socket)  # does not return
    worker_socket.close()
    pidfd = open_pidfd(pid)
    channel.send(pickle.dumps(("forked", pid, request)), fds=() if pidfd is None else (pidfd,))
    if pidfd is not None:
        os.close(pidfd)


def _report_ended(channel: Channel) -> None:
    while True:
        try:
            reaped = reap(-1)
        except ChildProcessError:
            return
        if reaped is None:
            return
        channel.send(pickle.dumps(("ended", *reaped)))
