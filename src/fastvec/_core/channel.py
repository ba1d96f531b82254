"""Messages between the parent and one other process, over a socket pair.

A message is a length and a pickle. Every wait watches a sentinel or ends with the other side's
death, and may have a deadline; none blocks in the kernel without one of these. File descriptors
travel beside a message where the platform can do that.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time

__all__ = ["Channel", "Gone", "deadline_after", "remaining", "wait_for"]

_HEADER = struct.Struct("<Q")
_CHUNK = 1 << 20
#: As many as Linux sends in one message.
_MAX_FDS = 253


class Gone(Exception):
    """The other side has closed the channel or died."""


def deadline_after(seconds: float | None) -> float | None:
    """The time of the monotonic clock after some seconds, None for never."""
    return None if seconds is None else time.monotonic() + seconds


def remaining(deadline: float | None) -> float | None:
    """Seconds until a ``time.monotonic()`` deadline, not below 0; None for no deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def wait_for(readable: list[int], timeout: float | None, writable: list[int] | None = None) -> list[int]:
    """The descriptors that are ready (or at their end), after at most ``timeout`` seconds."""
    if hasattr(select, "poll"):
        poll = select.poll()
        for fd in readable:
            poll.register(fd, select.POLLIN)
        for fd in writable or []:
            poll.register(fd, select.POLLOUT)
        return [fd for fd, _ in poll.poll(None if timeout is None else max(0, timeout * 1000))]
    ready = select.select(readable, writable or [], [], timeout)
    return [*ready[0], *ready[1]]


class Channel:
    """One end of a socket pair. It owns the socket and, until taken, the descriptors received."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._chunks: list[bytes] = []
        #: Whether messages may come with descriptors.
        self.expects_fds = True
        self._fds: list[int] = []

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel, and the socket for the other process to make its end from."""
        ours, theirs = socket.socketpair()
        return cls(ours), theirs

    def fileno(self) -> int:
        """The socket's descriptor, -1 once closed."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket, and the descriptors that nobody took."""
        self._sock.close()
        for fd in self.take_fds():
            socket.close(fd)

    def take_fds(self) -> list[int]:
        """The descriptors received so far; the caller owns them now."""
        fds, self._fds = self._fds, []
        return fds

    def send(
        self, payload: bytes, *, fds: tuple[int, ...] = (), deadline: float | None = None, sentinel: int | None = None
    ) -> None:
        """Send one message, whatever its size.

        Args:
            payload: The message.
            fds: Descriptors to send copies of.
            deadline: ``time.monotonic()`` at which to give up.
            sentinel: A descriptor that becomes readable when the other process has died.

        Raises:
            Gone: The other side has died.
            TimeoutError: The other side did not read in time. Part of the message may have been sent.
        """
        view = memoryview(_HEADER.pack(len(payload)) + payload)
        while view:
            try:
                if fds:
                    sent = socket.send_fds(self._sock, [view[:_CHUNK]], list(fds))
                    fds = ()
                else:
                    sent = self._sock.send(view[:_CHUNK])
                view = view[sent:]
            except BlockingIOError:
                self._wait(deadline, sentinel, for_writing=True)
            except OSError as error:
                raise Gone from error

    def receive(self, *, deadline: float | None = None, sentinel: int | None = None) -> bytes:
        """Take the next message.

        Raises:
            Gone: The other side has died or closed, and everything that it had sent has been taken.
            TimeoutError: No whole message came in time; what came of it is kept for the next call.
        """
        message = self.peek(deadline=deadline, sentinel=sentinel)
        self.drop()
        return message

    def peek(self, *, deadline: float | None = None, sentinel: int | None = None) -> bytes:
        """The next message, which stays the next one until :meth:`drop`; as :meth:`receive` otherwise."""
        while not self._has_message():
            if not self._fill():
                self._wait(deadline, sentinel, for_writing=False)
        return b"".join(self._chunks)[_HEADER.size : self._needed()]

    def drop(self) -> None:
        """Drop the message that :meth:`peek` has returned."""
        rest = b"".join(self._chunks)[self._needed() :]
        # One assignment, so that an interrupt finds it done or not done. An empty chunk would have every look at the
        # next message join all that has come of it.
        self._chunks = [rest] if rest else []

    def poll(self) -> bool:
        """Whether a whole message is there; reads what has come without waiting."""
        while not self._has_message():
            try:
                if not self._fill():
                    return False
            except Gone:
                return False
        return True

    def at_end(self) -> bool:
        """Whether the other side is gone, without waiting."""
        try:
            self._fill()
        except Gone:
            return True
        return False

    def discard(self) -> None:
        """Read and drop what has come, so that the other side is not stuck in sending."""
        try:
            while self._fill():
                self._chunks = []
        except Gone:
            pass

    def _fill(self) -> bool:
        """Read what is there; False where nothing is."""
        try:
            if self.expects_fds and hasattr(socket, "recv_fds"):
                data, fds, _, _ = socket.recv_fds(self._sock, _CHUNK, _MAX_FDS)
                for fd in fds:
                    os.set_inheritable(fd, False)
                self._fds += fds
                self._chunks.append(data)
            else:
                # Received and stored by one call of the interpreter: a KeyboardInterrupt finds the data there or not
                # yet read, but never in between, where it would be lost.
                self._chunks.extend(map(self._sock.recv, (_CHUNK,)))
        except BlockingIOError:
            return False
        except OSError as error:
            raise Gone from error
        if not self._chunks[-1]:
            raise Gone
        return True

    def _needed(self) -> int:
        """Bytes of the next message and its header, once that has come."""
        head = self._chunks[0] if len(self._chunks[0]) >= _HEADER.size else b"".join(self._chunks)
        length: int = _HEADER.unpack_from(head)[0]
        return _HEADER.size + length

    def _has_message(self) -> bool:
        there = sum(map(len, self._chunks))
        return there >= _HEADER.size and there >= self._needed()

    def _wait(self, deadline: float | None, sentinel: int | None, *, for_writing: bool) -> None:
        fd = self._sock.fileno()
        if fd < 0:
            raise Gone
        watched = [] if sentinel is None else [sentinel]
        ready = (
            wait_for(watched, remaining(deadline), [fd])
            if for_writing
            else wait_for([fd, *watched], remaining(deadline))
        )
        if not ready:
            raise TimeoutError
        if fd not in ready:  # only the sentinel: it has died, and what it had sent has been read
            raise Gone
