"""A block of memory that several processes map, and that has no name.

On Linux it is a memfd, elsewhere an unlinked temporary file, so that the kernel reclaims it with
the last process that maps it, whoever is killed, and the size of ``/dev/shm`` does not matter. All
pages are reserved at creation: memory that is not there is an error then, not a SIGBUS later.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import ClassVar

from fastvec._core.lineage import close_in_children
from fastvec.errors import SharedMemoryError

__all__ = ["SharedBlock"]


class _Mapping(mmap.mmap):
    keeper: _Keeper


class _Keeper:
    """Keeps a forked child from ever unmapping what it does not map.

    There the object of the mapping is inherited, the mapping is not, and its address is free for another. Were the
    object collected, that other one would be unmapped.
    """

    inherited: ClassVar[list[mmap.mmap]] = []

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = weakref.ref(mapping)
        close_in_children(self)

    def close(self) -> None:
        mapping = self._mapping()
        if mapping is not None:
            self.inherited.append(mapping)


class SharedBlock:
    """Shared memory by file descriptor.

    The block owns ``fd``; whoever received the descriptor over a socket owns that copy. Arrays over
    ``buffer`` keep the mapping alive by themselves, so closing the block never pulls memory away
    from under them.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.buffer = _Mapping(fd, nbytes)

    @classmethod
    def create(cls, nbytes: int) -> SharedBlock:
        """Make a block of zeros.

        Raises:
            SharedMemoryError: There is not that much memory, or no place for it.
        """
        fd = _anonymous_fd(nbytes)
        try:
            return cls(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise

    def keep_from_children(self) -> None:
        """Do not map the block in processes forked from now on, which would keep its memory alive."""
        if hasattr(mmap, "MADV_DONTFORK"):
            self.buffer.keeper = _Keeper(self.buffer)
            self.buffer.madvise(mmap.MADV_DONTFORK)

    def close(self) -> None:
        """Give up the descriptor and the mapping, which goes with the last array over it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            del self.buffer


def _anonymous_fd(nbytes: int) -> int:
    _check_available(nbytes)
    if hasattr(os, "memfd_create"):
        try:
            return _reserved(os.memfd_create("fastvec", os.MFD_CLOEXEC), nbytes, "memfd")
        except OSError as error:  # sandboxes may forbid the call: a file serves as well
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
    folder = tempfile.gettempdir()
    try:
        fd, path = tempfile.mkstemp(prefix="fastvec-", dir=folder)
    except OSError as error:
        raise SharedMemoryError(f"no file for {nbytes:,} bytes of shared memory in {folder}: {error}") from error
    os.unlink(path)
    return _reserved(fd, nbytes, folder)


def _check_available(nbytes: int) -> None:
    """A memfd has no limit of its own: without this, the out-of-memory killer would answer."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return
    if nbytes > available:
        raise SharedMemoryError(
            f"shared memory of {nbytes:,} bytes is needed, and {available:,} are available: use fewer environments or "
            "smaller observations"
        )


def _reserved(fd: int, nbytes: int, where: str) -> int:
    try:
        if sys.platform == "darwin" or not hasattr(os, "posix_fallocate"):
            os.ftruncate(fd, nbytes)
        else:
            os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        free = f", {shutil.disk_usage(where).free:,} are free" if os.path.isdir(where) else ""
        raise SharedMemoryError(
            f"shared memory of {nbytes:,} bytes is needed and {where} does not have it{free}: use fewer "
            "environments, smaller observations, or point TMPDIR at a larger place"
        ) from error
    return fd
