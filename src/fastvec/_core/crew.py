"""An engine's conversation with its workers: commands, replies, and who takes the place of whom.

:class:`Crew` is the half of an engine that knows of workers and their lives: it sends a command to
some of them, collects the replies, replaces those that are lost and has successors take over from
those that are recycled. What the commands mean is left to :mod:`fastvec._core.processes`.

How a worker is followed by another, while the environments go on::

    parent                                    worker                   its successor
    is due: starts the successor              steps                    builds its environments
    Opcode.RETIRE  ──────────────────────▶    steps
    Opcode.STEP    ──────────────────────▶    steps; leaves those
                   ◀── StepNews.left ─────    that are to be reset
    Opcode.ADOPT   ─────────────────────────────────────────────▶      resets them
    Opcode.STEP    ──────────────────────▶    steps the rest           steps its own
    ...
    Opcode.CLOSE   ──────────────────────▶    has none: ends           steps
"""

from __future__ import annotations

import functools
import logging
import pickle
from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from fastvec._core.channel import Gone, deadline_after
from fastvec._core.config import AutoresetMode, EngineConfig
from fastvec._core.engine import Engine, EngineState
from fastvec._core.failures import reason_of
from fastvec._core.handle import WorkerHandle, death_of
from fastvec._core.pickles import dumps
from fastvec._core.pool import WorkerPool
from fastvec._core.protocol import NO_NEWS, Adapter, AdoptRequest, Opcode, ResetRequest, Status, StepNews
from fastvec._core.recycling import Recycling
from fastvec._core.replies import Replies, WorkerLost
from fastvec._core.restarts import Restart, Restarts
from fastvec._core.results import BatchReader
from fastvec.errors import WorkerDiedError, WorkerTimeoutError

__all__ = ["Crew"]

_LOGGER = logging.getLogger("fastvec")


