"""Waiting for the replies of workers, with one eye on their lives and one on the clock.

:class:`Replies` owns the set of workers whose replies are missing. A reply stays missing until
whoever takes it says that it is in its place, so that an interrupt at any time loses nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable

from fastvec._core.channel import Gone
from fastvec._core.handle import WorkerHandle, death_of, waiting_for
from fastvec.errors import WorkerTimeoutError

__all__ = ["Replies", "WorkerLost"]

_LOGGER = logging.getLogger("fastvec")

#: A wait for one worker lasts this long before all others are looked at too, and the dead are counted.
_SLICE = 0.02

#: A wait of fewer seconds than this is a look, and that a worker is not ready no sign of trouble.
_SHORT = 0.25


class WorkerLost(Exception):
    """Internal: a worker will not reply; ``error`` is what to tell the user."""

    def __init__(self, worker: WorkerHandle, error: BaseException) -> None:
        super().__init__(worker.index, error)
        self.worker, self.error = worker, error


class Replies:
    """The replies to one command.

    Args:
        watchdog: Seconds of waiting after which a line says whom for; None for never.
    """

    def __init__(self, watchdog: float | None) -> None:
        self._watchdog = watchdog or math.inf
        self._since = self._next_line = 0.0
        self.missing: dict[int, WorkerHandle] = {}

    def expect(self, workers: Iterable[WorkerHandle]) -> None:
        """From now on the replies of these workers are missing, and no others."""
        self._since = time.monotonic()
        self._next_line = self._since + self._watchdog
        self.missing = {worker.slot: worker for worker in workers}

    def add(self, worker: WorkerHandle) -> None:
        """From now on the reply of this worker is missing, too."""
        if not self.missing:
            self.expect([])
        self.missing[worker.slot] = worker

    def put_first(self, worker: WorkerHandle) -> None:
        """The reply of this worker is there: the next one to take."""
        self.missing = {worker.slot: worker, **self.missing}

    def next(self, name: str, deadline: float | None, seconds: float | None) -> tuple[WorkerHandle, int, bytes]:
        """One of the missing replies: whose it is, its status and its payload. It stays missing.

        Raises:
            WorkerLost: A worker has died.
            WorkerTimeoutError: The deadline has passed.
        """
        worker = next(iter(self.missing.values()))
        try:
            there = worker.has_replied(0)
            while not there:
                left = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
                there = worker.has_replied(max(left, 0))
                if not there:
                    worker, there = self._look_around(worker, name)
                    if worker.released:
                        raise WorkerLost(worker, death_of(worker, name))
                    now = time.monotonic()
                    if not there and deadline is not None and now >= deadline:
                        raise self.timeout(name, seconds)
                    if now >= self._next_line:
                        self._say_who_is_missing(name)
            status, payload = worker.take_reply(deadline)
        except Gone:
            raise WorkerLost(worker, death_of(worker, name)) from None
        except TimeoutError:
            raise self.timeout(name, seconds) from None
        return worker, status, payload

    def done(self, worker: WorkerHandle) -> None:
        """The reply of a worker is in its place, or will never come."""
        self.missing.pop(worker.slot, None)

    def timeout(self, name: str, seconds: float | None) -> WorkerTimeoutError:
        """The error that says whose replies are missing, and where these workers are."""
        limit = "in time" if seconds is None else f"within {seconds} s"
        missing = list(self.missing.values())
        # Who polls does not want them at each look.
        with_stacks = seconds is None or seconds >= _SHORT
        return WorkerTimeoutError(
            f"{name} did not finish {limit}: {waiting_for(missing, with_stacks=with_stacks)}",
            env_indices=tuple(i for worker in missing for i in worker.env_ids),
        )

    def _look_around(self, current: WorkerHandle, name: str) -> tuple[WorkerHandle, bool]:
        """Another worker that has replied, if any."""
        for worker in self.missing.values():
            if worker.has_replied(0) or worker.ring_was_lost():
                return worker, True
        for worker in self.missing.values():
            if worker.process.poll() is not None:
                # Its last reply may have come between the two looks.
                if worker.has_replied(0):
                    return worker, True
                raise WorkerLost(worker, death_of(worker, name))
        return current, False

    def _say_who_is_missing(self, name: str) -> None:
        waited = time.monotonic() - self._since
        self._next_line = self._since + 2 * waited
        _LOGGER.warning("%s has not finished after %.0f s: %s", name, waited, waiting_for(list(self.missing.values())))
