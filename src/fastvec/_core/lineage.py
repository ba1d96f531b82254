"""Who lives and dies with whom.

Parent to child: descriptors that only the parent may hold are closed in every process that it
forks, whoever forks it, so that an end-of-file on the other side always means the parent's end.

Worker and its children: a worker leads a process group, in which whatever an environment starts is
too, unless it leaves it. The group ends with the worker.

Child to parent: a worker dies with its parent, and so does its group, even while it computes in C with
the GIL held. The parent holds the write end of a pipe; each worker has the kernel send its group SIGKILL
when the last write end is gone (``F_SETSIG`` with ``O_ASYNC``). ``PR_SET_PDEATHSIG`` would not do: it
follows the *thread* that forked, and under a fork server that is another process altogether.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from fastvec._core.channel import wait_for

__all__ = [
    "LifeLine",
    "close_in_children",
    "die_with",
    "end_group",
    "forking_a_worker",
    "lead_group",
    "tell_before_forks",
]

_F_SETSIG = 10  # <asm-generic/fcntl.h>; the fcntl module does not name it


class _Closable(Protocol):
    def close(self) -> None: ...


_parent_only: weakref.WeakSet[_Closable] = weakref.WeakSet()
_hooked = False


def close_in_children(owner: _Closable) -> None:
    """Close ``owner`` in every process that this one forks from now on."""
    global _hooked
    _parent_only.add(owner)
    if not _hooked and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_close_all)
        _hooked = True


def _close_all() -> None:
    for owner in list(_parent_only):
        with contextlib.suppress(OSError):
            owner.close()
    _parent_only.clear()


class _Teller(Protocol):
    def before_fork(self) -> None: ...


_told: weakref.WeakSet[_Teller] = weakref.WeakSet()
_told_hooked = False
_forking = threading.local()


def tell_before_forks(owner: _Teller) -> None:
    """Have ``owner.before_fork()`` called whenever this process is about to fork, unless into a worker."""
    global _told_hooked
    _told.add(owner)
    if not _told_hooked and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_tell_all)
        _told_hooked = True


def _tell_all() -> None:
    if not getattr(_forking, "a_worker", False):
        for owner in list(_told):
            owner.before_fork()


@contextlib.contextmanager
def forking_a_worker() -> Iterator[None]:
    """What this thread forks is a worker, which looks at nothing that it inherits."""
    _forking.a_worker = True
    try:
        yield
    finally:
        _forking.a_worker = False


class LifeLine:
    """A pipe whose end tells workers that the parent is gone. It owns both ends; workers get copies of ``read_fd``."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        close_in_children(self)

    def close(self) -> None:
        """Let go of the pipe, which ends every worker that still holds on to it."""
        for fd in (self.read_fd, self._write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self._write_fd = -1


def lead_group() -> None:
    """Make this process the leader of a group of its own."""
    if hasattr(os, "setpgid"):
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)


def end_group(leader: int) -> None:
    """Kill what is left of the group of a worker that has ended."""
    if hasattr(os, "killpg"):
        # The number of a group is not given to another process while the group has members.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def die_with(read_fd: int) -> None:
    """Have this process, and the group that it leads, killed when a pipe's last write end closes; takes over the fd."""
    if sys.platform.startswith("linux"):
        import fcntl

        try:
            # Signal and owner belong to the open file, which all workers share: each needs its own.
            own = os.open(f"/proc/self/fd/{read_fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            pass
        else:
            os.close(read_fd)
            fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp() if os.getpgrp() == os.getpid() else os.getpid())
            fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
            if wait_for([own], 0):  # it was gone already
                os._exit(1)
            return
    threading.Thread(target=_die_at_end_of, args=(read_fd,), name="fastvec-lifeline", daemon=True).start()


def _die_at_end_of(fd: int) -> None:
    while not wait_for([fd], None):
        pass
    os._exit(1)