class Crew(Engine, ABC):
    """The workers of an engine.

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
        self._slices = [worker.env_ids for worker in self._pool.workers]
        self._batch = BatchReader(
            self.description, self._views, self._slices, pickle.loads, copy=config.copy, remember=config.restart
        )
        # Who steps each environment.
        self._owners = [worker for worker in self._pool.workers for _ in worker.env_ids]
        # Workers with environments to step.
        self._working = list(self._pool.workers)
        self._replies = Replies(config.watchdog)
        # What the replies that are missing reply to, and the news of those that have come, by slot.
        self._opcode = Opcode.RESET
        self._news: list[StepNews] = []
        # Workers that were lost, with the errors; those in their place, until a step has told of them.
        self._restarts = Restarts(config)
        self._lost: dict[int, BaseException] = {}
        self._untold: dict[int, Restart] = {}
        self._recycling = Recycling(config, self._slices)
        # Who has been told to adopt environments amid a step, and the news of that step so far.
        self._adopting: tuple[WorkerHandle, list[StepNews]] | None = None
        # Environments that have changed hands in a step that is not read yet: from whom, which rows.
        self._moves: list[tuple[WorkerHandle, list[int]]] = []

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
        self._news = [NO_NEWS] * self._views.layout.num_workers
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
        self._collect_step(name, deadline, None, held=True)
        self._change_hands()

    def _collect_step(self, name: str, deadline: float | None, seconds: float | None, *, held: bool) -> None:
        """Wait for a step of all workers, with losses and changes of hands; can be called again to go on with it.

        Args:
            name: What is waited for.
            deadline: Until when.
            seconds: How long that is.
            held: See :meth:`_replace_lost`.
        """
        self._collect(name, deadline, seconds)
        while True:
            if self._adopting is not None:
                successor, news = self._adopting
                answer, self._news, self._adopting = self._news[successor.slot], news, None
                if successor.index not in self._lost:
                    news[successor.slot] = news[successor.slot].and_then(answer)
            self._replace_lost(held=held)
            worker = next((one for one in self._pool.leaving.values() if self._news[one.slot].left), None)
            if worker is None:
                return
            successor, news, left = self._pool.workers[worker.index], self._news, self._news[worker.slot].left
            message = self._dumps(AdoptRequest(left, at_once=True))
            state, self.state = self.state, EngineState.BROKEN
            self._why_broken = "a worker's taking over from another was interrupted"
            news[worker.slot] = news[worker.slot]._replace(left={})
            self._moved(worker, list(left))
            self._command(Opcode.ADOPT, name, [successor], [message], deadline)
            self._adopting, self.state = (successor, news), state
            self._collect(name, deadline, seconds)

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
                self._batch.learn(worker.slot, value)
                self._news[worker.slot] = value
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
        # Of two that share a slice neither goes on without the other.
        for other in (self._pool.workers[worker.index], self._pool.leaving.get(worker.index)):
            if other is not None:
                self._replies.done(other)

    def _replace_lost(self, *, held: bool = True) -> None:
        """Have other workers in the place of those that were lost, with environments reset.

        Args:
            held: Whether it takes another step to tell of it, which these environments then sit out.
        """
        state, self._why_broken = self.state, "replacing a worker was interrupted"
        while self._lost:
            # An interrupt in the midst of this would leave a worker of which nobody knows how far it is.
            self.state = EngineState.BROKEN
            index, error = self._lost.popitem()
            if not self._restarts.allow():
                _LOGGER.error("%s: the failure that follows is raised", self._restarts.limit)
                self._break(error, note=self._restarts.limit)
            # One that has raised can close its environments, one that is stuck cannot.
            raised = not isinstance(error, (WorkerDiedError, WorkerTimeoutError))
            try:
                worker = self._pool.replace(index, self._config.close_timeout if raised else 0.0)
            except Exception as failure:
                self._check_open("replacing a worker")
                self._lost[index] = failure
                continue
            self._check_open("replacing a worker")
            self._batch.replaced(index, worker.slot)
            self._news[worker.slot] = NO_NEWS  # if its predecessor has replied, and the one beside it has died
            self._recycling.started(worker)
            self._moves = [(old, rows) for old, rows in self._moves if old.index != index]
            self._give(worker, worker.env_ids)
            rows, arguments = list(range(len(worker.env_ids))), self._restarts.arguments(worker.env_ids)
            request = ResetRequest(rows, arguments, self._restarts.options(worker.env_ids), held)
            news = self._ask(worker, Opcode.RESET, "reset", self._dumps(request), self._config.reset_timeout)
            if news is not None:
                self._untold[index] = Restart.of(error, news, worker.env_ids)
                _LOGGER.warning("worker %d was replaced: %s", index, str(error.__cause__ or error))
        self.state = state

    def _ask(
        self, worker: WorkerHandle, opcode: Opcode, name: str, message: bytes, seconds: float | None
    ) -> StepNews | None:
        """The news of a command to one worker, between two of all; None if it was lost over it."""
        news, state = self._news, self.state
        deadline = deadline_after(seconds)
        self._command(opcode, name, [worker], [message], deadline)
        try:
            self._collect(name, deadline, seconds)
        except WorkerTimeoutError as late:
            self._break(late)
        answer = self._news[worker.slot]
        self._news, self.state = news, state
        return None if worker.index in self._lost else answer

    def _recycle(self) -> None:
        """Start successors of the workers that are due; each worker then leaves those whose episode has ended."""
        if not self._config.recycles:
            return
        if self._config.autoreset_mode is AutoresetMode.NEXT_STEP:
            for worker in list(self._pool.leaving.values()):
                rows = slice(worker.env_ids.start, worker.env_ids.stop)
                # Perhaps one that is not its own any more: then it leaves none.
                if self._views.flags[rows].any():
                    self._retire(worker, [])
        for worker in self._recycling.due(self._pool.workers):
            if worker.index in self._pool.leaving or worker.index in self._untold:
                continue
            try:
                successor = self._pool.prepare_successor(worker.index)
            except Exception as error:
                self._check_open("replacing a worker")
                self._recycling.failed(worker, error)
                continue
            self._check_open("replacing a worker")
            state, self.state = self.state, EngineState.BROKEN
            self._why_broken = "a worker's taking over from another was interrupted"
            self._pool.enter(successor)
            self._batch.succeeded(worker.index, successor.slot)
            self._recycling.started(successor)
            self._retire(worker, [])
            self.state = state

    def _retire(self, worker: WorkerHandle, env_ids: Iterable[int]) -> None:
        """Have a worker leave some environments to its successor at once, and others before their next resets."""
        rows = [env_id - worker.env_ids.start for env_id in env_ids]
        news = self._ask(worker, Opcode.RETIRE, "step", self._dumps(rows), self._config.step_timeout)
        if news is not None:
            self._adopt(worker, news.left)
        self._replace_lost()
        self._change_hands()

    def _bring_over(self, env_ids: Iterable[int]) -> None:
        """Before a reset: have environments that a worker is to leave go over to its successor at once."""
        for worker in list(self._pool.leaving.values()):
            its = [env_id for env_id in env_ids if self._owners[env_id] is worker]
            if its:
                self._retire(worker, its)

    def _adopt(self, worker: WorkerHandle, left: dict[int, bytes]) -> None:
        """Have the successor of a worker go on with environments, which are to be reset afterwards."""
        if not left:
            return
        successor = self._pool.workers[worker.index]
        message = self._dumps(AdoptRequest(left, at_once=False))
        if self._ask(successor, Opcode.ADOPT, "step", message, self._config.step_timeout) is not None:
            self._moved(worker, list(left))

    def _moved(self, worker: WorkerHandle, rows: list[int]) -> None:
        """A worker has left environments. Its own news of them come first: they change hands after these are read."""
        self._moves.append((worker, rows))
        self._give(self._pool.workers[worker.index], [worker.env_ids[row] for row in rows])

    def _change_hands(self) -> None:
        """After a step has been read: read the next one's news from whom it comes, and end whom nothing is left to."""
        while self._moves:
            worker, rows = self._moves.pop()
            self._batch.moved(worker.slot, self._pool.workers[worker.index].slot, rows)
        for worker in list(self._pool.leaving.values()):
            if worker not in self._working:
                self._pool.let_go(worker.index, self._config.close_timeout)

    def _give(self, worker: WorkerHandle, env_ids: Iterable[int]) -> None:
        for env_id in env_ids:
            self._owners[env_id] = worker
        self._working = list(dict.fromkeys(self._owners))

    def _break(self, error: BaseException, cause: BaseException | None = None, note: str = "") -> NoReturn:
        """Raise an error that ends this engine; the healthy workers close their environments meanwhile."""
        error.__cause__ = cause or error.__cause__
        if note and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(note)
        self._why_broken = f"the environments ended with an error before ({reason_of(error)})"
        self.state = EngineState.BROKEN
        self._pool.ask_to_close()
        raise error
