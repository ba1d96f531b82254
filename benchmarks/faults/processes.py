"""Looking at processes, running programs, and ending what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from faults.case import JOURNAL, LIMIT, START_LIMIT, phase, session

#: The folder that this package is in.
ROOT = Path(__file__).parents[1]

#: Known by what is in their command lines.
SERVERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "_core.forkserver import serve")


class Process(NamedTuple):
    pid: int
    parent: int
    session: int


def processes() -> Iterator[Process]:
    """All that run; those that have ended and were not waited for are left out."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                yield Process(int(entry.name), int(fields[1]), int(fields[3]))


def in_session(leader: int) -> list[int]:
    return [process.pid for process in processes() if process.session == leader]


def descendants(pid: int) -> list[int]:
    """Children, and theirs, but no fork server or resource tracker of `multiprocessing`."""
    table = list(processes())
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        children = [process.pid for process in table if process.parent == parent]
        found += [child for child in children if not is_server(child)]
        todo += children
    return found


def is_server(pid: int) -> bool:
    """Whether a process is there to start others."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        mother = Path(f"/proc/{parent}/cmdline").read_text()
    except OSError:
        return True  # it has just ended
    # A worker that it has forked has the same command, and it as its parent.
    return command != mother and any(name in command for name in SERVERS)


def kill_session(leader: int) -> None:
    """End every process of a session."""
    for _ in range(20):
        pids = in_session(leader)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Ended(NamedTuple):
    """A program that was run.

    Attributes:
        code: Its exit code; None where it did not end in time.
        left: How many processes it has left behind.
    """

    code: int | None
    out: str
    err: str
    left: int

    @property
    def tracebacks(self) -> int:
        return self.err.count("Traceback (most recent call last)")


HEADER = """
import os, signal, sys, time
from faults.envs import *
from faults.libraries import LIBRARIES
library = LIBRARIES[sys.argv[1]]
"""


def run_program(
    text: str,
    library: Any,
    folder: Path,
    *,
    act: Callable[[subprocess.Popen[bytes]], None] | None = None,
    prefix: tuple[str, ...] = (),
    python: tuple[str, ...] = (),
    limit: float = START_LIMIT,
) -> Ended:
    """Run a script in a session of its own, and look what remains of it.

    Args:
        text: It finds the environments and the `library` in scope.
        library: Under test.
        folder: For its files.
        act: What to do once the script has printed a line "ready"; from then on the usual limit counts.
        prefix: A command that runs it.
        python: Arguments for the interpreter.
        limit: Seconds.
    """
    phase("a program", limit + 3 * LIMIT)
    script = folder / "script.py"
    script.write_text(HEADER + text)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
    environ.pop(JOURNAL, None)
    command = [*prefix, sys.executable, *python, str(script), library.name]
    with open(folder / "out", "wb+") as out, open(folder / "err", "wb+") as err:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        session(process.pid)

        def said() -> bool:
            return b"ready" in (folder / "out").read_bytes() or process.poll() is not None

        if act:
            wait_until(said, limit)
            act(process)
            limit = LIMIT
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        left = 0
        if code is not None and not wait_until(lambda: not in_session(process.pid), 3.0):
            left = len(in_session(process.pid))
        kill_session(process.pid)
        process.wait()
        return Ended(code, (folder / "out").read_text(), (folder / "err").read_text(), left)
