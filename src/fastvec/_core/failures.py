"""How the failure of an environment crosses from a worker to the program."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass

from fastvec._core.pickles import dumps_home
from fastvec.errors import EnvError

__all__ = ["EnvFailure", "RemoteFailure", "reason_of"]


def reason_of(error: BaseException) -> str:
    """What is to be said of an error in one line: who raised what, where that is known."""
    return str(error.__cause__ or error).strip().partition("\n")[0] or type(error).__name__


class EnvFailure(Exception):
    """Internal: an environment (a global index, or None) raised ``error`` while doing ``command``."""

    def __init__(self, env_index: int | None, command: str, error: BaseException) -> None:
        super().__init__(env_index, command, error)
        self.env_index, self.command, self.error = env_index, command, error


#: Raising these in the parent would end the program silently, or a generator that happens to be around.
_NOT_RERAISED = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration)


@dataclass(frozen=True)
class RemoteFailure:
    """An exception on its way to the parent.

    Attributes:
        env_index: Whose it is, or None.
        command: What was being done.
        type_name: The exception's type.
        message: Its text.
        traceback: The worker's traceback.
        pickled: The exception itself, or None where it cannot be pickled.
        worker: Index of the worker, or None in this process.
        pid: Its process id.
    """

    env_index: int | None
    command: str
    type_name: str
    message: str
    traceback: str
    pickled: bytes | None
    worker: int | None
    pid: int

    @classmethod
    def of(cls, failure: EnvFailure, worker: int | None, pid: int) -> RemoteFailure:
        """Describe a failure; this itself never fails, whatever the exception is made of."""
        error = failure.error
        try:
            pickled = None if isinstance(error, _NOT_RERAISED) else dumps_home(error)
        except Exception:
            pickled = None
        try:
            message = str(error)
        except Exception:
            message = "(its message cannot be shown)"
        try:
            text = "".join(traceback.format_exception(error))
        except Exception:
            text = "(its traceback cannot be shown)"
        return cls(failure.env_index, failure.command, type(error).__qualname__, message, text, pickled, worker, pid)

    def exception(self) -> BaseException:
        """The exception to raise in the parent: the environment's own with an EnvError as cause, or that."""
        who = "the worker's set-up" if self.env_index is None else f"env {self.env_index}"
        where = "in this process" if self.worker is None else f"worker {self.worker}, pid {self.pid}"
        cause = EnvError(
            f"{who} ({where}) raised {self.type_name} in {self.command}: {self.message}\n\n{self.traceback}",
            env_index=self.env_index,
            worker=self.worker,
            pid=self.pid,
            command=self.command,
            traceback=self.traceback,
        )
        if self.pickled is None:
            return cause
        try:
            error = pickle.loads(self.pickled)
        except Exception:
            return cause
        if not isinstance(error, BaseException):
            return cause
        error.__cause__ = cause
        return error
