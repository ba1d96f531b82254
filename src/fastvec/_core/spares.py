"""Environments that are reset ahead, and take the places of those whose episodes end.

A :class:`Spares` owns the environments of a runner that serve no row at the moment. Who comes next is decided by
their order alone: at each end of an episode the first in the queue takes the place, and the one whose episode has
ended goes to the back. Each is reset exactly once between two turns, in idle time if there is some; else, when the
first one is wanted and has not been reset, all are at once, as everybody waits then anyway. So what comes out does
not depend on when there was time.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Spare", "Spares"]


class Spare:
    """An environment in the queue.

    Attributes:
        env: The environment.
        row: The row that it is named by while it is reset ahead.
        seed: For its next reset, or None.
        origin: See ``NanGuard.seeds``.
        ready: Whether it has been reset.
        result: What ``reset()`` has returned.
        error: What it has raised instead.
    """

    def __init__(self, env: Any, row: int, origin: tuple[Any, int]) -> None:
        self.env, self.row, self.origin = env, row, origin
        self.seed: int | None = None
        self.ready = False
        self.result: Any = None
        self.error: BaseException | None = None

    def reset(self) -> None:
        """Reset it; an error is kept for who wants it."""
        keywords = {} if self.seed is None else {"seed": self.seed}
        if keywords:
            self.origin = self.seed, 0
        self.result = self.error = None
        try:
            self.result = self.env.reset(**keywords)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.error = error
        self.seed, self.ready = None, True


class Spares:
    """The spare environments of a runner.

    Args:
        envs: The environments; this owns them now, and closes them.
        num_rows: How many rows they serve.
        hand_over: Called with the environment whose episode has ended and the one that takes its place.
        at: See :class:`~fastvec._core.runner.EnvRunner`.

    Attributes:
        seconds: How long a reset takes, on average.
    """

    def __init__(
        self, envs: Sequence[Any], num_rows: int, hand_over: Callable[[Any, Any], None], at: memoryview
    ) -> None:
        self._num_rows, self._hand_over, self._at = num_rows, hand_over, at
        self._queue = collections.deque(Spare(env, i % num_rows, (None, 0)) for i, env in enumerate(envs))
        self._in_use = False
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Spare]:
        """In the order of their turns."""
        return iter(self._queue)

    @property
    def want_time(self) -> bool:
        """Whether there is something to do ahead: not before the first reset by command, which may bring seeds."""
        return self._in_use and not self._are_ready()

    def _are_ready(self) -> bool:
        return all(spare.ready for spare in self._queue)

    def rows_were_reset(self, rows: Sequence[int], arguments: Sequence[Mapping[str, Any]]) -> None:
        """After a reset by command: have the spares follow from its seeds, and after one of all rows reset them.

        The spare at place j of the queue gets the first word that ``SeedSequence(s, spawn_key=(j,))`` generates, where
        s is the seed of row j, counted around.

        Args:
            rows: Those that were reset.
            arguments: With which keyword arguments.
        """
        seeds = {row: keywords.get("seed") for row, keywords in zip(rows, arguments, strict=True)}
        if self._in_use and any(seed is not None for seed in seeds.values()):
            self.prepare()  # how often each is reset must not depend on how many have been
        self._in_use = True
        for place, spare in enumerate(self._queue):
            seed = seeds.get(place % self._num_rows)
            if seed is not None:
                spare.seed = int(np.random.SeedSequence(seed, spawn_key=(place,)).generate_state(1)[0])
                spare.ready = False
        if len(rows) == self._num_rows:
            self.prepare()

    def prepare_one(self) -> None:
        """Reset the first one that has not been."""
        spare = next(spare for spare in self._queue if not spare.ready)
        before, self._at[0] = self._at[0], spare.row + 1
        started = time.perf_counter()
        spare.reset()
        took = time.perf_counter() - started
        self._at[0] = before
        self.seconds += (took - self.seconds) / 8 if self.seconds else took

    def prepare(self) -> None:
        """Reset all that have not been."""
        while not self._are_ready():
            self.prepare_one()

    def take_turn(self, ended: Any, row: int, origin: tuple[Any, int]) -> Spare:
        """The next one, in the place of an environment whose episode has ended, which goes to the back of the queue.

        Args:
            ended: That environment.
            row: Its row.
            origin: See :class:`Spare`.
        """
        self._in_use = True
        if not self._queue[0].ready:
            self.prepare()
        spare = self._queue.popleft()
        self._queue.append(Spare(ended, row, origin))
        if spare.error is not None:
            raise spare.error
        self._hand_over(ended, spare.env)
        return spare

    def change(self) -> Iterator[Spare]:
        """All of them, for something to be done to each that its next episode depends on: it is reset once more.

        Those that have not been reset are first, so that it does not matter which these are.
        """
        self.prepare()
        for spare in self._queue:
            self._at[0], spare.ready = spare.row + 1, False
            yield spare
