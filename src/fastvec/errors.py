"""Every error that fastvec raises, each also a built-in one, so that ``except ValueError`` keeps working.

::

    FastvecError
    ├── ConfigError (ValueError)           an option, or a combination of options, is wrong
    ├── FactoryError (TypeError)           an environment factory is no factory, or cannot be sent to a worker
    ├── DuplicateEnvError (ValueError)     two factories returned the same environment object
    ├── SpaceMismatchError (ValueError)    the environments declare different spaces; a RuntimeError too
    ├── ActionError (ValueError)           a batch of actions does not fit; nothing was sent; a TypeError too
    ├── ObservationError (ValueError)      an environment returned an observation outside what its space declares
    ├── RewardError (TypeError)            an environment returned a reward that is no number
    ├── NanError (ValueError)              an environment returned NaN or infinity, where that is looked for
    ├── InfoError (TypeError)              an info cannot be sent, or put into another format
    ├── CallError (RuntimeError)           a step is pending, or none is
    ├── ClosedError (RuntimeError)         used after close()
    ├── BrokenError (RuntimeError)         used after a failure that ended it; says which
    ├── EnvError (RuntimeError)            an environment raised; carries where and the worker's traceback
    ├── WorkerDiedError (ChildProcessError)   a worker process ended without being asked to
    ├── WorkerTimeoutError (TimeoutError)  a worker did not answer in time; a multiprocessing.TimeoutError too
    └── SharedMemoryError (MemoryError)    the operating system gave no shared memory

An environment's own exception is raised in the parent as its own type wherever it can be
rebuilt there, with an :class:`EnvError` as its ``__cause__``.
"""

from __future__ import annotations

import multiprocessing

__all__ = [
    "ActionError",
    "BrokenError",
    "CallError",
    "ClosedError",
    "ConfigError",
    "DuplicateEnvError",
    "EnvError",
    "FactoryError",
    "FastvecError",
    "InfoError",
    "NanError",
    "ObservationError",
    "RewardError",
    "SharedMemoryError",
    "SpaceMismatchError",
    "WorkerDiedError",
    "WorkerTimeoutError",
]


class FastvecError(Exception):
    """The root of every error that fastvec itself raises."""


class ConfigError(FastvecError, ValueError):
    """An option, or a combination of options, is wrong."""


class FactoryError(FastvecError, TypeError):
    """An entry of ``env_fns`` is not a factory, or cannot be sent to a worker process."""


class DuplicateEnvError(FastvecError, ValueError):
    """Two factories returned the same environment object."""


class SpaceMismatchError(FastvecError, ValueError, RuntimeError):
    """The environments do not all declare the same observation and action space."""


class ActionError(FastvecError, ValueError, TypeError):
    """A batch of actions has the wrong length, shape or dtype. No environment has advanced."""


class ObservationError(FastvecError, ValueError):
    """An environment returned an observation that does not fit the space that it declares."""


class RewardError(FastvecError, TypeError):
    """An environment returned a reward that is not a real number."""


class NanError(FastvecError, ValueError):
    """An environment returned NaN or infinity; looked for with ``check_nan=True`` only."""


class InfoError(FastvecError, TypeError):
    """An info cannot be sent to the parent process, or put into another format."""


class CallError(FastvecError, RuntimeError):
    """A call came out of order: a step is pending already, or none is."""


class ClosedError(FastvecError, RuntimeError):
    """The environments have been closed."""


class BrokenError(FastvecError, RuntimeError):
    """An earlier failure ended these environments; the message says which."""


class EnvError(FastvecError, RuntimeError):
    """An environment raised an exception in a worker.

    It is the ``__cause__`` of the environment's own exception, or raised itself where that one
    cannot be rebuilt in this process (or must not, as ``SystemExit``).

    Attributes:
        env_index: Index of the environment in the batch, or None where no single one is to blame.
        worker: Index of the worker; None when the environments run in this process.
        pid: Process id of the worker.
        command: What the environment was asked to do: ``"constructor"``, ``"reset"``, ``"step"``, ...
        traceback: The traceback in the worker, as text.
    """

    def __init__(
        self,
        message: str,
        *,
        env_index: int | None = None,
        worker: int | None = None,
        pid: int | None = None,
        command: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.env_index = env_index
        self.worker = worker
        self.pid = pid
        self.command = command
        self.traceback = traceback


class WorkerDiedError(FastvecError, ChildProcessError):
    """A worker process ended without being asked to.

    Attributes:
        worker: Index of the worker.
        pid: Its process id.
        exitcode: Its exit code, ``-N`` where signal N killed it, None where it is not known.
        env_index: The environment whose code it was running, None where it ran none's.
    """

    def __init__(
        self,
        message: str,
        *,
        worker: int | None = None,
        pid: int | None = None,
        exitcode: int | None = None,
        env_index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.env_index = env_index
        self.worker = worker
        self.pid = pid
        self.exitcode = exitcode


class WorkerTimeoutError(FastvecError, TimeoutError, multiprocessing.TimeoutError):
    """A worker did not answer in time. What has a ``*_wait()`` of its own stays pending, and can be received later.

    Attributes:
        env_indices: The environments whose results are missing.
    """

    def __init__(self, message: str, *, env_indices: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.env_indices = env_indices


class SharedMemoryError(FastvecError, MemoryError):
    """The operating system did not give the shared memory that was asked for."""
