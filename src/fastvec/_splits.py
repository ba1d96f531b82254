"""``split()`` of the faces: vector environments over parts of another's environments, by the same class.

A split is a copy of the face over an engine of its own; what a face holds one of for each environment it divides.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastvec._core.engine import Engine
from fastvec._core.splits import split_engine

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SplitsBaselines", "SplitsVecEnv", "SplitsVectorEnv"]


class _Splits:
    """What the faces have in common.

    Attributes:
        num_envs: Number of environments.
        env_ids: Of a split: its environments, as the whole numbers them. Else None.
        splits: What :meth:`split` has returned; empty before.
    """

    _engine: Engine
    num_envs: int
    env_ids: Sequence[int] | None = None
    splits: Sequence[Self] = ()

    def split(self, parts: int = 2) -> list[Self]:
        """Environments of the same class, each over a part of every worker's environments, sharing the workers.

        While one of them steps, actions can be computed for another: a worker that has finished the one's step goes on
        with the other's. Each has its own seeds, timeouts and pending step, and numbers its environments from 0;
        ``env_ids`` are their numbers in the whole. Environments that were reset before go on from there. What breaks
        one breaks all; the workers end when all are closed, or the whole.

        This object stays the whole: it can be reset and stepped while nothing is pending in a split, asked and closed
        at any time.

        Args:
            parts: How many; each worker must have as many environments.

        Raises:
            ConfigError: A worker has fewer environments, or workers are to be replaced.
            CallError: A step is pending, or this object has been split before.
        """
        self._engine, engines = split_engine(self._engine, parts)
        self.splits = tuple(self._part(engine, engine.env_ids) for engine in engines)
        return list(self.splits)

    def _part(self, engine: Engine, env_ids: Sequence[int]) -> Self:
        part = copy.copy(self)
        part._engine, part.num_envs, part.env_ids, part.splits = engine, len(env_ids), tuple(env_ids), ()
        part._narrow(env_ids)
        return part

    @abstractmethod
    def _narrow(self, env_ids: Sequence[int]) -> None:
        """Reduce what there is one of for each environment to some of them."""


class SplitsVecEnv(_Splits):
    """For Stable-Baselines3's ``VecEnv``."""

    _seeds: list[int | None]
    _options: list[dict[str, Any]]
    _no_flags: bytes
    reset_infos: list[dict[str, Any]]
    action_space: Any

    def _narrow(self, env_ids: Sequence[int]) -> None:
        self._seeds = [self._seeds[i] for i in env_ids]
        self._options = [self._options[i] for i in env_ids]
        self.reset_infos = [self.reset_infos[i] for i in env_ids]
        self._no_flags = bytes(self.num_envs)
        self.action_space = copy.deepcopy(self.action_space)  # seeded by itself


class SplitsVectorEnv(_Splits):
    """For Gymnasium's ``VectorEnv``."""

    _own_ended: NDArray[np.bool_]

    @property
    def _ended(self) -> NDArray[np.bool_]:
        """Whose episode has ended and waits for its reset; of a whole its splits know."""
        for split in self.splits:
            self._own_ended[list(split.env_ids or ())] = split._own_ended
        return self._own_ended

    @_ended.setter
    def _ended(self, ended: NDArray[np.bool_]) -> None:
        self._own_ended = ended
        for split in self.splits:
            split._own_ended = ended[list(split.env_ids or ())]

    def _narrow(self, env_ids: Sequence[int]) -> None:
        self._own_ended = self._own_ended[list(env_ids)]
        self._describe()

    @abstractmethod
    def _describe(self) -> None: ...


class SplitsBaselines(_Splits):
    """For OpenAI Baselines' ``VecEnv``."""

    viewer: Any

    def _narrow(self, env_ids: Sequence[int]) -> None:
        self.viewer = None
