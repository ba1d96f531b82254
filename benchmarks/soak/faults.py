"""Faults that environments commit when they are told to, and what the parent must then say.

The program tells by a file in a folder, which only environments in workers are given: the same environments in the
serial engine never fail. Whoever commits a fault removes its file first, so that it happens once, and so that the
program sees that it has happened.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from fastvec import errors

#: Seconds that a harmless delay lasts.
SLOW = 0.05


class UnpicklableError(Exception):
    """Holds what cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class BaseOnlyError(BaseException):
    """Derived from BaseException directly."""


class Raising(NamedTuple):
    """What an environment raises: its type in the parent, and its name in the text."""

    kind: type[BaseException]
    name: str


RAISING = {
    "raise": Raising(KeyError, "KeyError"),
    "unpicklable": Raising(errors.EnvError, "UnpicklableError"),
    "base": Raising(BaseOnlyError, "BaseOnlyError"),
    "interrupt": Raising(errors.EnvError, "KeyboardInterrupt"),
    "sys.exit": Raising(errors.EnvError, "SystemExit"),
    "nan": Raising(errors.NanError, "NanError"),
}
#: What ends a worker, with its exit code.
DEADLY = {
    "os._exit": 9,
    "SIGKILL": -signal.SIGKILL,
    "SIGSEGV": -signal.SIGSEGV,
    "killed idle": -signal.SIGKILL,
    "killed in a step": -signal.SIGKILL,
}
#: What keeps a worker from answering.
HANGING = ("sleep", "busy", "SIGSTOP")

#: The kinds that an environment commits itself, by where it can.
WITHIN = {
    "step": ("raise", "unpicklable", "base", "interrupt", "sys.exit", "os._exit", "SIGKILL", "SIGSEGV"),
    "late step": ("raise", "sys.exit", "os._exit", "SIGKILL", "SIGSEGV"),
    "reset": ("raise", "unpicklable", "base", "sys.exit", "os._exit", "SIGKILL", "SIGSEGV"),
    "call": ("raise", "unpicklable", "base", "sys.exit", "os._exit", "SIGKILL", "SIGSEGV"),
    "constructor": ("raise", "unpicklable", "sys.exit", "os._exit", "SIGKILL"),
    "close": ("raise", "sys.exit", "os._exit", "SIGKILL", "sleep"),
}


class Fault(NamedTuple):
    """An environment that fails, where, and how."""

    env: int
    where: str
    how: str

    @property
    def deadly(self) -> bool:
        return self.how in DEADLY

    @property
    def reason(self) -> str:
        """A pattern of the reason that `worker_restarted` gives."""
        if self.how in DEADLY:
            code = DEADLY[self.how]
            said = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended itself with exit code {code}"
            return rf"worker \d+ .* died during .*{said}"
        if self.how in HANGING:
            return r"did not finish (within [\d.]+ s|in time): waiting for env"
        return rf"env {self.env} \(worker \d+, pid \d+\) raised {RAISING[self.how].name} in "

    @property
    def exitcode(self) -> int | None:
        code = DEADLY.get(self.how)
        return None if code is None else int(code)

    def complaint(self, error: BaseException, worker: int) -> str | None:
        """What is wrong with the error that the parent raised for it, if anything."""
        if self.deadly:
            if not isinstance(error, errors.WorkerDiedError):
                return f"{self} raised {error!r}"
            if (error.worker, error.exitcode) != (worker, self.exitcode):
                return f"{self} blames worker {error.worker}, exit code {error.exitcode}"
            if self.how == "SIGSEGV" and "commit" not in str(error):
                return f"{self} shows no stack: {error}"
            return None
        if self.how in HANGING:
            right = isinstance(error, errors.WorkerTimeoutError) and self.env in error.env_indices
            return None if right else f"{self} raised {error!r}"
        cause = error if isinstance(error, errors.EnvError) else error.__cause__
        if type(error) is not RAISING[self.how].kind or not isinstance(cause, errors.EnvError):
            return f"{self} raised {error!r}, caused by {cause!r}"
        if (cause.env_index, cause.worker) != (self.env, worker):
            return f"{self} blames env {cause.env_index}, worker {cause.worker}"
        return None if RAISING[self.how].name in str(cause) else f"{self} is called {cause}"


class Orders:
    """The faults that were ordered and have not happened, as files of a folder.

    Args:
        folder: Which is empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waiting: list[Fault] = []

    def give(self, fault: Fault) -> None:
        self.waiting = [other for other in self.waiting if self._path(other) != self._path(fault)]
        self._path(fault).write_text(fault.how)
        self.waiting.append(fault)

    def waits(self, fault: Fault) -> bool:
        return self._path(fault).exists()

    def take_back(self, fault: Fault) -> None:
        self._path(fault).unlink(missing_ok=True)
        self.waiting.remove(fault)

    def happened(self) -> list[Fault]:
        """Those that have happened since the last look."""
        done = [fault for fault in self.waiting if not self._path(fault).exists()]
        for fault in done:
            self.waiting.remove(fault)
        return done

    def withdraw(self) -> None:
        """Forget what has not happened."""
        for fault in list(self.waiting):
            self.take_back(fault)

    def _path(self, fault: Fault) -> Path:
        return self.folder / f"{fault.env}-{fault.where}"


def ordered(folder: str, env: int, where: str) -> str | None:
    """The fault that an environment is to commit now, which is thereby no longer waiting."""
    path = f"{folder}/{env}-{where}"
    if not os.path.exists(path):
        return None
    with open(path) as file:
        how = file.read()
    os.unlink(path)
    return how


def commit(how: str) -> None:
    """Do one of the faults."""
    if how == "raise":
        raise KeyError("bad torque")
    if how == "unpicklable":
        raise UnpicklableError("bad torque")
    if how == "base":
        raise BaseOnlyError("bad torque")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "sys.exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(9)
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(600)
    if how == "busy":  # in C, with the GIL held
        sum(range(10**12))
    if how in ("sleep", "killed in a step"):
        time.sleep(600)
    if how == "slow":
        time.sleep(SLOW)
