"""The first NaN or infinity that an environment returns: which environment, where, when, after which action."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastvec._core.structure import Leaf, path_text
from fastvec.errors import NanError

__all__ = ["NanGuard"]


class NanGuard:
    """Looks over the rows of a slice after each reset and step, all environments in one look.

    Args:
        env_ids: The environments.
        leaves: The leaves of an observation.
        rows: One ``(k, *shape)`` array a leaf, None for leaves that travel as objects, which are not looked at.
        rewards: ``(k,) float64``.

    Attributes:
        seeds: The last seed of each row, or None, and how many episodes have begun since.
    """

    def __init__(
        self, env_ids: range, leaves: Sequence[Leaf], rows: Sequence[NDArray[Any] | None], rewards: NDArray[Any]
    ) -> None:
        self._env_ids = env_ids
        self._rewards, self._leaves = rewards, leaves
        self._looked_at = [array is not None for array in rows]
        self._parts = self._parts_of(rows)
        self._steps = np.zeros(len(rewards), np.int64)
        self._watched = np.ones(len(rewards), bool)
        self.seeds: list[tuple[Any, int]] = [(None, 0)] * len(rewards)

    def twin(self, rows: Sequence[NDArray[Any] | None]) -> NanGuard:
        """One that looks at other arrays of the same environments, and knows of them what this one does."""
        other = copy.copy(self)
        other._parts = self._parts_of(rows)
        return other

    def _parts_of(self, rows: Sequence[NDArray[Any] | None]) -> list[tuple[str, NDArray[Any]]]:
        return [
            (f"the {path_text(leaf.path)}", array)
            for leaf, array in zip(self._leaves, rows, strict=True)
            if array is not None and array.dtype.kind in "fc"
        ]

    def watch(self, rows: Iterable[int]) -> None:
        """Look at these rows only; others write the rest."""
        self._watched[:] = False
        self._watched[list(rows)] = True

    def follow(self, other: NanGuard, first: int) -> None:
        """Go on where another guard has been, with its rows from ``first`` on."""
        its = slice(first, first + len(self.seeds))
        self.seeds[:], self._steps[:] = other.seeds[its], other._steps[its]

    def after_reset(self, row: int, keywords: Mapping[str, Any]) -> None:
        """An environment was reset with keyword arguments.

        Raises:
            NanError: Its first observation is not finite.
        """
        if keywords.get("seed") is not None:
            self.seeds[row] = keywords["seed"], 1
        else:
            self._count(row)
        self.check_first(row)

    def check_first(self, row: int) -> None:
        """Look at the first observation of an episode.

        Raises:
            NanError: It is not finite.
        """
        self._steps[row] = 0
        for name, array in self._parts:
            self._check(row, name, array[row], "returned by reset()")

    def begins_anew(self, row: int) -> None:
        """The step under way has reset an environment."""
        self._steps[row] = -1
        self._count(row)

    def before_reset(self, row: int, values: Iterable[Any], action: Any) -> None:
        """An environment is going to be reset, after a step that returned an observation of these leaf values.

        Raises:
            NanError: One is not finite, or the reward is not.
        """
        when = self._when(row, action, self._steps[row] + 1)
        self._check(row, "the reward", self._rewards[row], when)
        for value, looked_at in zip(values, self._looked_at, strict=True):
            if looked_at and np.asarray(value).dtype.kind in "fc":
                self._check(row, "the last observation", value, when)

    def after_step(self) -> int | None:
        """All that are looked at were stepped: the first row that is not finite, if any."""
        self._steps += self._watched
        for array in (self._rewards, *(part for _, part in self._parts)):
            finite = np.isfinite(array)
            if not finite.all():
                wrong = self._watched & ~finite.reshape(len(finite), -1).all(axis=1)
                if wrong.any():
                    return int(np.flatnonzero(wrong)[0])
        return None

    def complain(self, row: int, action: Any) -> None:
        """Say what is wrong with a row that :meth:`after_step` has found.

        Raises:
            NanError: Always.
        """
        when = self._when(row, action, self._steps[row])
        self._check(row, "the reward", self._rewards[row], when)
        for name, array in self._parts:
            self._check(row, name, array[row], when)

    def _when(self, row: int, action: Any, step: int) -> str:
        if step == 0:
            return "returned by the automatic reset()"
        seed, episode = self.seeds[row]
        since = "without a seed" if seed is None else f"since the seed {seed}"
        return f"returned by step {step} of episode {episode} {since}, with the action {action!r}"

    def _count(self, row: int) -> None:
        seed, episodes = self.seeds[row]
        self.seeds[row] = seed, episodes + 1

    def _check(self, row: int, name: str, value: Any, when: str) -> None:
        array = np.asarray(value)
        wrong = ~np.isfinite(array)
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            place = f"[{', '.join(map(str, where))}]" if where else ""
            raise NanError(f"{name}{place} of env {self._env_ids[row]} is {array[where]}, {when}")
