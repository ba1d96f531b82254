"""Who takes the place of whom among the workers of an engine, while its environments go on.

:class:`Succession` replaces workers that are lost, and has successors take over from those that are
recycled.

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

import logging
from abc import ABC
from collections.abc import Iterable

from fastvec._core.channel import deadline_after
from fastvec._core.config import AutoresetMode, EngineConfig
from fastvec._core.crew import Crew
from fastvec._core.handle import WorkerHandle
from fastvec._core.pool import WorkerPool
from fastvec._core.protocol import NO_NEWS, AdoptRequest, Opcode, ResetRequest, StepNews
from fastvec._core.recycling import Recycling
from fastvec._core.restarts import Restart, Restarts
from fastvec._core.state import EngineState
from fastvec.errors import WorkerDiedError, WorkerTimeoutError

__all__ = ["Succession"]

_LOGGER = logging.getLogger("fastvec")


class Succession(Crew, ABC):
    """Workers that others follow.

    Args:
        config: Validated options.
        pool: The workers; this engine ends them.
    """

    def __init__(self, config: EngineConfig, pool: WorkerPool) -> None:
        super().__init__(config, pool)
        self._restarts = Restarts(config)
        # Workers in the place of lost ones, until a step has told of them.
        self._untold: dict[int, Restart] = {}
        self._recycling = Recycling(config, self._slices)
        # Who has been told to adopt environments amid a step, and the news of that step so far.
        self._adopting: tuple[WorkerHandle, list[StepNews]] | None = None
        # Environments that have changed hands in a step that is not read yet: from whom, which rows.
        self._moves: list[tuple[WorkerHandle, list[int]]] = []

    def _is_settled(self) -> bool:
        """Whether there is nothing to :meth:`_settle`, as in the common case."""
        return not (self._replies.missing or self._lost or self._adopting or self._moves or self._pool.leaving)

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
        if self._is_settled():
            return
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
            self._banks.advance(keep=True)
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
