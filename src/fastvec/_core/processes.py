"""The engine with worker processes: what to send to whom, and whose reply is missing.

It owns the pool. It sends a command to each worker, waits for their replies with one eye on their
lives, and keeps its state by the table in :mod:`fastvec._core.engine`. What processes, channels
and the block are made of it leaves to the pool, what the arrays mean to :mod:`fastvec._core.results`.
"""

from __future__ import annotations

import functools
import logging
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fastvec._core.channel import Gone, deadline_after
from fastvec._core.config import AutoresetMode, EngineConfig
from fastvec._core.engine import Call, CallOutcome, Engine, EngineState, Reset
from fastvec._core.handle import WorkerHandle, death_of
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
from fastvec._core.replies import Replies, WorkerLost
from fastvec._core.restarts import Restart, Restarts
from fastvec._core.results import BatchReader, ResetResult, StepResult
from fastvec.errors import InfoError, WorkerDiedError, WorkerTimeoutError

__all__ = ["ProcessEngine"]

_LOGGER = logging.getLogger("fastvec")


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
            self.description,
            self._views,
            (worker.env_ids for worker in self._workers),
            pickle.loads,
            copy=config.copy,
            remember=config.restart,
        )
        self._worker_of = [worker.index for worker in self._workers for _ in worker.env_ids]
        self._replies = Replies(config.watchdog)
        # What the replies that are missing reply to, and the news of those that have come.
        self._opcode = Opcode.RESET
        self._news: list[StepNews] = []
        # Of the reset that is pending: what each worker was sent, and who was to reset all of its environments.
        self._resets: dict[int, bytes] = {}
        self._reset_whole: set[int] = set()
        # Of the call that is pending: where each worker's results belong, and those that have come.
        self._places: dict[int, list[int]] = {}
        self._outcome = CallOutcome([], None)
        self._called = ""
        # Workers that were lost, with the errors; those in their place, until a step has told of them.
        self._restarts = Restarts(config)
        self._lost: dict[int, BaseException] = {}
        self._untold: dict[int, Restart] = {}
        self._guard = _ForkGuard(self)
        # At interpreter exit, or when the last reference goes.
        self._finalizer = weakref.finalize(self, self._pool.stop)

    def _start_reset(self, reset: Reset, deadline: float | None) -> None:
        messages = {}
        for worker in self._workers:
            chosen = [i for i in worker.env_ids if reset.mask is None or reset.mask[i]]
            if chosen:
                rows = [i - worker.env_ids.start for i in chosen]
                messages[worker.index] = self._dumps(ResetRequest(rows, [reset.arguments[i] for i in chosen]))
                if len(chosen) == len(worker.env_ids):
                    self._reset_whole.add(worker.index)
        self._settle("reset", deadline)
        for i, arguments in enumerate(reset.arguments):
            if reset.mask is None or reset.mask[i]:
                self._restarts.was_reset(i, arguments)
        self._resets = messages
        self._command(Opcode.RESET, "reset", [self._workers[i] for i in messages], list(messages.values()), deadline)

    def _finish_reset(self, deadline: float | None, seconds: float | None) -> ResetResult:
        self._collect("reset", deadline, seconds)
        while self._lost:
            lost = list(self._lost)
            self._replace_lost()
            for index in lost:
                self._ask_again(index, self._resets[index])
        for index in self._reset_whole:
            self._untold.pop(index, None)
        self._reset_whole.clear()
        result: ResetResult = self._read(self._batch.reset, self._news)
        return result

    def _start_step(self, array: Any, code: int, objects: list[Any], deadline: float | None) -> None:
        messages = [] if array is not None else [self._dumps([objects[i] for i in w.env_ids]) for w in self._workers]
        self._settle("step", deadline)
        workers = [worker for worker in self._workers if worker.index not in self._untold]
        if array is not None:
            self._views.actions(code)[...] = array
            self._command(Opcode.STEP, "step", workers, None, deadline, code)
        else:
            chosen = [messages[worker.index] for worker in workers]
            self._command(Opcode.STEP_OBJECTS, "step", workers, chosen, deadline)

    def _finish_step(self, deadline: float | None, seconds: float | None) -> StepResult:
        self._collect("step", deadline, seconds)
        self._replace_lost()
        lost = {}
        for index, restart in self._untold.items():
            self._news[index], lost[index] = restart.news, restart.info
        with_finals = self._config.autoreset_mode is AutoresetMode.SAME_STEP
        result: StepResult = self._read(self._batch.step, self._news, lost, with_finals)
        self._untold.clear()
        return result

    def _read(self, read: Callable[..., Any], *args: Any) -> Any:
        try:
            return read(*args)
        except Exception as error:
            self._break(InfoError(f"what an environment returned cannot be unpickled here: {error!r}"), error)

    def _start_call(self, call: Call) -> None:
        places: dict[int, list[int]] = {}
        for place, env_id in enumerate(call.env_ids):
            places.setdefault(self._worker_of[env_id], []).append(place)
        # Pickled before anything is sent, so that arguments which cannot be leave no worker waiting.
        messages = []
        for index, its in places.items():
            rows = [call.env_ids[place] - self._workers[index].env_ids.start for place in its]
            each = None if call.each is None else [call.each[place] for place in its]
            messages.append(self._dumps(CallRequest(call.name, call.function, call.args, call.kwargs, rows, each)))
        self._settle(call.name, None)
        self._places, self._called = places, call.name
        self._outcome = CallOutcome([None] * len(call.env_ids), None)
        self._command(Opcode.CALL, call.name, [self._workers[index] for index in places], messages, None)

    def _finish_call(self, deadline: float | None, seconds: float | None) -> CallOutcome:
        while self._replies.missing:
            results, failure = self._outcome
            try:
                worker, status, payload = self._replies.next(self._called, deadline, seconds)
                value = pickle.loads(payload)
            except WorkerLost as lost:
                worker = lost.worker
                self._lose(worker, lost.error)
                failure = failure or lost.error
            except WorkerTimeoutError:
                raise
            except Exception as error:
                failure = failure or error
            else:
                if status == Status.FAILED:
                    failure = failure or value.exception()
                else:
                    for place, result in zip(self._places[worker.index], value, strict=True):
                        results[place] = result
            self._outcome = CallOutcome(results, failure)
            self._replies.done(worker)
        self._replace_lost()
        return self._outcome

    def _close(self, grace: float | None) -> None:
        self._pool.stop(grace)
        self._finalizer.detach()
        # Whatever refers to the block, so that its memory goes now.
        self._replies.expect([])
        self._workers, self._news, self._received = [], [], None
        del self._views, self._batch

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
        self._replies.expect(workers)
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
                self._lose(worker, death_of(worker, name))
            except TimeoutError:
                # Half a message may be on its way: there is no going on with this worker.
                self._lose(
                    worker, WorkerTimeoutError(f"worker {worker.index} did not take its command in time: {name}")
                )

    def _settle(self, name: str, deadline: float | None) -> None:
        """Take replies that nobody has waited for, after a timeout or an interrupt or before a reset."""
        self._collect(name, deadline, None)
        self._replace_lost()

    def _collect(self, name: str, deadline: float | None, seconds: float | None) -> None:
        """Wait for the replies of all workers and keep their news; a failure among them loses the worker."""
        while self._replies.missing:
            try:
                worker, status, payload = self._replies.next(name, deadline, seconds)
            except WorkerLost as lost:
                self._lose(lost.worker, lost.error)
                continue
            except WorkerTimeoutError as late:
                if not self._config.restart:
                    raise
                for worker in list(self._replies.missing.values()):
                    self._lose(worker, late)
                return
            if payload and self._opcode is not Opcode.CALL:
                value = pickle.loads(payload)
                if status == Status.FAILED:
                    self._lose(worker, value.exception())
                    continue
                # Before anything else can fail: a schema is announced once.
                self._batch.learn(worker.index, value)
                self._news[worker.index] = value
            self._replies.done(worker)
        self._check_open(name)

    def _check_open(self, what: str) -> None:
        """A wait ends with an error where a signal handler or another thread has called close()."""
        if self.state is EngineState.CLOSED:
            self._check_usable(what)

    def _lose(self, worker: WorkerHandle, error: BaseException) -> None:
        """A worker is of no more use: to be replaced, or the end of this engine."""
        self._check_open("waiting for it")
        if not self._config.restart:
            self._break(error)
        self._lost[worker.index] = error
        self._replies.done(worker)

    def _replace_lost(self) -> None:
        """Have other workers in the place of those that were lost, with environments reset."""
        state, self._why_broken = self.state, "replacing a worker was interrupted"
        while self._lost:
            # An interrupt in the midst of this would leave a worker of which nobody knows how far it is.
            self.state = EngineState.BROKEN
            index, error = self._lost.popitem()
            if not self._restarts.allow():
                self._break(error)
            # One that has raised can close its environments, one that is stuck cannot.
            raised = not isinstance(error, (WorkerDiedError, WorkerTimeoutError))
            try:
                worker = self._pool.replace(index, self._config.close_timeout if raised else 0.0)
            except Exception as failure:
                self._lost[index] = failure
                continue
            self._batch.replaced(index)
            request = ResetRequest(
                list(range(len(worker.env_ids))), self._restarts.arguments(worker.env_ids), ended=True
            )
            news = self._ask_again(index, self._dumps(request))
            if news is not None:
                self._untold[index] = Restart.of(error, news)
                _LOGGER.warning("worker %d was replaced: %s", index, self._untold[index].info["reason"])
        self.state = state

    def _ask_again(self, index: int, message: bytes) -> StepNews | None:
        """The news of a reset of one worker; None if it was lost over it."""
        worker = self._workers[index]
        news, state = self._news, self.state
        self._command(Opcode.RESET, "reset", [worker], [message], deadline_after(self._config.reset_timeout))
        self._collect("reset", deadline_after(self._config.reset_timeout), self._config.reset_timeout)
        answer = self._news[index]
        self._news, self.state = news, state
        if index in self._lost:
            return None
        news[index] = answer
        return answer

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
