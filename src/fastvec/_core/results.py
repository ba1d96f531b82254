"""What comes out of a step: the arrays of the block copied, the news of the slices put in their places.

Both engines read their batches here, so that they cannot differ. Nothing that is handed out aliases the block,
unless observations are not to be copied.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastvec._core.infos import InfoReader
from fastvec._core.layout import BatchViews, StepFlag
from fastvec._core.protocol import NO_NEWS, StepNews
from fastvec._core.structure import EnvDescription, build

__all__ = ["BatchReader", "ResetResult", "StepResult"]

_FINAL_IN_BLOCK = StepFlag.FINAL_IN_BLOCK.value
_NONE: Mapping[int, Any] = {}


class StepResult(NamedTuple):
    """One step of all environments. Every array and dict is fresh and the caller's, observations if they are copied.

    Attributes:
        observations: Arrays ``(num_envs, *shape)`` of the declared dtypes, nested as declared. Where an episode
            has ended it is the first one of the next.
        rewards: ``(num_envs,) float64``.
        flags: One byte an environment, bits of :class:`~fastvec._core.layout.StepFlag`.
        infos: What each environment returned beside.
        finals: The last observation of each episode that has ended, by environment, as the environment gave it.
        reset_infos: Infos of the resets that followed, by environment, where they were not empty.
    """

    observations: Any
    rewards: NDArray[np.float64]
    flags: bytes
    infos: list[dict[Any, Any]]
    finals: dict[int, Any]
    reset_infos: dict[int, Any]


class ResetResult(NamedTuple):
    """A reset of some or all environments; see :class:`StepResult`. Without a reset an info is empty."""

    observations: Any
    infos: list[dict[Any, Any]]


class BatchReader:
    """Reads whole batches out of the arrays.

    Args:
        description: What the environments declare.
        views: The arrays.
        slices: The environments of each runner.
        thaw: Undoes the runners' ``freeze``.
        copy: Whether to hand out copies of the observations, or the arrays themselves.
        remember: Whether a slice may be lost, so that its last observations have to be kept.
    """

    def __init__(
        self,
        description: EnvDescription,
        views: BatchViews,
        slices: Iterable[range],
        thaw: Callable[[Any], Any],
        *,
        copy: bool = True,
        remember: bool = False,
    ) -> None:
        self._copy, self._thaw = copy, thaw
        self._tree = description.observation
        self._views = views
        self._num_envs = views.layout.num_envs
        self._codes = views.info_codes
        self._no_codes, self._no_flags = bytes(views.info_codes.nbytes), bytes(views.flags.nbytes)
        self._readers = [_SliceReader(views, env_ids, thaw) for env_ids in slices]
        self._last = [array.copy() for array in self._copied()] if remember else []

    def step(
        self, news: list[StepNews], lost: Mapping[int, dict[str, Any]] = _NONE, with_finals: bool = True
    ) -> StepResult:
        """The result of a step.

        Args:
            news: From each slice.
            lost: Slices whose runners were lost and replaced, with what to say of it in their infos. Their episodes
                were cut off, and what they have written is the reset that followed.
            with_finals: Whether observations of the next episode are shown, and the last ones beside; else the last.
        """
        for index in lost:
            self._void(self._readers[index].env_ids)
        arrays = self._copied()
        flags = self._views.flags.tobytes()
        finals: dict[int, Any] = {}
        reset_infos: dict[int, Any] = {}
        # The common case first: no infos, no ends. It is read in one look, as the caches are cold after a wait.
        if self._codes.tobytes() == self._no_codes and all(one is NO_NEWS for one in news):
            infos: list[dict[Any, Any]] = [{} for _ in range(self._num_envs)]
        else:
            infos = []
            for reader, one in zip(self._readers, news, strict=True):
                infos += reader.step(one, arrays, finals, reset_infos)
        if flags != self._no_flags:
            for index, flag in enumerate(flags):
                if flag & _FINAL_IN_BLOCK:
                    finals[index] = build(
                        self._tree, (a[index, ...].copy() for a in self._views.finals if a is not None)
                    )
        for index, info in lost.items():
            self._cut_off(self._readers[index].env_ids, info, arrays, infos, finals, with_finals=with_finals)
        self._remember(arrays)
        return StepResult(
            build(self._tree, iter(arrays)), self._views.rewards.copy(), flags, infos, finals, reset_infos
        )

    def replaced(self, index: int) -> None:
        """The runner of a slice is a new one, which announces its schemas anew."""
        self._readers[index] = _SliceReader(self._views, self._readers[index].env_ids, self._thaw)

    def _void(self, env_ids: range) -> None:
        rows = slice(env_ids.start, env_ids.stop)
        self._views.rewards[rows] = 0
        self._views.flags[rows] = StepFlag.TRUNCATED
        self._views.info_codes[rows] = 0

    def _cut_off(
        self,
        env_ids: range,
        info: dict[str, Any],
        arrays: list[NDArray[Any]],
        infos: list[dict[Any, Any]],
        finals: dict[int, Any],
        *,
        with_finals: bool,
    ) -> None:
        """Say of the environments of a slice that their episodes ended with the last observation that is known."""
        for i in env_ids:
            infos[i] = {"worker_restarted": dict(info)}
            if with_finals:
                finals[i] = build(self._tree, (copy.deepcopy(last[i]) for last in self._last))
            else:
                for array, last in zip(arrays, self._last, strict=True):
                    array[i] = last[i]

    def _remember(self, arrays: list[NDArray[Any]]) -> None:
        for last, array in zip(self._last, arrays, strict=False):
            last[...] = copy.deepcopy(array) if array.dtype == object else array

    def reset(self, news: list[StepNews]) -> ResetResult:
        """The result of a reset, from the news of each slice."""
        arrays = self._copied()
        infos: list[dict[Any, Any]] = []
        for reader, one in zip(self._readers, news, strict=True):
            infos += reader.reset(one, arrays)
        self._remember(arrays)
        return ResetResult(build(self._tree, iter(arrays)), infos)

    def learn(self, index: int, news: StepNews) -> None:
        """Take note of the schemas that the news of a slice announce, which these and later news are read with."""
        self._readers[index].learn(news)

    def _copied(self) -> list[NDArray[Any]]:
        return [
            np.empty(self._num_envs, object) if array is None else array.copy() if self._copy else array
            for array in self._views.observations
        ]


class _SliceReader:
    def __init__(self, views: BatchViews, env_ids: range, thaw: Callable[[Any], Any]) -> None:
        rows = slice(env_ids.start, env_ids.stop)
        self.env_ids, self._thaw = env_ids, thaw
        self._infos = InfoReader(views.info_codes[rows], views.info_cells[rows], thaw)
        # The last value of each leaf that travels as an object, for who is not reset when others are.
        self._objects: dict[tuple[int, int], Any] = {}

    def step(
        self, news: StepNews, arrays: list[NDArray[Any]], finals: dict[int, Any], reset_infos: dict[int, Any]
    ) -> list[dict[Any, Any]]:
        if news is NO_NEWS:
            return self._infos.read({})
        start, thaw = self.env_ids.start, self._thaw
        finals.update((start + row, thaw(frozen)) for row, frozen in news.finals.items())
        reset_infos.update((start + row, thaw(frozen)) for row, frozen in news.reset_infos.items())
        self._fill_objects(news, arrays)
        return self._infos.read(news.rests)

    def learn(self, news: StepNews) -> None:
        self._infos.learn(news.schemas)

    def reset(self, news: StepNews, arrays: list[NDArray[Any]]) -> list[dict[Any, Any]]:
        self._fill_objects(news, arrays)
        for (leaf, row), frozen in self._objects.items():
            if (leaf, row) not in news.objects:
                arrays[leaf][self.env_ids.start + row] = self._thaw(copy.deepcopy(frozen))
        infos: list[dict[Any, Any]] = [{} for _ in self.env_ids]
        for row, frozen in news.reset_infos.items():
            infos[row] = self._thaw(frozen)
        return infos

    def _fill_objects(self, news: StepNews, arrays: list[NDArray[Any]]) -> None:
        for (leaf, row), frozen in news.objects.items():
            # A copy, should thawing give the very object to a caller, who may change it. Of bytes it costs nothing.
            self._objects[leaf, row] = copy.deepcopy(frozen)
            arrays[leaf][self.env_ids.start + row] = self._thaw(frozen)
