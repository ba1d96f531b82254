"""The engine: many environments, stepped together.

:class:`Engine` is what a face sees. Two exist: :class:`ProcessEngine` here, and
:class:`~fastvec._core.serial.SerialEngine`, which runs the same code in this process.

States of an engine, and what each call does to it::

    state      send()      recv()            reset()            call()             close()
    IDLE       → PENDING   CallError         IDLE               IDLE               → CLOSED
    PENDING    CallError   → IDLE            drops the step     receives the step  → CLOSED
                           timeout: PENDING                     first, keeps it
    BROKEN     BrokenError from everything that works with environments             → CLOSED
    CLOSED     ClosedError from everything that works with environments             nothing

What an environment raises in a step or a reset, and the death of a worker, break the engine. What
it raises in a call does not.
"""

from __future__ import annotations

import os
import pickle
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, NoReturn, Protocol

from fastvec._core.actions import check_actions
from fastvec._core.channel import Gone
from fastvec._core.config import EngineConfig
from fastvec._core.pool import WorkerHandle, WorkerPool, death_of
from fastvec._core.protocol import (
    NO_NEWS,
    Adapter,
    CallRequest,
    Opcode,
    RemoteFailure,
    ResetRequest,
    Status,
    StepNews,
    dumps,
)
from fastvec._core.results import BatchReader, ResetResult, StepResult
from fastvec._core.structure import EnvDescription
from fastvec._core.sync import spin
from fastvec.errors import BrokenError, CallError, ClosedError, WorkerTimeoutError

__all__ = ["Engine", "EngineState", "ProcessEngine"]


class EngineState(Enum):
    """See the table in the module's docstring."""

    IDLE = "idle"
    PENDING = "pending"
    BROKEN = "broken"
    CLOSED = "closed"


class Engine(Protocol):
    """What a face sees of an engine."""

    num_envs: int
    description: EnvDescription

    @property
    def state(self) -> EngineState:
        """Where in its life it is."""

    def reset(self, seeds: Sequence[int | None], options: Sequence[Any]) -> ResetResult:
        """Reset every environment, each with its seed and options; a false option is not passed on."""

    def send(self, actions: Any) -> None:
        """Start a step. The actions are checked first: an ActionError has touched nothing."""

    def recv(self, timeout: float | None = None) -> StepResult:
        """Finish the step. After a WorkerTimeoutError it is still pending."""

    def call(
        self, name: str, function: Callable[..., Any], *args: Any, env_ids: Iterable[int], **kwargs: Any
    ) -> list[Any]:
        """``function(env, *args, **kwargs)`` for some environments, in the order of ``env_ids``."""

    def close(self) -> None:
        """Close every environment and give everything back. Idempotent, and bounded in time."""


#: A wait for one worker lasts this long before all others are looked at too, and the dead are counted.
_SLICE = 0.02


