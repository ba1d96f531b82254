"""Arrays that many processes read and none copies.

:func:`shared` puts an array into memory without a name and maps it read-only. Under ``fork`` workers
inherit the mapping. Under ``spawn`` and ``forkserver`` a :class:`SharingPickler` writes, in the place of
the values of such an array, or of any view of it, where in which memory it lies; the descriptors of the
memory travel beside the pickle, and :func:`received` maps them on the other side.

An array keeps its memory alive, in each process that has one.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import socket
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import cloudpickle
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastvec._core.shm import SharedBlock
from fastvec.errors import FactoryError, SharedMemoryError

__all__ = ["SharedMemory", "SharingPickler", "received", "shared"]

#: So many descriptors fit in one message, beside those that a worker gets anyway.
_MOST = 200


class SharedMemory(mmap.mmap):
    """A mapping that owns a descriptor of what it maps."""

    #: By address, those of this process that are alive.
    known: ClassVar[weakref.WeakValueDictionary[int, SharedMemory]] = weakref.WeakValueDictionary()

    fd: int

    @classmethod
    def of(cls, fd: int) -> SharedMemory:
        """Map what a descriptor stands for, and take the descriptor over."""
        memory = cls(fd, 0, access=mmap.ACCESS_READ)
        memory.fd = fd
        weakref.finalize(memory, os.close, fd)
        cls.known[_address(np.frombuffer(memory, np.uint8))] = memory
        return memory

    @classmethod
    def around(cls, array: NDArray[Any]) -> tuple[SharedMemory, int] | None:
        """The memory that an array lies in, and at which of its bytes; None for ordinary memory."""
        address = _address(array)
        for start, memory in cls.known.items():
            if start <= address < start + len(memory):
                return memory, address - start
        return None


def shared(array: ArrayLike) -> NDArray[Any]:
    """A read-only copy of an array that worker processes map instead of copying it.

    Use it for large data that environments read (maps, recordings, tables), in their factories: under every start
    method all workers then read the same memory, and none is sent or copied. So do views of it. In other places, as
    arguments of ``env_method``, it is pickled like any array.

    Args:
        array: ``(*shape) dtype``, of any dtype but those with Python objects.

    Returns:
        ``(*shape) dtype``, C-contiguous, read-only for everybody. The memory is given back when the last array over it
        goes, in all processes; it needs no ``close()`` and has no name.

    Raises:
        TypeError: The array holds Python objects.
        SharedMemoryError: There is not that much memory.
    """
    values = np.asarray(array)
    if values.dtype.hasobject:
        raise TypeError(f"shared() takes arrays of numbers and text, got one of Python objects (dtype {values.dtype})")
    try:
        block = SharedBlock.create(max(values.nbytes, 1))
    except SharedMemoryError as error:
        raise SharedMemoryError(f"no room for a shared copy of an array of {values.nbytes:,} bytes") from error
    fd = os.dup(block.fd)
    np.ndarray(values.shape, values.dtype, block.buffer)[...] = values
    block.close()
    return np.ndarray(values.shape, values.dtype, SharedMemory.of(fd))


class SharingPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles for a worker, shared arrays by reference; what they refer to is collected in ``memories``."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self.memories: list[SharedMemory] = []

    def reducer_override(self, obj: Any) -> Any:
        """Where it lies, for a shared array."""
        found = SharedMemory.around(obj) if type(obj) is np.ndarray and obj.size else None
        if found is None:
            return super().reducer_override(obj)
        memory, offset = found
        if not any(memory is other for other in self.memories):
            self.memories.append(memory)
        index = next(index for index, other in enumerate(self.memories) if other is memory)
        # Not the dtype itself: the pickle of one of times forgets its byte order.
        return _mapped, (index, offset, obj.shape, obj.strides, np.lib.format.dtype_to_descr(obj.dtype))

    @staticmethod
    def dumps(value: Any) -> tuple[bytes, list[SharedMemory]]:
        """A pickle, and the memories whose descriptors have to go with it, in order.

        Raises:
            FactoryError: They are too many for one message.
        """
        buffer = io.BytesIO()
        pickler = SharingPickler(buffer)
        pickler.dump(value)
        if len(pickler.memories) > _MOST:
            raise FactoryError(
                f"the environment factories of one worker refer to {len(pickler.memories)} shared arrays, and at most "
                f"{_MOST} are possible: share one large array, and give views of it to the factories"
            )
        return buffer.getvalue(), pickler.memories

    @staticmethod
    def is_needed() -> bool:
        """Whether there are shared arrays, and descriptors can be sent."""
        return bool(SharedMemory.known) and hasattr(socket, "send_fds")


#: While something is unpickled: the memories that it refers to.
_received: list[SharedMemory] = []


@contextlib.contextmanager
def received(fds: Sequence[int]) -> Iterator[None]:
    """While a pickle is read that came with these descriptors, which now belong to the arrays in it."""
    _received[:] = [SharedMemory.of(fd) for fd in fds]
    try:
        yield
    finally:
        _received.clear()


def _mapped(index: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], descr: Any) -> NDArray[Any]:
    dtype = np.lib.format.descr_to_dtype(descr)
    array: NDArray[Any] = np.ndarray(shape, dtype, _received[index], offset, strides)
    return array


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
