"""Who wrote a line: a prefix on what Python code in a worker writes to stdout and stderr.

The streams of all workers end in the same two descriptors as the program's. With a prefix, each line is
written when it is complete, whole and by one call of the system, so that lines of different workers do not
mix (in a pipe, lines of up to 4096 bytes). There is no thread and no pipe in between, hence nothing that
could fill up or outlive a worker; and so what does not go through ``sys.stdout`` and ``sys.stderr`` has no
prefix: native code, child processes, whoever has kept an earlier stream.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from typing import Any

__all__ = ["PrefixedLines", "end_output", "output_prefix", "prefix_output"]

#: Bytes after which a line is broken: what never ends one is to be seen, and not to fill the memory.
LONGEST_LINE = 1 << 16


class PrefixedLines(io.RawIOBase):
    """Bytes to lines of a descriptor, each with a prefix. It does not own the descriptor.

    Each thread has a line of its own under way.

    Args:
        fd: Where to write.
        prefix: What stands before each line.
    """

    def __init__(self, fd: int, prefix: bytes) -> None:
        self._fd, self._prefix = fd, prefix
        self._begun: dict[int, bytearray] = {}

    def fileno(self) -> int:
        """The descriptor, for those who want to write to it directly."""
        return self._fd

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Write the lines that ``data`` ends, and keep what is left of it for the next call."""
        thread = threading.get_ident()
        begun = self._begun.pop(thread, None) or bytearray()
        begun += data
        while begun:
            end = begun.find(b"\n", 0, LONGEST_LINE) + 1
            if not end and len(begun) < LONGEST_LINE:
                self._begun[thread] = begun
                break
            end = end or LONGEST_LINE
            self._write_line(begun[:end])
            del begun[:end]
        return len(memoryview(data).cast("B"))

    def end(self) -> None:
        """Write what has been begun by whatever thread."""
        while self._begun:
            self._write_line(self._begun.popitem()[1])

    def _write_line(self, line: bytearray) -> None:
        rest = memoryview(self._prefix + line + (b"" if line.endswith(b"\n") else b"\n"))
        while rest:
            rest = rest[os.write(self._fd, rest) :]


def output_prefix(worker: int, env_ids: range) -> str:
    """What stands before the lines of a worker."""
    envs = f"env {env_ids[0]}" if len(env_ids) == 1 else f"envs {env_ids[0]}-{env_ids[-1]}"
    return f"[worker {worker}, {envs}] "


def prefix_output(prefix: str) -> None:
    """Have this process write its lines with a prefix, to the descriptors 1 and 2."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:  # the descriptor is closed
            continue
        with contextlib.suppress(Exception):
            stream.flush()
        encoding = getattr(stream, "encoding", None) or "utf-8"
        lines = PrefixedLines(fd, prefix.encode())
        setattr(sys, name, io.TextIOWrapper(lines, encoding, "backslashreplace", write_through=True))


def end_output() -> None:
    """Write what this process has kept of its output: the last line, where it is not complete."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
            lines = getattr(stream, "buffer", None)
            if isinstance(lines, PrefixedLines):
                lines.end()
