"""The worker processes of one engine: handshake, liveness, replacement, end.

A :class:`WorkerPool` owns its processes, their channels and the shared block. It has all workers
started side by side, and ends them all in bounded time whatever state they are in.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from fastvec._core.channel import deadline_after, remaining, wait_for
from fastvec._core.config import EngineConfig
from fastvec._core.failures import RemoteFailure
from fastvec._core.handle import WorkerHandle, death_of, end_workers, waiting_for
from fastvec._core.layout import BatchLayout, BatchViews
from fastvec._core.leases import banks_for
from fastvec._core.pickles import dumps
from fastvec._core.protocol import Adapter
from fastvec._core.shm import SharedBlock
from fastvec._core.starter import Starter
from fastvec._core.structure import EnvDescription
from fastvec._core.sync import SemaphoreBell, semaphores_work
from fastvec._core.topology import pin_all_threads
from fastvec.errors import SpaceMismatchError

__all__ = ["WorkerPool"]

_LOGGER = logging.getLogger("fastvec")

#: Where the start fails, this long for environments that nobody has used yet to close.
_UNUSED_GRACE = 1.0


class WorkerPool:
    """The workers of one engine.

    Args:
        config: Validated options.
        env_fns: One factory an environment.
        adapter: What the face adds.

    Attributes:
        workers: One a slice of the environments, the last that was started for it.
        leaving: By index, a worker whose successor is in ``workers``, until it has ended.
        coming: One that is not in its place yet; if that was interrupted it is ended before the next one is started.
        views: The arrays of the shared block; None once stopped.
        doorbell: What every worker rings with its reply; None where the platform has no semaphores to share.
        description: What the environments declare.
    """

    def __init__(self, config: EngineConfig, env_fns: Sequence[Callable[[], Any]], adapter: Adapter) -> None:
        self._config = config
        self._adapter = adapter
        self._owner = os.getpid()
        self._asked_to_close = False
        self._mask_before: dict[int, set[int]] | None = None
        self._block: SharedBlock | None = None
        self.workers: list[WorkerHandle] = []
        self.leaving: dict[int, WorkerHandle] = {}
        self.coming: list[WorkerHandle] = []
        self.views: BatchViews | None = None
        self.doorbell: SemaphoreBell | None = None
        deadline = deadline_after(config.start_timeout)
        self._starter = Starter(config, env_fns, adapter)
        try:
            for index in range(config.num_workers):
                self.workers.append(self._starter.start(index, index, deadline))
            self.description = self._agreed(self.workers, self._gather(self.workers, deadline))
            self.views = self._share(deadline)
            if config.learner_cpus is not None:
                self._mask_before = pin_all_threads(config.learner_cpus)
        except BaseException:
            self.stop(min(config.close_timeout, _UNUSED_GRACE))
            raise

    def replace(self, index: int, grace: float) -> WorkerHandle:
        """Another worker in the place of one, with environments newly built and not yet reset.

        Args:
            index: Whose place it takes; that one, and one that was leaving, are ended if they still run.
            grace: Seconds that it has to close its environments, 0 for none.
        """
        old = self.workers[index]
        if grace:
            old.ask_to_close()
        self.let_go(index, grace)
        end_workers([old], grace)
        worker = self._start_late(index, old.slot)
        self.workers[index] = worker
        self.coming.clear()
        return worker

    def prepare_successor(self, index: int) -> WorkerHandle:
        """Another worker beside one; its environments are not yet reset.

        Raises:
            Exception: It could not be started, or its environments could not be built; then all is as it was.
        """
        slots = self._config.num_workers
        return self._start_late(index, (self.workers[index].slot + slots) % (2 * slots), succeeds=True)

    def enter(self, successor: WorkerHandle) -> None:
        """A worker that was prepared takes its place; the one before it is leaving from here on."""
        index = successor.index
        self.leaving[index], self.workers[index] = self.workers[index], successor
        self.coming.clear()

    def let_go(self, index: int, grace: float) -> None:
        """End a worker that was leaving, if there is one; it has some seconds to close its environments."""
        old = self.leaving.get(index)
        if old is None:
            return
        if grace:
            old.ask_to_close()
        end_workers([old], grace)
        del self.leaving[index]

    def _start_late(self, index: int, slot: int, *, succeeds: bool = False) -> WorkerHandle:
        """Start a worker while the others serve; it takes its place only once it is ready."""
        assert self.views is not None
        self._end_coming()
        deadline = deadline_after(self._config.start_timeout)
        worker = self._starter.start(index, slot, deadline, later=True, succeeds=succeeds)
        self.coming.append(worker)
        try:
            (report,) = self._gather([worker], deadline)
            difference = self._adapter.difference(self.description, report[0])
            if difference is not None:
                raise SpaceMismatchError(f"the environments and those of a new worker {index} {difference}")
            self._hand_out([worker], self.views, deadline)
        except BaseException:
            self._end_coming()
            raise
        return worker

    def _end_coming(self) -> None:
        for worker in self.coming:
            worker.ask_to_close()
        end_workers(self.coming, _UNUSED_GRACE)
        self.coming.clear()

    def _gather(self, workers: Sequence[WorkerHandle], deadline: float | None) -> list[Any]:
        """The next message of some workers, in any order; raises as soon as one has failed."""
        messages: dict[int, Any] = {}
        began, lines = time.monotonic(), 0
        while True:
            # First what has been read already, perhaps in looking for the end: no descriptor tells of it.
            for worker in workers:
                if worker.index not in messages and worker.channel.poll():
                    message = pickle.loads(worker.channel.receive())
                    if isinstance(message, RemoteFailure):
                        raise message.exception()
                    messages[worker.index] = message
            waiting = [worker for worker in workers if worker.index not in messages]
            if not waiting:
                break
            watched = [worker.channel.fileno() for worker in waiting]
            watched += [w.process.sentinel for w in waiting if w.process.sentinel is not None]
            line = None if self._config.watchdog is None else began + self._config.watchdog * 2**lines
            if not wait_for(watched, remaining(_first(deadline, line))):
                if deadline is not None and time.monotonic() >= deadline:
                    raise self._starter.timeout(waiting)
                lines += 1
                waited = time.monotonic() - began
                _LOGGER.warning("start-up has not finished after %.0f s: %s", waited, waiting_for(waiting))
            for worker in waiting:
                ended = worker.process.poll() is not None or worker.channel.at_end()
                if ended and not worker.channel.poll():
                    raise death_of(worker, "start-up")
        return [messages[worker.index] for worker in workers]

    def _agreed(
        self, workers: Sequence[WorkerHandle], reports: list[tuple[EnvDescription, list[str]]]
    ) -> EnvDescription:
        notes = dict.fromkeys(note for _, notes in reports for note in notes)
        if notes:
            warnings.warn("; ".join(notes), RuntimeWarning, stacklevel=5)
        first = reports[0][0]
        for worker, (other, _) in zip(workers, reports, strict=True):
            difference = self._adapter.difference(first, other)
            if difference is not None:
                raise SpaceMismatchError(f"env 0 and env {worker.env_ids[0]} {difference}")
        return first

    def _share(self, deadline: float | None) -> BatchViews:
        """Make the block and hand it out."""
        config = self._config
        # A worker and its successor have rows of their own.
        slots = config.num_workers * (2 if config.recycles else 1)
        banks = banks_for(self.description, config.num_envs, copy=config.copy)
        has_riders = bool(config.with_step)
        layout = BatchLayout.of(self.description, config.num_envs, slots, has_riders=has_riders, banks=banks)
        self._block = SharedBlock.create(layout.nbytes)
        views = BatchViews(layout, self._block.buffer)
        if semaphores_work():
            self.doorbell = SemaphoreBell(views.doorbell)
            self.doorbell.initialize()
        self._hand_out(self.workers, views, deadline)
        if banks == 1:  # else a forked child may still look at an observation
            self._block.keep_from_children()
        if not (config.restart or config.recycles):
            self._block.close()
            self._starter.forget_factories()
        return views

    def _hand_out(self, workers: Sequence[WorkerHandle], views: BatchViews, deadline: float | None) -> None:
        assert self._block is not None
        with_semaphores = self.doorbell is not None
        # Workers write in the order that the parent reads in: spaces are equal whatever the order of their keys.
        message = dumps((views.layout, self.description, with_semaphores))
        for worker in workers:
            worker.attach(views, with_semaphores=with_semaphores)
            with self._starter.reporting(worker, "start-up"):
                worker.channel.send(message, fds=(self._block.fd,), deadline=deadline, sentinel=worker.process.sentinel)
        self._gather(workers, deadline)

    def stop(self, grace: float | None = None) -> None:
        """End every worker: ask, wait for ``grace`` seconds (``close_timeout``), terminate, kill. Idempotent."""
        if os.getpid() != self._owner:
            return
        self.ask_to_close()
        everyone = [*self.workers, *self.leaving.values(), *self.coming]
        end_workers(everyone, self._config.close_timeout if grace is None else grace)
        if self._block is not None:
            self._block.close()
        self._starter.close()
        if self._mask_before is not None:
            pin_all_threads(self._mask_before)
            self._mask_before = None
        self.workers = []
        self.leaving, self.coming = {}, []
        self.views = self.doorbell = None

    def ask_to_close(self) -> None:
        """Tell every worker, once, to close its environments and end; does not wait."""
        if self._asked_to_close:
            return
        self._asked_to_close = True
        for worker in (*self.workers, *self.leaving.values(), *self.coming):
            worker.ask_to_close()


def _first(one: float | None, other: float | None) -> float | None:
    return min((time for time in (one, other) if time is not None), default=None)
