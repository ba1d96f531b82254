"""The engine with worker processes: what to send to whom, and whose reply is missing.

It owns the pool. It sends a command to each worker, waits for their replies with one eye on their
lives, and keeps its state by the table in :mod:`fastvec._core.engine`. What processes, channels
and the block are made of it leaves to the pool, what the arrays mean to :mod:`fastvec._core.results`.
"""

from __future__ import annotations

import functools
import logging
import math
import pickle
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fastvec._core.channel import Gone
from fastvec._core.config import EngineConfig
from fastvec._core.engine import Call, CallOutcome, Engine, EngineState, Reset
from fastvec._core.handle import WorkerHandle, death_of, waiting_for
from fastvec._core.lineage import close_in_children
from fastvec._core.pool import WorkerPool
from fastvec._core.protocol import (
    NO_NEWS,
    Adapter,
    CallRequest,
    Opcode,
    ResetRequest,
    Status,
    StepNews,
    dumps,
)
from fastvec._core.results import BatchReader, ResetResult, StepResult
from fastvec.errors import InfoError, WorkerTimeoutError

__all__ = ["ProcessEngine"]

_LOGGER = logging.getLogger("fastvec")

#: A wait for one worker lasts this long before all others are looked at too, and the dead are counted.
_SLICE = 0.02