class ProcessEngine:
    """Environments in worker processes.

    Args:
        config: Validated options.
        env_fns: One factory an environment.
        adapter: What the face adds.
    """

    def __init__(self, config: EngineConfig, env_fns: Sequence[Callable[[], Any]], adapter: Adapter) -> None:
        self._config = config
        self._owner = os.getpid()
        self._why_broken = ""
        self._asked_to_close = False
        self._pool = WorkerPool(config, env_fns, adapter)
        self.num_envs = config.num_envs
        self.description = self._pool.description
        self._views = self._pool.views
        self._workers = self._pool.workers
        self._batch = BatchReader(self.description, self._views, (w.env_ids for w in self._workers), pickle.loads)
        self._worker_of = [worker for worker in self._workers for _ in worker.env_ids]
        self._missing: dict[int, WorkerHandle] = {}
        self._news: list[StepNews] = []
        self._received: StepResult | None = None
        self.state = EngineState.IDLE
        # At interpreter exit, or when the last reference goes; a pool knows whether it has been stopped.
        self._finalizer = weakref.finalize(self, _stop, self._pool)

    def reset(self, seeds: Sequence[int | None], options: Sequence[Any]) -> ResetResult:
        """See :class:`Engine`."""
        self._check_usable("reset()")
        deadline = self._deadline(self._config.reset_timeout)
        messages = [
            dumps(ResetRequest([seeds[i] for i in w.env_ids], [options[i] for i in w.env_ids])) for w in self._workers
        ]
        self._settle(self._workers, deadline, "reset")
        self._received = None
        self._begin(Opcode.RESET, "reset", messages, deadline)
        self.state = EngineState.IDLE
        self._collect("reset", deadline, self._config.reset_timeout)
        return self._batch.reset(self._news)

    def send(self, actions: Any) -> None:
        """See :class:`Engine`."""
        self._check_usable("step()")
        if self.state is EngineState.PENDING:
            raise CallError("a step is pending already: receive it before sending the next")
        batch = check_actions(actions, self.num_envs, self.description.action)
        deadline = self._deadline(self._config.step_timeout)
        self._settle(self._workers, deadline, "step")
        if batch.array is not None:
            self._views.actions(batch.code)[...] = batch.array
            self._begin(Opcode.STEP, "step", None, deadline, code=batch.code)
        else:
            messages = [dumps([batch.objects[i] for i in worker.env_ids]) for worker in self._workers]
            self._begin(Opcode.STEP_OBJECTS, "step", messages, deadline)
        self.state = EngineState.PENDING

    def recv(self, timeout: float | None = None) -> StepResult:
        """See :class:`Engine`; ``timeout`` in seconds, None for the configured one."""
        self._check_usable("step()")
        if self.state is not EngineState.PENDING:
            raise CallError("no step is pending: send one first")
        self._receive_step(self._config.step_timeout if timeout is None else timeout)
        result, self._received = self._received, None
        self.state = EngineState.IDLE
        assert result is not None
        return result

    def _receive_step(self, seconds: float | None) -> None:
        if self._received is None:
            self._collect("step", self._deadline(seconds), seconds)
            self._received = self._batch.step(self._news)

    def call(
        self, name: str, function: Callable[..., Any], *args: Any, env_ids: Iterable[int], **kwargs: Any
    ) -> list[Any]:
        """See :class:`Engine`."""
        self._check_usable(name)
        ids = list(env_ids)
        if self.state is EngineState.PENDING:
            self._receive_step(self._config.step_timeout)
        rows: dict[int, list[int]] = {}
        places: dict[int, list[int]] = {}
        for place, env_id in enumerate(ids):
            worker = self._worker_of[env_id]
            rows.setdefault(worker.index, []).append(env_id - worker.env_ids.start)
            places.setdefault(worker.index, []).append(place)
        targets = [self._workers[index] for index in rows]
        # Pickled before anything is sent, so that arguments which cannot be leave no worker waiting.
        messages = [dumps(CallRequest(name, function, args, kwargs, rows[worker.index])) for worker in targets]
        self._settle(targets, None, name)
        state = self.state
        self._enter_sending(name)
        for worker, message in zip(targets, messages, strict=True):
            self._command(worker, name, Opcode.CALL, message=message)
        self.state = state
        results: list[Any] = [None] * len(ids)
        failure: RemoteFailure | None = None
        missing = {worker.index: worker for worker in targets}
        while missing:
            worker, status, payload = self._next_reply(missing, name, None, None)
            value = pickle.loads(payload)
            if status == Status.FAILED:
                failure = failure or value
            else:
                for place, result in zip(places[worker.index], value, strict=True):
                    results[place] = result
        if failure is not None:
            raise failure.exception()
        return results

    def close(self) -> None:
        """See :class:`Engine`."""
        if self.state is EngineState.CLOSED:
            return
        self.state = EngineState.CLOSED
        self._finalizer.detach()
        self._pool.stop(closed=self._asked_to_close)

    def _check_usable(self, what: str) -> None:
        if self.state is EngineState.BROKEN:
            raise BrokenError(f"{what} is not possible: {self._why_broken}. Only close() is")
        if self.state is EngineState.CLOSED:
            raise ClosedError(f"{what} is not possible: the environments have been closed")
        if os.getpid() != self._owner:
            raise CallError(
                f"{what} is not possible here: these environments belong to process {self._owner}, and this is its "
                f"forked child {os.getpid()}. Make environments of its own there"
            )

    def _deadline(self, seconds: float | None) -> float | None:
        return None if seconds is None else time.monotonic() + seconds

    def _begin(
        self,
        opcode: Opcode,
        name: str,
        messages: list[bytes] | None,
        deadline: float | None,
        code: int = 0,
    ) -> None:
        """Command all workers; from here on :meth:`_collect` waits for them."""
        self._enter_sending(name)
        self._missing = {worker.index: worker for worker in self._workers}
        self._news = [NO_NEWS] * len(self._workers)
        if messages is None:
            for worker in self._workers:
                worker.command(opcode, code=code, spin_us=self._config.worker_spin_us)
            return
        for worker, message in zip(self._workers, messages, strict=True):
            self._command(worker, name, opcode, message=message, deadline=deadline)

    def _enter_sending(self, name: str) -> None:
        """Until the caller sets another state: an interrupt may leave some workers with a command and some without."""
        self.state = EngineState.BROKEN
        self._why_broken = f"sending {name} to the workers was interrupted"

    def _command(
        self, worker: WorkerHandle, name: str, opcode: Opcode, *, message: bytes, deadline: float | None = None
    ) -> None:
        try:
            worker.command(opcode, message=message, deadline=deadline)
        except Gone:
            self._break(death_of(worker, name))
        except TimeoutError:
            # Half a message may be on its way: there is no going on from here.
            self._break(
                WorkerTimeoutError(f"worker {worker.index} did not take its command in time, in {name}")
            )

    def _settle(self, workers: Iterable[WorkerHandle], deadline: float | None, name: str) -> None:
        """Take the replies that nobody has waited for, after a timeout or before a reset."""
        late = {worker.index: worker for worker in workers if worker.busy}
        while late:
            _, status, payload = self._next_reply(late, name, deadline, None)
            if status == Status.FAILED and self._missing:
                self._fail(pickle.loads(payload))
        self._missing = {}

    def _collect(self, name: str, deadline: float | None, seconds: float | None) -> None:
        """Wait for the replies of all workers and keep their news; a failure among them breaks the engine."""
        while self._missing:
            worker, status, payload = self._next_reply(self._missing, name, deadline, seconds)
            value = pickle.loads(payload) if payload else NO_NEWS
            if status == Status.FAILED:
                self._fail(value)
            self._news[worker.index] = value

    def _next_reply(
        self, missing: dict[int, WorkerHandle], name: str, deadline: float | None, seconds: float | None
    ) -> tuple[WorkerHandle, int, bytes]:
        """Take one reply out of those that are missing."""
        worker = next(iter(missing.values()))
        try:
            if self._config.parent_spin_us:
                spin(worker.reply, 0, worker.sequence, self._config.parent_spin_us * 1e-6)
            rung = worker.reply_bell.wait(0)
            while not rung:
                left = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
                rung = worker.reply_bell.wait(max(left, 0))
                if not rung:
                    worker, rung = self._look_around(missing, worker, name)
                    if not rung and deadline is not None and time.monotonic() >= deadline:
                        raise self._timeout(missing, name, seconds)
            del missing[worker.index]
            status, payload = worker.take_reply()
        except Gone:
            self._break(death_of(worker, name))
        return worker, status, payload

    def _look_around(
        self, missing: dict[int, WorkerHandle], current: WorkerHandle, name: str
    ) -> tuple[WorkerHandle, bool]:
        """Another worker that has replied, if any; breaks the engine if one has died."""
        for worker in missing.values():
            # The second: an interrupt may have come between taking the ring and taking note of it.
            if worker.reply_bell.wait(0) or (worker is current and worker.reply[0] == worker.sequence):
                return worker, True
        for worker in missing.values():
            # Its last reply may have come between the two looks.
            if worker.process.poll() is not None:
                if worker.reply_bell.wait(0):
                    return worker, True
                self._break(death_of(worker, name))
        return current, False

    def _timeout(self, missing: dict[int, WorkerHandle], name: str, seconds: float | None) -> WorkerTimeoutError:
        env_ids = tuple(i for worker in missing.values() for i in worker.env_ids)
        pids = ", ".join(f"worker {worker.index} (pid {worker.process.pid})" for worker in missing.values())
        limit = "in time" if seconds is None else f"within {seconds} s"
        return WorkerTimeoutError(
            f"{name} did not finish {limit}: waiting for envs {list(env_ids)} of {pids}", env_indices=env_ids
        )

    def _fail(self, failure: RemoteFailure) -> NoReturn:
        self._break(failure.exception())

    def _break(self, error: BaseException) -> NoReturn:
        """Raise an error that ends this engine; the healthy workers close their environments meanwhile."""
        first_line = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        self._why_broken = f"they ended with an error before ({first_line})"
        self.state = EngineState.BROKEN
        if not self._asked_to_close:
            self._asked_to_close = True
            self._pool.ask_to_close()
        raise error


def _stop(pool: WorkerPool) -> None:
    pool.stop(closed=False)

