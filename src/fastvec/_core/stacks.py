"""The Python stack of a worker that crashed or does not answer.

A worker has :mod:`faulthandler` write into an anonymous file that its parent can read: by itself
when it crashes in native code, and on a signal from the parent when it is stuck, even where it
sleeps or computes in C with the GIL held. A stopped process writes nothing.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
import time
from pathlib import Path

from fastvec._core.lineage import close_in_children

__all__ = ["StackFile", "write_stacks_to"]

#: A real-time signal that libraries leave alone; None where there are none, or nobody says who handles them.
_SIGNAL: int | None = (
    signal.SIGRTMAX - 4 if hasattr(signal, "SIGRTMAX") and Path("/proc/self/status").exists() else None
)

_WORKER = os.path.join("fastvec", "_core", "worker.py")

#: A stack is complete when nothing has been added to it for this long.
_QUIET = 0.02


class StackFile:
    """An anonymous file of stacks, of which this process reads what a worker writes. Who makes it closes it."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("fastvec-stack", os.MFD_CLOEXEC)
        else:
            self.fd, path = tempfile.mkstemp(prefix="fastvec-")
            os.unlink(path)
        self._seen = 0
        close_in_children(self)

    def read(self) -> str:
        """What has been written since the last look."""
        try:
            size = os.fstat(self.fd).st_size
            text = os.pread(self.fd, size - self._seen, self._seen)
        except OSError:  # closed, perhaps by another thread just now
            return ""
        self._seen = size
        return _shortened(text.decode(errors="replace"))

    def ask(self, pid: int, seconds: float = 1.0) -> str:
        """Have a process write its stack; empty if it does not in time, or cannot.

        Args:
            pid: The process, which must not have been waited for, lest its number be another's.
            seconds: How long to wait for it.
        """
        if _SIGNAL is None or not _handles(pid, _SIGNAL):
            return ""
        try:
            # Both processes have one open file, and with it one position.
            os.ftruncate(self.fd, 0)
            os.lseek(self.fd, 0, os.SEEK_SET)
            self._seen = size = 0
            os.kill(pid, _SIGNAL)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                time.sleep(_QUIET)
                before, size = size, os.fstat(self.fd).st_size
                if size == before != 0:
                    break
        except OSError:  # closed meanwhile, or the process has ended
            return ""
        return self.read()

    def close(self) -> None:
        """Let go of the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def write_stacks_to(fd: int) -> None:
    """Have this process write its stacks there, when it crashes and when it is asked to; takes over ``fd``."""
    faulthandler.enable(fd)
    if _SIGNAL is not None:
        faulthandler.register(_SIGNAL, fd)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {_SIGNAL})


def _shortened(text: str) -> str:
    """A stack without the frames beneath the environments, which are the same in all, and without lists of modules."""
    lines = []
    beneath = False
    for line in text.splitlines():
        is_frame = line.startswith("  File ")
        beneath = is_frame and (beneath or _WORKER in line)
        if not beneath and not line.startswith("Extension modules:"):
            lines.append(line)
    return "\n".join(lines).strip()


def _handles(pid: int, signal_number: int) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (signal_number - 1) & 1)
