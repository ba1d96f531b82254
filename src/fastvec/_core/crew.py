"""An engine's conversation with its workers: commands to some of them, and their replies.

:class:`Crew` is the part of an engine that knows of workers: whom it commands, whose replies are missing, and what
becomes of a failure. Who takes the place of whom is added by :mod:`fastvec._core.succession`, what the commands mean
by :mod:`fastvec._core.processes`.
"""

from __future__ import annotations

import functools
import pickle
from abc import ABC
from collections.abc import Iterable, Sequence
from typing import NoReturn

from fastvec._core.channel import Gone
from fastvec._core.config import EngineConfig
from fastvec._core.engine import Engine
from fastvec._core.failures import reason_of
from fastvec._core.handle import WorkerHandle, death_of
from fastvec._core.leases import Banks
from fastvec._core.pickles import dumps
from fastvec._core.pool import WorkerPool
from fastvec._core.protocol import NO_NEWS, Opcode, Status, StepNews
from fastvec._core.reading import BatchReader
from fastvec._core.replies import Replies, WorkerLost
from fastvec._core.state import EngineState
from fastvec.errors import InfoError, WorkerTimeoutError

__all__ = ["Crew"]


class Crew(Engine, ABC):
    """The workers of an engine.

    Args:
        config: Validated options.
        pool: The workers; this engine ends them.
    """

    def __init__(self, config: EngineConfig, pool: WorkerPool) -> None:
        super().__init__(config)
        self._dumps = functools.partial(dumps, same_main=config.start_method == "fork")
        self._pool = pool
        self.description = self._pool.description
        assert self._pool.views is not None
        self._views = self._pool.views
        self._slices = [worker.env_ids for worker in self._pool.workers]
        self._banks = Banks(self._views)
        self._batch = BatchReader(
            self.description,
            self._views,
            self._slices,
            pickle.loads,
            self._banks,
            remember=config.restart,
            columns=config.info_columns,
        )
        # Who steps each environment.
        self._owners = [worker for worker in self._pool.workers for _ in worker.env_ids]
        # Workers with environments to step.
        self._working = list(self._pool.workers)
        self._replies = Replies(config.watchdog, self._pool.doorbell, config.usable_cpus)
        # What the replies that are missing reply to, and the news of those that have come, by slot.
        self._opcode = Opcode.RESET
        self._news: list[StepNews] = []
        # Workers that were lost, with the errors.
        self._lost: dict[int, BaseException] = {}

    def _command(
        self,
        opcode: Opcode,
        name: str,
        workers: list[WorkerHandle],
        messages: list[bytes] | None,
        deadline: float | None,
        code: int = 0,
        fds: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        """Command some workers, whose replies are missing from here on; the caller then sets the state."""
        # An interrupt in the midst of this would leave some workers with a command and some without.
        self.state = EngineState.BROKEN
        self._why_broken = f"sending {name} to the workers was interrupted"
        self._opcode = opcode
        self._replies.expect(workers)
        self._news = [NO_NEWS] * self._views.layout.num_workers
        bank = self._banks.current
        if messages is None:
            # All are written first: to wake one can cost this process its CPU.
            for worker in workers:
                worker.announce(opcode, code, bank)
            for worker in workers:
                worker.command_bell.ring()
            return
        for index, (worker, message) in enumerate(zip(workers, messages, strict=True)):
            try:
                worker.tell(opcode, message, deadline, fds[index] if fds else (), bank)
            except Gone:
                self._lose(worker, death_of(worker, name))
            except TimeoutError:
                # Half a message may be on its way: there is no going on with this worker.
                self._lose(
                    worker, WorkerTimeoutError(f"worker {worker.index} did not take its command in time: {name}")
                )

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

    def _give(self, worker: WorkerHandle, env_ids: Iterable[int]) -> None:
        for env_id in env_ids:
            self._owners[env_id] = worker
        self._working = list(dict.fromkeys(self._owners))

    def _break_unreadable(self, error: Exception) -> NoReturn:
        self._break(InfoError(f"what an environment returned cannot be unpickled here: {error!r}"), error)

    def _break(self, error: BaseException, cause: BaseException | None = None, note: str = "") -> NoReturn:
        """Raise an error that ends this engine; the healthy workers close their environments meanwhile."""
        error.__cause__ = cause or error.__cause__
        if note and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(note)
        self._why_broken = f"the environments ended with an error before ({reason_of(error)})"
        self.state = EngineState.BROKEN
        self._pool.ask_to_close()
        raise error
