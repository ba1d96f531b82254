"""Which of its environments a runner steps: all, but while they change hands between two workers.

A :class:`Roster` knows who is stepped, who sits out the next step, and who waits for a reset, and it
packs what an environment takes along to another worker's. It resets and steps nobody.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

from fastvec._core.building import blame
from fastvec._core.moving import (
    Parcel,
    generators_to_come,
    global_generators,
    restore_global_generators,
    take_along,
    take_over,
)
from fastvec._core.nans import NanGuard
from fastvec._core.pickles import dumps
from fastvec._core.reset_options import AutomaticOptions

__all__ = ["Roster"]


class Roster:
    """The environments of a runner.

    Args:
        envs: The environments.
        env_ids: Their rows in the arrays, contiguous.
        options: With which options they are reset.
        nans: Who looks for NaN and infinity, if anybody does.
        succeeds: Whether another worker steps them yet, and will leave them to this one.

    Attributes:
        options: With which options the environments are reset.
        stepped: What each step steps, rows and environments: without those that another worker steps yet, or already.
        held: The rows that the next step leaves out.
        ended: The rows whose episode has ended, and that the next step resets.
        retiring: Whether environments whose episode ends are left to another worker.
    """

    def __init__(
        self, envs: list[Any], env_ids: range, options: AutomaticOptions, nans: NanGuard | None, *, succeeds: bool
    ) -> None:
        self.envs, self._env_ids = envs, env_ids
        self.options, self._nans = options, nans
        self.stepped: list[tuple[int, Any]] = [] if succeeds else list(enumerate(envs))
        self.held: set[int] = set()
        self.ended: set[int] = set()
        self.retiring = False

    def step_only(self, rows: Iterable[int]) -> None:
        """Step these environments and no others."""
        self.stepped = [(row, self.envs[row]) for row in sorted(rows)]
        if self._nans is not None:
            self._nans.watch(rows)

    def hold(self, rows: Iterable[int]) -> None:
        """Leave some environments out of the next step."""
        self.held.update(rows)
        self.step_only({row for row, _ in self.stepped}.difference(rows))

    def release(self, rows: Iterable[int]) -> None:
        """Step environments again that were held."""
        rows = set(rows)
        self.held -= rows
        self.step_only({row for row, _ in self.stepped} | rows)

    def leave(self, rows: Iterable[int]) -> dict[int, bytes]:
        """Step some environments no more; what their successors need."""
        rows = list(rows)
        is_first = len(self.stepped) == len(self.envs)
        self.step_only({row for row, _ in self.stepped}.difference(rows))
        generators = global_generators() if not self.stepped else generators_to_come() if is_first else None
        left = {}
        for row in rows:
            with blame(self._env_ids[row], "moving to another worker"):
                seed = None if self._nans is None else self._nans.seeds[row]
                options, resets, ended = self.options.last[row], self.options.counts[row], row in self.ended
                left[row] = dumps(Parcel(take_along(self.envs[row]), generators, options, resets, ended, seed))
            generators = None
            self.ended.discard(row)
        return left

    def unpack(self, row: int, left: bytes) -> None:
        """Give an environment what one that another runner has left took along; it is not stepped yet."""
        parcel: Parcel = pickle.loads(left)
        take_over(self.envs[row], parcel.attributes)
        if parcel.generators is not None:
            restore_global_generators(parcel.generators)
        self.options.set(row, parcel.options, parcel.resets)
        if parcel.ended:
            self.ended.add(row)
        if self._nans is not None:
            self._nans.seeds[row] = parcel.seed

    def exchange(self, row: int, env: Any) -> None:
        """From now on have another environment in a row that is stepped."""
        self.envs[row] = env
        self.step_only({row for row, _ in self.stepped})

    def take(self, rows: Iterable[int]) -> None:
        """Step some more environments from now on."""
        self.step_only({row for row, _ in self.stepped}.union(rows))
