"""Messages with large arrays: pickled once for all who get them, the arrays' bytes in memory without a name.

Over the channel an array of some megabytes is copied five times, in pieces of what a socket holds. Here its bytes
are written once, into a memfd whose descriptor goes with the message, and each worker maps them for itself
(``MAP_PRIVATE``): what an environment changes there neither its neighbours in other workers nor the program see,
and the memory goes with the last array over it. Where there are no memfds, arrays travel in the pickle.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["Bulk", "close_all", "pack", "unpack"]

_ALIGNMENT = 64


class Bulk(NamedTuple):
    """A pickled value.

    Attributes:
        data: The pickle.
        places: Offset and size of each of its large arrays, in the memory of the descriptor that comes with it.
    """

    data: bytes
    places: list[tuple[int, int]]


def pack(value: Any, dumps: Callable[..., bytes]) -> tuple[Bulk, tuple[int, ...]]:
    """Pickle a value.

    Args:
        value: What to send.
        dumps: See :func:`fastvec._core.pickles.dumps`.

    Returns:
        What to give to :func:`unpack`, and the descriptor to send along, if there is one; the caller closes it.
    """
    if not (hasattr(os, "memfd_create") and hasattr(socket, "send_fds")):
        return Bulk(dumps(value), []), ()
    beside: list[memoryview] = []
    data = dumps(value, beside=beside)
    if not beside:
        return Bulk(data, []), ()
    try:
        fd = os.memfd_create("fastvec", os.MFD_CLOEXEC)
    except OSError:  # sandboxes may forbid the call, or descriptors run out
        return Bulk(dumps(value), []), ()
    try:
        places, offset = [], 0
        for view in beside:
            _write(fd, view, offset)
            places.append((offset, view.nbytes))
            offset += -(-view.nbytes // _ALIGNMENT) * _ALIGNMENT
    except OSError:
        os.close(fd)
        return Bulk(dumps(value), []), ()
    except BaseException:
        os.close(fd)
        raise
    return Bulk(data, places), (fd,)


def unpack(bulk: Bulk, fds: Sequence[int]) -> Any:
    """The value, whose large arrays belong to who asks; the descriptors are closed."""
    try:
        memory = mmap.mmap(fds[0], 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) if bulk.places else None
    finally:
        close_all(fds)
    if memory is None:
        return pickle.loads(bulk.data)
    view = memoryview(memory)
    return pickle.loads(bulk.data, buffers=[view[start : start + size] for start, size in bulk.places])


def close_all(fds: Sequence[int]) -> None:
    """Close some descriptors."""
    for fd in fds:
        os.close(fd)


def _write(fd: int, view: memoryview, offset: int) -> None:
    # Written, not mapped: whole pages are then not cleared before, nor mapped one by one.
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