class ProcessEngine(Engine):
    """Environments in worker processes.

    Args:
        config: Validated options.
        env_fns: One factory an environment.
        adapter: What the face adds.
    """

    def __init__(self, config: EngineConfig, env_fns: Sequence[Callable[[], Any]], adapter: Adapter) -> None:
        super().__init__(config)
        self._dumps = functools.partial(dumps, same_main=config.start_method == "fork")
        self._pool = WorkerPool(config, env_fns, adapter)
        self.description = self._pool.description
        assert self._pool.views is not None
        self._views = self._pool.views
        self._workers = self._pool.workers
        self._batch = BatchReader(
            self.description, self._views, (w.env_ids for w in self._workers), pickle.loads, copy=config.copy
        )
        self._worker_of = [worker for worker in self._workers for _ in worker.env_ids]
        # The workers whose replies have not been taken, what they reply to, and the news of those that have replied.
        self._missing: dict[int, WorkerHandle] = {}
        self._opcode = Opcode.RESET
        # When it was given, and when to say next who has not replied.
        self._commanded = self._next_line = 0.0
        self._news: list[StepNews] = []
        # Of the call that is pending: where each worker's results belong, and those that have come.
        self._places: dict[int, list[int]] = {}
        self._outcome = CallOutcome([], None)
        self._called = ""
        self._guard = _ForkGuard(self)
        # At interpreter exit, or when the last reference goes.
        self._finalizer = weakref.finalize(self, self._pool.stop)

    def _start_reset(self, reset: Reset, deadline: float | None) -> None:
        workers, messages = [], []
        for worker in self._workers:
            chosen = [i for i in worker.env_ids if reset.mask is None or reset.mask[i]]
            if chosen:
                rows = [i - worker.env_ids.start for i in chosen]
                request = ResetRequest(rows, [reset.arguments[i] for i in chosen])
                workers.append(worker)
                messages.append(self._dumps(request))
        self._settle("reset", deadline)
        self._command(Opcode.RESET, "reset", workers, messages, deadline)

    def _finish_reset(self, deadline: float | None, seconds: float | None) -> ResetResult:
        self._collect("reset", deadline, seconds)
        return self._batch.reset(self._news)

    def _start_step(self, array: Any, code: int, objects: list[Any], deadline: float | None) -> None:
        self._settle("step", deadline)
        if array is not None:
            self._views.actions(code)[...] = array
            self._command(Opcode.STEP, "step", self._workers, None, deadline, code)
        else:
            messages = [self._dumps([objects[i] for i in worker.env_ids]) for worker in self._workers]
            self._command(Opcode.STEP_OBJECTS, "step", self._workers, messages, deadline)

    def _finish_step(self, deadline: float | None, seconds: float | None) -> StepResult:
        self._collect("step", deadline, seconds)
        try:
            return self._batch.step(self._news)
        except Exception as error:
            self._break(InfoError(f"what an environment returned cannot be unpickled here: {error!r}"), error)

    def _start_call(self, call: Call) -> None:
        self._places = {}
        for place, env_id in enumerate(call.env_ids):
            self._places.setdefault(self._worker_of[env_id].index, []).append(place)
        targets = [self._workers[index] for index in self._places]
        # Pickled before anything is sent, so that arguments which cannot be leave no worker waiting.
        messages = []
        for worker in targets:
            places = self._places[worker.index]
            rows = [call.env_ids[place] - worker.env_ids.start for place in places]
            each = None if call.each is None else [call.each[place] for place in places]
            messages.append(self._dumps(CallRequest(call.name, call.function, call.args, call.kwargs, rows, each)))
        self._outcome = CallOutcome([None] * len(call.env_ids), None)
        self._called = call.name
        self._settle(call.name, None)
        self._command(Opcode.CALL, call.name, targets, messages, None)

    def _finish_call(self, deadline: float | None, seconds: float | None) -> CallOutcome:
        while self._missing:
            worker, status, payload = self._next_reply(self._called, deadline, seconds)
            results, failure = self._outcome
            try:
                value = pickle.loads(payload)
            except Exception as error:
                failure = failure or error
            else:
                if status == Status.FAILED:
                    failure = failure or value.exception()
                else:
                    for place, result in zip(self._places[worker.index], value, strict=True):
                        results[place] = result
            self._outcome = CallOutcome(results, failure)
            del self._missing[worker.index]
        return self._outcome

    def _close(self, grace: float | None) -> None:
        self._pool.stop(grace)
        self._finalizer.detach()
        # Whatever refers to the block, so that its memory goes now.
        del self._views, self._batch, self._workers, self._worker_of, self._missing, self._news, self._received

    def disown(self) -> None:
        """In a forked child: these environments are its parent's."""
        self.state = EngineState.FOREIGN

    def _command(
        self,
        opcode: Opcode,
        name: str,
        workers: list[WorkerHandle],
        messages: list[bytes] | None,
        deadline: float | None,
        code: int = 0,
    ) -> None:
        """Command some workers, whose replies are missing from here on; the caller then sets the state."""
        # An interrupt in the midst of this would leave some workers with a command and some without.
        self.state = EngineState.BROKEN
        self._why_broken = f"sending {name} to the workers was interrupted"
        self._opcode = opcode
        self._commanded = time.monotonic()
        self._next_line = self._commanded + (self._config.watchdog or math.inf)
        self._missing = {worker.index: worker for worker in workers}
        self._news = [NO_NEWS] * len(self._workers)
        if messages is None:
            for worker in workers:
                worker.command(opcode, code)
            return
        for worker, message in zip(workers, messages, strict=True):
            try:
                worker.command(opcode)
                worker.channel.send(message, deadline=deadline, sentinel=worker.process.sentinel)
            except Gone:
                self._break(death_of(worker, name))
            except TimeoutError:
                # Half a message may be on its way: there is no going on from here.
                self._break(WorkerTimeoutError(f"worker {worker.index} did not take its command in time, in {name}"))

    def _settle(self, name: str, deadline: float | None) -> None:
        """Take replies that nobody has waited for, after a timeout or an interrupt or before a reset."""
        while self._missing:
            worker, status, payload = self._next_reply(name, deadline, None)
            if payload and self._opcode is not Opcode.CALL:
                value = pickle.loads(payload)
                if status == Status.FAILED:
                    self._break(value.exception())
                self._batch.learn(worker.index, value)
            del self._missing[worker.index]

    def _collect(self, name: str, deadline: float | None, seconds: float | None) -> None:
        """Wait for the replies of all workers and keep their news; a failure among them breaks the engine."""
        while self._missing:
            worker, status, payload = self._next_reply(name, deadline, seconds)
            if payload:
                value = pickle.loads(payload)
                if status == Status.FAILED:
                    self._break(value.exception())
                # Before anything else can fail: a schema is announced once.
                self._batch.learn(worker.index, value)
                self._news[worker.index] = value
            del self._missing[worker.index]

    def _next_reply(self, name: str, deadline: float | None, seconds: float | None) -> tuple[WorkerHandle, int, bytes]:
        """Take one of the missing replies; it stays missing until the caller has put it in its place.

        So an interrupt at any time loses nothing: the reply is taken again.
        """
        worker = next(iter(self._missing.values()))
        try:
            there = worker.has_replied(0)
            while not there:
                left = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
                there = worker.has_replied(max(left, 0))
                if not there:
                    worker, there = self._look_around(worker, name)
                    if not there and deadline is not None and time.monotonic() >= deadline:
                        raise self._timeout(name, seconds)
                    if time.monotonic() >= self._next_line:
                        self._say_who_is_missing(name)
            status, payload = worker.take_reply()
        except Gone:
            self._break(death_of(worker, name))
        return worker, status, payload

    def _look_around(self, current: WorkerHandle, name: str) -> tuple[WorkerHandle, bool]:
        """Another worker that has replied, if any; breaks the engine if one has died."""
        for worker in self._missing.values():
            if worker.has_replied(0) or worker.ring_was_lost():
                return worker, True
        for worker in self._missing.values():
            if worker.process.poll() is not None:
                # Its last reply may have come between the two looks.
                if worker.has_replied(0):
                    return worker, True
                self._break(death_of(worker, name))
        return current, False

    def _timeout(self, name: str, seconds: float | None) -> WorkerTimeoutError:
        limit = "in time" if seconds is None else f"within {seconds} s"
        env_ids = tuple(i for worker in self._missing.values() for i in worker.env_ids)
        return WorkerTimeoutError(
            f"{name} did not finish {limit}: {waiting_for(list(self._missing.values()))}", env_indices=env_ids
        )

    def _say_who_is_missing(self, name: str) -> None:
        waited = time.monotonic() - self._commanded
        self._next_line = self._commanded + 2 * waited
        _LOGGER.warning("%s has not finished after %.0f s: %s", name, waited, waiting_for(list(self._missing.values())))

    def _break(self, error: BaseException, cause: BaseException | None = None) -> NoReturn:
        """Raise an error that ends this engine; the healthy workers close their environments meanwhile."""
        error.__cause__ = cause or error.__cause__
        first_line = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        self._why_broken = f"the environments ended with an error before ({first_line})"
        self.state = EngineState.BROKEN
        self._pool.ask_to_close()
        raise error


class _ForkGuard:
    """Tells an engine when it finds itself in a forked child; the engine keeps it alive."""

    def __init__(self, engine: ProcessEngine) -> None:
        self._engine = weakref.ref(engine)
        close_in_children(self)

    def close(self) -> None:
        engine = self._engine()
        if engine is not None:
            engine.disown()
