"""When a worker is to be followed by a new one: after so many episodes, or so much memory.

A :class:`Recycling` counts and looks; who leaves whom, and when, is the engine's business.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence

from fastvec._core.config import AutoresetMode, EngineConfig
from fastvec._core.failures import reason_of
from fastvec._core.handle import WorkerHandle
from fastvec._core.layout import ENDED

__all__ = ["Recycling"]

_LOGGER = logging.getLogger("fastvec")

#: Seconds between two looks at the memory of the workers, each of which takes some 15 us a worker.
_INTERVAL = 0.1
#: After a successor could not be started, this many seconds until the next try.
_PAUSE = 60.0


def _resident_bytes(pid: int) -> int:
    """The memory of a process that is in RAM, shared pages included; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


class Recycling:
    """Which workers are due.

    Args:
        config: Says after how many episodes, or from how many bytes on.
        slices: The environments of each worker.
    """

    def __init__(self, config: EngineConfig, slices: Sequence[range]) -> None:
        self._most_episodes, self._most_bytes = config.max_episodes_per_worker, config.max_worker_rss
        self._by_itself = config.autoreset_mode is not AutoresetMode.DISABLED
        self._slices = slices
        self._begun = [0] * len(slices)
        self._next_look = self._not_before = 0.0
        self._warned = False

    def count_resets(self, env_ids: Iterable[int]) -> None:
        """Environments were reset on command."""
        for env_id in env_ids:
            index = next(index for index, its in enumerate(self._slices) if env_id in its)
            self._begun[index] += 1

    def count_ends(self, flags: bytes) -> None:
        """A step has ended the episodes that its flags tell of; another one begins by itself, unless none does."""
        if self._by_itself:
            for index, env_ids in enumerate(self._slices):
                self._begun[index] += sum(1 for flag in flags[env_ids.start : env_ids.stop] if flag & ENDED)

    def due(self, workers: Iterable[WorkerHandle]) -> list[WorkerHandle]:
        """Those that have begun as many episodes, or take as much memory, as one may."""
        found: list[WorkerHandle] = []
        now = time.monotonic()
        if now < self._not_before:
            return found
        look = self._most_bytes is not None and now >= self._next_look
        if look:
            self._next_look = now + _INTERVAL
        for worker in workers:
            episodes = self._begun[worker.index]
            many = self._most_episodes is not None and episodes >= self._most_episodes
            if many or (look and self._is_large(worker, episodes)):
                found.append(worker)
        return found

    def started(self, worker: WorkerHandle) -> None:
        """A worker begins anew, or another in its place."""
        self._begun[worker.index] = 0

    def failed(self, worker: WorkerHandle, error: Exception) -> None:
        """A worker's successor could not be started; the worker goes on for now."""
        self._not_before = time.monotonic() + _PAUSE
        _LOGGER.warning(
            "worker %d goes on, as another in its place could not be started: %s; the next try follows in %.0f s",
            worker.index,
            reason_of(error),
            _PAUSE,
        )

    def _is_large(self, worker: WorkerHandle, episodes: int) -> bool:
        assert self._most_bytes is not None
        now = _resident_bytes(worker.process.pid)
        if now < self._most_bytes:
            return False
        if episodes <= len(worker.env_ids) and not self._warned:
            self._warned = True
            _LOGGER.warning(
                "worker %d takes %d bytes while its environments are in their first episodes, more than "
                "max_worker_rss=%d: it is replaced as soon as they have ended",
                worker.index,
                now,
                self._most_bytes,
            )
        return True
