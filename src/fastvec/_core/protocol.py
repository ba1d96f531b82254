"""What the parent and a worker say to each other, and how failures cross between them.

A worker's life::

    parent                                   worker
    WorkerInit            ── channel ──▶     pin, set variables, cap threads, build environments
                          ◀── channel ──     EnvDescription | RemoteFailure
    BatchLayout (+ fd)    ── channel ──▶     map the block
                          ◀── channel ──     True | RemoteFailure
    commands row, bell    ── block ────▶     Opcode.STEP: step; any other: take the message from the channel
                          ◀── block ────     replies row, bell; a payload in the mailbox, or on the channel if larger
    ...
    Opcode.CLOSE          ── block ────▶     close environments, end

Every command has a sequence number and its reply repeats it, so a late reply is never taken for a
later one. A worker has at most one command at a time.
"""

from __future__ import annotations

import io
import operator
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import FunctionType
from typing import Any, NamedTuple, Protocol

import cloudpickle

from fastvec._core.config import AutoresetMode
from fastvec._core.infos import InfoSchema
from fastvec._core.options import ResetOptions
from fastvec._core.structure import EnvDescription
from fastvec.errors import EnvError

__all__ = [
    "NO_NEWS",
    "REPLY_NUMBER",
    "Adapter",
    "CallRequest",
    "EnvFailure",
    "Opcode",
    "RemoteFailure",
    "ResetRequest",
    "Status",
    "StepNews",
    "WorkerInit",
    "WorkerPayload",
    "dumps",
    "dumps_home",
    "freeze",
]


#: Before a payload that follows on the channel: the sequence number of its command.
REPLY_NUMBER = struct.Struct("<q")


class Opcode(IntEnum):
    """What a worker is to do; in column 1 of its row of ``commands``."""

    STEP = 1  # actions lie in the block
    STEP_OBJECTS = 2  # actions follow on the channel
    RESET = 3
    CALL = 4
    CLOSE = 5


class Status(IntEnum):
    """How it went; in column 1 of a worker's row of ``replies``."""

    DONE = 1
    FAILED = 2


class Adapter(Protocol):
    """What a face tells the engine about its framework's environments. It is pickled to the workers."""

    def set_up(self) -> None:
        """Called once in a worker, before its factories."""

    def prepare(self, env: Any) -> Any:
        """The environment to use in place of the one that a factory returned."""

    def describe(self, envs: list[Any], env_ids: range) -> EnvDescription:
        """What these environments declare; raises SpaceMismatchError where they disagree."""

    def difference(self, first: EnvDescription, other: EnvDescription) -> str | None:
        """In words, how two descriptions differ, or None."""

    def modules_for(self, strings: set[str]) -> list[str]:
        """Modules that factories which mention these strings will import, as far as the framework can tell."""


class WorkerPayload(NamedTuple):
    """What a worker gets of the user's own code."""

    env_fns: list[Callable[[], Any]]
    adapter: Adapter
    reset_options: ResetOptions


@dataclass(frozen=True)
class WorkerInit:
    """Everything that a new worker needs to know.

    Attributes:
        worker: Its index.
        env_ids: Its environments.
        environ: All environment variables to run with.
        sys_path: Where to import from.
        argv: The program's command line, which environments may read.
        cwd: The working directory.
        cpus: CPUs to bind to, or None.
        threads: Cap on compute threads, or None.
        unsafe_casts: See EngineConfig.
        check_nan: See EngineConfig.
        autoreset_mode: See EngineConfig.
        spins: Whether to look for the next command for a moment before sleeping.
        payload: The factories, what the face adds, and the options of automatic resets; pickled, unless the process was
            forked and has them anyway.
    """

    worker: int
    env_ids: range
    environ: Mapping[str, str]
    sys_path: tuple[str, ...]
    argv: tuple[str, ...]
    cwd: str
    cpus: frozenset[int] | None
    threads: int | None
    unsafe_casts: bool
    check_nan: bool
    autoreset_mode: AutoresetMode
    spins: bool
    payload: bytes | WorkerPayload = field(repr=False)


class ResetRequest(NamedTuple):
    """Reset some environments of the worker (local indices), each with its keyword arguments.

    Attributes:
        ended: Whether they count as ended all the same, and are reset once more where ended environments are.
    """

    rows: list[int]
    arguments: list[Mapping[str, Any]]
    ended: bool = False


class CallRequest(NamedTuple):
    """Apply ``function(env, *args, **kwargs)`` to some environments (local indices, in order).

    Attributes:
        each: Further positional arguments, a tuple an environment; None for none.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: list[int]
    each: list[tuple[Any, ...]] | None = None


class StepNews(NamedTuple):
    """What a step or a reset has to say beyond the arrays. Falsy parts are the common case.

    Attributes:
        schemas: Info schemas that appear for the first time.
        rests: Frozen ``infos.Rest`` by row.
        reset_infos: Frozen infos of the resets that happened, by row.
        finals: Frozen last observations by row, where the block does not hold them exactly.
        objects: Frozen values of the leaves that travel as pickles, by (leaf, row).
    """

    schemas: list[InfoSchema]
    rests: dict[int, Any]
    reset_infos: dict[int, Any]
    finals: dict[int, Any]
    objects: dict[tuple[int, int], Any]


#: The news of an ordinary step: none. Compared by identity.
NO_NEWS = StepNews([], {}, {}, {}, {})


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


def dumps(value: Any, *, same_main: bool = False) -> bytes:
    """Pickle for a worker; by value what is defined in ``__main__``, which workers do not import.

    Args:
        value: What to send.
        same_main: Whether the receiver was forked from this process, and has its ``__main__``.
    """
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if same_main or b"__main__" not in data:
            return data
    except Exception:
        pass
    return cloudpickle.dumps(value)  # type: ignore[no-any-return]


def dumps_home(value: Any) -> bytes:
    """Pickle for the program that this worker belongs to; by reference what that has defined in ``__main__``.

    By value the program would get other classes than its own, or its own with the worker's attributes put over them.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        buffer = io.BytesIO()
        _HomePickler(buffer).dump(value)
        return buffer.getvalue()


class _HomePickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if (
            isinstance(obj, (type, FunctionType))
            and obj.__module__ == "__main__"
            and "<" not in obj.__qualname__  # neither <locals> nor <lambda>
        ):
            return _from_main, (obj.__qualname__,)
        return super().reducer_override(obj)


def _from_main(qualname: str) -> Any:
    return operator.attrgetter(qualname)(sys.modules["__main__"])


def freeze(value: Any) -> bytes:
    """The ``Freeze`` of a worker: a pickle is both the copy and what is sent."""
    return dumps_home(value)
