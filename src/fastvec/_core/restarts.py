"""How often workers may be replaced, with which seeds their environments begin again, and what is said of it."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastvec._core.config import EngineConfig
from fastvec._core.failures import reason_of
from fastvec._core.layout import ENDED
from fastvec._core.protocol import StepNews
from fastvec.errors import WorkerDiedError

__all__ = ["Restart", "Restarts"]


class Restart(NamedTuple):
    """A replacement that the next step will tell of.

    Attributes:
        info: What to put in the info of each of the worker's environments.
        news: What their reset had to say beyond the arrays.
        env_ids: Whose episodes it has cut off: of those that are reset by command meanwhile nothing is to be told.
    """

    info: dict[str, Any]
    news: StepNews
    env_ids: set[int]

    @classmethod
    def of(cls, error: BaseException, news: StepNews, env_ids: Iterable[int]) -> Restart:
        """For a worker that was lost by an error."""
        exitcode = error.exitcode if isinstance(error, WorkerDiedError) else None
        return cls({"reason": reason_of(error), "exitcode": exitcode}, news, set(env_ids))


class Restarts:
    """The replacements so far.

    Args:
        config: Says how many there may be, within how long.

    Attributes:
        limit: What to say where there were as many.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._most, self._window = config.max_restarts, config.restart_window
        self.limit = f"max_restarts={self._most} workers were replaced within restart_window={self._window:g} s already"
        self._times: collections.deque[float] = collections.deque()
        self._seeds: list[int | None] = [None] * config.num_envs
        self._counts = [0] * config.num_envs
        # As their workers count them: options of the last reset by command, and automatic ones since.
        self._options: list[Any] = [None] * config.num_envs
        self._ends = np.zeros(config.num_envs, np.int64)
        self._counts_ends = config.restart and callable(config.reset_options)

    def allow(self) -> bool:
        """Count one more; whether it is not too much."""
        now = time.monotonic()
        self._times.append(now)
        while self._times[0] < now - self._window:
            self._times.popleft()
        return len(self._times) <= self._most

    def was_reset(self, env_id: int, arguments: Mapping[str, Any]) -> None:
        """Take note of a seed that its user gave to an environment; without one it goes on with the last."""
        self._options[env_id], self._ends[env_id] = arguments.get("options"), 0
        if arguments.get("seed") is not None:
            self._seeds[env_id], self._counts[env_id] = int(arguments["seed"]), 0

    def count_ends(self, flags: bytes) -> None:
        """Take note of the episodes that a step has ended."""
        if self._counts_ends:
            self._ends += np.frombuffer(flags, np.uint8) & ENDED != 0

    def options(self, env_ids: Sequence[int]) -> list[tuple[Any, int]]:
        """For ``ResetRequest.anew``."""
        return [(self._options[env_id], int(self._ends[env_id])) for env_id in env_ids]

    def arguments(self, env_ids: Sequence[int]) -> list[Mapping[str, Any]]:
        """With what to reset environments in a new worker: a seed that follows from their last one, if they had one.

        The n-th restart since a reset with seed s gets the first word that ``SeedSequence([s, n])`` generates.
        """
        found: list[Mapping[str, Any]] = []
        for env_id in env_ids:
            self._counts[env_id] += 1
            seed = self._seeds[env_id]
            if seed is None:
                found.append({})
            else:
                words = np.random.SeedSequence([seed, self._counts[env_id]]).generate_state(1)
                found.append({"seed": int(words[0])})
        return found
