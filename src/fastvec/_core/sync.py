"""Wake-ups and waits, and the only place that reasons about the order of memory.

A :class:`Bell` counts rings. Ringing orders everything that the ringer wrote before it before
everything that the woken side reads after it. Two kinds exist:

:class:`SemaphoreBell` is an unnamed POSIX semaphore in the shared block (``sem_init`` with
``pshared``). ``sem_post`` is a release and a successful ``sem_wait`` an acquire operation, on x86
and on ARM; a post finds a sleeper by the semaphore's own count, so no wake-up is ever lost, and
costs no system call when nobody sleeps. glibc and musl keep all of its state in the block, so
nothing is left when its users are killed.

:class:`ChannelBell` is an empty message on the channel, for platforms without such semaphores.

NOTE [spinning]: before a wait sleeps it looks at a word in shared memory for a while. The look is only a
hint: what it guards is read after the semaphore has been taken. How long pays depends on free
cores and on how soon the word changes; who waits decides.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fastvec._core.channel import Channel

__all__ = ["Bell", "ChannelBell", "SemaphoreBell", "semaphores_work"]

_CLOCK_MONOTONIC = 1

#: So many looks between two at the clock.
_LOOKS = 20


class Bell(Protocol):
    """A counter of rings: ``wait`` takes one, or returns False when none came in time."""

    def ring(self) -> None:
        """Add one ring."""

    def wait(self, timeout: float) -> bool:
        """Take one ring; wait for it at most ``timeout`` seconds, 0 for not at all."""


class _Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


class _Libc:
    """The semaphore calls of the C library, found once a process."""

    def __init__(self) -> None:
        # PyDLL keeps the GIL: for calls that never sleep, giving it up costs more than they do.
        quick, slow = ctypes.PyDLL(None), ctypes.CDLL(None)
        self.init, self.post, self.trywait = quick.sem_init, quick.sem_post, quick.sem_trywait
        self.init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
        self.post.argtypes = self.trywait.argtypes = [ctypes.c_void_p]
        try:
            clockwait = slow.sem_clockwait  # glibc 2.30
            clockwait.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
            self.sleep = functools.partial(_clockwait, clockwait)
        except AttributeError:
            timedwait = slow.sem_timedwait  # by the wall clock: a jump of it stretches one wait
            timedwait.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            self.sleep = functools.partial(_timedwait, timedwait)


def _clockwait(call: Callable[..., int], address: int, seconds: float) -> bool:
    until = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(seconds * 1e9)
    spec = _Timespec(until // 10**9, until % 10**9)
    return call(address, _CLOCK_MONOTONIC, ctypes.byref(spec)) == 0


def _timedwait(call: Callable[..., int], address: int, seconds: float) -> bool:
    until = time.time_ns() + int(seconds * 1e9)
    spec = _Timespec(until // 10**9, until % 10**9)
    return call(address, ctypes.byref(spec)) == 0


@functools.lru_cache(maxsize=1)
def _libc() -> _Libc:
    return _Libc()


@functools.lru_cache(maxsize=1)
def semaphores_work() -> bool:
    """Whether this platform has unnamed semaphores that processes can share."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        memory = np.zeros(64, np.uint8)
        bell = SemaphoreBell(memory)
        bell.initialize()
        bell.ring()
        return bell.wait(0) and not bell.wait(0)
    except (AttributeError, OSError):
        return False


class SemaphoreBell:
    """A semaphore at the start of ``memory``, which both processes map.

    Args:
        memory: ``(>= 64,) uint8``, 64-byte aligned; the bell keeps it alive.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self._address = memory.ctypes.data
        libc = _libc()
        self._post = functools.partial(libc.post, self._address)
        self._trywait = functools.partial(libc.trywait, self._address)
        self._sleep = libc.sleep

    def initialize(self) -> None:
        """Make the semaphore; called once, by the process that made the memory."""
        if _libc().init(self._address, 1, 0) != 0:
            raise OSError("sem_init failed")

    def ring(self) -> None:
        """Add one ring."""
        self._post()

    def wait(self, timeout: float) -> bool:
        """Take one ring; wait for it at most ``timeout`` seconds, 0 for not at all."""
        if self._trywait() == 0:
            return True
        # A signal ends the sleep early; its Python handler runs before the caller waits again.
        return timeout > 0 and self._sleep(self._address, timeout)


class ChannelBell:
    """Empty messages on a channel. Between two rings nothing else may be waiting to be received."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def ring(self) -> None:
        """Add one ring."""
        self._channel.send(b"")

    def wait(self, timeout: float) -> bool:
        """Take one ring; wait for it at most ``timeout`` seconds, 0 for not at all."""
        try:
            self._channel.receive(deadline=time.monotonic() + timeout)
        except TimeoutError:
            return False
        return True


def spin(words: Sequence[tuple[memoryview, int]], until: float) -> bool:
    """Look at words of shared memory until one has the value that it is to have; see NOTE [spinning].

    Args:
        words: Integers, of which the first one is looked at, each with its value.
        until: ``time.perf_counter()`` at which to give up.

    Returns:
        Whether one has it.
    """
    while True:
        for _ in range(_LOOKS):
            for word, value in words:
                if word[0] == value:
                    return True
        if time.perf_counter() > until:
            return False
        os.sched_yield()
