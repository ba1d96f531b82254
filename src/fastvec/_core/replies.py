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
from fastvec._core.sync import Bell, spin
from fastvec.errors import WorkerTimeoutError

__all__ = ["Replies", "WorkerLost"]

_LOGGER = logging.getLogger("fastvec")

#: A sleep lasts this long before all workers are looked at, and the dead are counted.
_SLICE = 0.02

#: Seconds. Where the last workers came within this time after there was a CPU for it, a wait looks for them before it
#: sleeps: see NOTE [spinning] in sync.py.
_LONGEST_SPIN = 1e-3

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
        doorbell: What every worker rings; None where each can be waited for by its own bell only.
        usable_cpus: How many CPUs there are for the workers and this process.

    Attributes:
        missing: Whose replies are missing, by slot.
    """

    def __init__(self, watchdog: float | None, doorbell: Bell | None, usable_cpus: int) -> None:
        self._watchdog = watchdog or math.inf
        self._doorbell, self._usable_cpus = doorbell, usable_cpus
        self._since = self._next_line = 0.0
        # How long the last workers let wait when there was a CPU to spin on, and since when there is one in this wait.
        self._spun = 0.0
        self._spins_since: float | None = None
        self.missing: dict[int, WorkerHandle] = {}

    def expect(self, workers: Iterable[WorkerHandle]) -> None:
        """From now on the replies of these workers are missing, and no others."""
        self._since = time.monotonic()
        self._next_line = self._since + self._watchdog
        self._spins_since = None
        self.missing = {worker.slot: worker for worker in workers}

    def add(self, worker: WorkerHandle) -> None:
        """From now on the reply of this worker is missing, too."""
        if not self.missing:
            self.expect([])
        self.missing[worker.slot] = worker

    def next(self, name: str, deadline: float | None, seconds: float | None) -> tuple[WorkerHandle, int, bytes]:
        """One of the missing replies: whose it is, its status and its payload. It stays missing.

        Raises:
            WorkerLost: A worker has died.
            WorkerTimeoutError: The deadline has passed.
        """
        any_of_them, doorbell = next(iter(self.missing.values())), self._doorbell
        worker = self._ready()
        if worker is None and self._spin():
            worker = self._ready()
        if worker is None and doorbell is not None:
            while doorbell.wait(0):  # rings for replies that were seen without them
                pass
            worker = self._ready()
        while worker is None:
            left = _SLICE if deadline is None else min(_SLICE, deadline - time.monotonic())
            try:
                if doorbell is not None:
                    doorbell.wait(max(left, 0))
                else:
                    any_of_them.has_replied(max(left, 0))
            except Gone:
                raise WorkerLost(any_of_them, death_of(any_of_them, name)) from None
            worker = self._ready()
            if any_of_them.released:  # by a close() from a signal handler or another thread
                raise WorkerLost(any_of_them, death_of(any_of_them, name))
            if worker is None:
                worker = self._look_around(name)
            now = time.monotonic()
            if worker is None and deadline is not None and now >= deadline:
                raise self.timeout(name, seconds)
            if now >= self._next_line:
                self._say_who_is_missing(name)
        try:
            status, payload = worker.take_reply(deadline)
        except Gone:
            raise WorkerLost(worker, death_of(worker, name)) from None
        except TimeoutError:
            raise self.timeout(name, seconds) from None
        return worker, status, payload

    def done(self, worker: WorkerHandle) -> None:
        """The reply of a worker is in its place, or will never come."""
        self.missing.pop(worker.slot, None)
        if not self.missing and self._spins_since is not None:
            self._spun = time.perf_counter() - self._spins_since

    def close(self) -> None:
        """Expect nothing more, and let go of what refers to the shared block."""
        self.missing, self._doorbell = {}, None

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

    def _ready(self) -> WorkerHandle | None:
        """A worker that has replied, if any."""
        for worker in self.missing.values():
            if worker.reply[0] == worker.sequence and (worker.has_replied(0) or worker.ring_was_lost()):
                return worker
        return None

    def _spin(self) -> bool:
        """Look for a reply for a while, where there is a CPU for it and it is likely to come soon; whether it came."""
        missing = list(self.missing.values())
        if len(missing) >= self._usable_cpus:
            return False
        now = time.perf_counter()
        if self._spins_since is None:
            self._spins_since = now
        until = self._spins_since + min(2 * self._spun, _LONGEST_SPIN)
        if self._spun > _LONGEST_SPIN:
            return False
        return spin([(worker.reply, worker.sequence) for worker in missing], until)

    def _look_around(self, name: str) -> WorkerHandle | None:
        """Free workers that are stuck in sending to others; one that has died after its reply, if any.

        Raises:
            WorkerLost: One has died without.
        """
        for worker in self.missing.values():
            worker.relieve()
            if worker.process.poll() is not None:
                # Its last reply may have come between the two looks.
                if worker.has_replied(0):
                    return worker
                raise WorkerLost(worker, death_of(worker, name))
        return None

    def _say_who_is_missing(self, name: str) -> None:
        waited = time.monotonic() - self._since
        self._next_line = self._since + 2 * waited
        _LOGGER.warning("%s has not finished after %.0f s: %s", name, waited, waiting_for(list(self.missing.values())))
