"""What comes out of a step: the arrays of the block copied, the news of the slices put in their places.

Both engines read their batches here, so that they cannot differ. Nothing that is handed out aliases the block but
observations that are lent.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastvec._core.infos import InfoReader, InfoSchema
from fastvec._core.layout import BatchViews, StepFlag
from fastvec._core.leases import Banks
from fastvec._core.protocol import NO_NEWS, StepNews
from fastvec._core.results import Part, ResetResult, SomeResult, StepResult
from fastvec._core.structure import EnvDescription, Leaf, build

__all__ = ["BatchReader"]

_FINAL_IN_BLOCK = StepFlag.FINAL_IN_BLOCK.value
_NONE: Mapping[int, Any] = {}


class BatchReader:
    """Reads whole batches out of the arrays.

    Args:
        description: What the environments declare.
        views: The arrays.
        slices: The environments of each runner.
        thaw: Undoes the runners' ``freeze``.
        banks: Which of the arrays have the observations, and whether to copy them.
        remember: Whether a slice may be lost, so that its last observations have to be kept.
        columns: Whether to give infos as arrays where they can be.
    """

    def __init__(
        self,
        description: EnvDescription,
        views: BatchViews,
        slices: Iterable[range],
        thaw: Callable[[Any], Any],
        banks: Banks,
        *,
        remember: bool = False,
        columns: bool = False,
    ) -> None:
        self._columns = columns
        self._banks, self._thaw = banks, thaw
        self._tree = description.observation
        self._is_leaf = isinstance(self._tree, Leaf)
        self._views = views
        self._num_envs = views.layout.num_envs
        self._codes = views.info_codes
        self._no_codes, self._no_flags = bytes(views.info_codes.nbytes), bytes(views.flags.nbytes)
        self._no_news = [NO_NEWS] * max(1, views.layout.num_workers)
        # The codes of infos that are all of one kind, and that kind; None until it is looked for.
        self._uniform: tuple[bytes, InfoSchema | None] | None = None
        # By slot; where a worker and its successor share a slice, both read their own rows of it.
        self._readers = {slot: _SliceReader(views, env_ids, thaw) for slot, env_ids in enumerate(slices)}
        self._slices = [reader.env_ids for reader in self._readers.values()]
        # The last value of each leaf that travels as an object, for who is not reset when others are.
        self._objects: dict[tuple[int, int], Any] = {}
        self._last = self._handed_out(lend=False) if remember else []

    def step(
        self, news: list[StepNews], cut_off: Mapping[int, dict[str, Any]] = _NONE, with_finals: bool = True
    ) -> StepResult:
        """The result of a step.

        Args:
            news: By slot.
            cut_off: Environments whose runners were lost and replaced, with what to say of it in their infos. What the
                arrays hold of them is the reset that followed.
            with_finals: Whether observations of the next episode are shown, and the last ones beside; else the last.
        """
        if not cut_off and news == self._no_news:
            return self._step_without_news()
        for env_id in cut_off:
            self._views.rewards[env_id] = self._views.info_codes[env_id] = 0
            self._views.flags[env_id] = StepFlag.TRUNCATED
        arrays = self._handed_out()
        flags = self._views.flags.tobytes()
        finals: dict[int, Any] = {}
        reset_infos: dict[int, Any] = {}
        infos: list[dict[Any, Any]] = [{}] * self._num_envs
        for slot, reader in self._readers.items():
            one = news[slot]
            reader.read(one, infos, finals, reset_infos)
            if one.objects:
                self._fill_objects(one, reader.env_ids, arrays)
        if len(self._readers) > len(self._slices):  # of two runners the rows come mixed
            finals, reset_infos = dict(sorted(finals.items())), dict(sorted(reset_infos.items()))
        self._read_finals(flags, finals)
        for env_id, info in cut_off.items():
            infos[env_id] = {"worker_restarted": dict(info)}
            if with_finals:
                finals[env_id] = build(self._tree, (copy.deepcopy(last[env_id]) for last in self._last))
        if not with_finals:
            self._show_last(cut_off, arrays)
            # Whoever is not reset shows it again.
            self._show_last(cut_off, self._banks.arrays)
        self._remember(arrays)
        return StepResult(
            build(self._tree, iter(arrays)), self._views.rewards.copy(), flags, infos, finals, reset_infos
        )

    def _step_without_news(self) -> StepResult:
        """The common case: all that there is to say lies in the arrays.

        It is read in few looks, as after a wait the caches are cold.
        """
        views = self._views
        arrays = self._handed_out()
        flags = views.flags.tobytes()
        finals: dict[int, Any] = {}
        if flags != self._no_flags:
            self._read_finals(flags, finals)
        self._remember(arrays)
        observations = arrays[0] if self._is_leaf else build(self._tree, iter(arrays))
        infos = self._read_infos(as_columns=self._columns and not finals)
        return StepResult(observations, views.rewards.copy(), flags, infos, finals, {})

    def _read_infos(self, *, as_columns: bool) -> list[dict[Any, Any]] | dict[Any, NDArray[Any]]:
        """All infos, where nobody has more to say of them."""
        codes = self._codes.tobytes()
        if codes == self._no_codes:
            return [{} for _ in range(self._num_envs)]
        if self._uniform is None or self._uniform[0] != codes:
            schemas = [reader.uniform() for reader in self._readers.values()]
            is_one = None not in schemas and len({schema.signature for schema in schemas if schema}) == 1
            self._uniform = codes, schemas[0] if is_one else None
        schema = self._uniform[1]
        if schema is not None:
            if as_columns and schema.has_own_dtypes:
                return schema.arrays_by_key(self._views.info_cells)
            return schema.decode(self._views.info_cells)
        infos: list[dict[Any, Any]] = [{}] * self._num_envs
        for reader in self._readers.values():
            reader.read(NO_NEWS, infos, {}, {})
        return infos

    def _read_finals(self, flags: bytes, finals: dict[int, Any]) -> None:
        for index in [index for index, flag in enumerate(flags) if flag & _FINAL_IN_BLOCK]:
            finals[index] = self._final(index)

    def some(self, parts: Sequence[Part]) -> SomeResult:
        """The result of a step of some environments."""
        finals: dict[int, Any] = {}
        reset_infos: dict[int, Any] = {}
        infos: list[dict[Any, Any]] = [{}] * self._num_envs
        objects = [np.empty(self._num_envs, object) for _ in self._banks.arrays]
        env_ids: list[int] = []
        for part in parts:
            reader = self._readers[part.slot]
            reader.rows = set(part.rows)
            reader.read(part.news, infos, finals, reset_infos)
            reader.rows = None
            self._fill_objects(part.news, reader.env_ids, objects)
            env_ids.extend(reader.env_ids[row] for row in part.rows)
        flags = self._views.flags[env_ids]
        for env_id, flag in zip(env_ids, flags.tolist(), strict=True):
            if flag & _FINAL_IN_BLOCK:
                finals[env_id] = self._final(env_id)
        arrays = (
            (values if array is None else array)[env_ids]
            for array, values in zip(self._banks.arrays, objects, strict=True)
        )
        return SomeResult(
            np.array(env_ids, np.int64),
            build(self._tree, arrays),
            self._views.rewards[env_ids],
            flags,
            [infos[env_id] for env_id in env_ids],
            {place: finals[env_id] for place, env_id in enumerate(env_ids) if env_id in finals},
            {place: reset_infos[env_id] for place, env_id in enumerate(env_ids) if env_id in reset_infos},
        )

    def _final(self, env_id: int) -> Any:
        values = [array[env_id, ...].copy() for array in self._views.finals if array is not None]
        return values[0] if self._is_leaf else build(self._tree, iter(values))

    def replaced(self, index: int, slot: int) -> None:
        """The runner of a slice is a new one, in this slot, which announces its schemas anew."""
        for other in [slot for slot, reader in self._readers.items() if reader.env_ids == self._slices[index]]:
            del self._readers[other]
        self._add_reader(index, slot)

    def succeeded(self, index: int, slot: int) -> None:
        """A slice has a second runner, in this slot, which has no environments yet."""
        for reader in self._readers.values():
            if reader.env_ids == self._slices[index]:
                reader.rows = set(range(len(reader.env_ids)))
        self._add_reader(index, slot).rows = set()

    def _add_reader(self, index: int, slot: int) -> _SliceReader:
        self._uniform = None
        reader = self._readers[slot] = _SliceReader(self._views, self._slices[index], self._thaw)
        self._readers = dict(sorted(self._readers.items(), key=lambda item: item[1].env_ids.start))
        return reader

    def moved(self, slot: int, successor: int, rows: Collection[int]) -> None:
        """From the next step on another runner of the slice has these rows of it; who has none is forgotten."""
        self._uniform = None
        before, after = self._readers[slot], self._readers[successor]
        assert before.rows is not None
        assert after.rows is not None
        before.rows -= set(rows)
        after.rows |= set(rows)
        if not before.rows:
            del self._readers[slot]
            after.rows = None

    def _show_last(self, env_ids: Iterable[int], arrays: Sequence[NDArray[Any] | None]) -> None:
        for array, last in zip(arrays, self._last, strict=False):
            if array is not None:
                for env_id in env_ids:
                    array[env_id] = copy.deepcopy(last[env_id])

    def _remember(self, arrays: list[NDArray[Any]]) -> None:
        for last, array in zip(self._last, arrays, strict=False):
            last[...] = copy.deepcopy(array) if array.dtype == object else array

    def reset(self, news: list[StepNews], cut_off: Collection[int] = ()) -> ResetResult:
        """The result of a reset.

        Args:
            news: By slot.
            cut_off: Environments that are not reset, whose runners were lost and replaced: the next step tells of it.
        """
        # The next step shows what is there of those that are cut off.
        arrays = self._handed_out(lend=not cut_off)
        infos: list[dict[Any, Any]] = [{} for _ in range(self._num_envs)]
        for slot, reader in self._readers.items():
            self._fill_objects(news[slot], reader.env_ids, arrays)
            for row, frozen in news[slot].reset_infos.items():
                infos[reader.env_ids[row]] = self._thaw(frozen)
        for (leaf, env_id), frozen in self._objects.items():
            if arrays[leaf][env_id] is None:  # not reset
                arrays[leaf][env_id] = self._thaw(copy.deepcopy(frozen))
        self._show_last(cut_off, arrays)
        self._remember(arrays)
        return ResetResult(build(self._tree, iter(arrays)), infos)

    def follow(self, other: BatchReader, env_ids: Sequence[int]) -> None:
        """Go on where another reader has been, with some of its environments."""
        places = {env_id: place for place, env_id in enumerate(env_ids)}
        self._objects = {
            (leaf, places[env_id]): value for (leaf, env_id), value in other._objects.items() if env_id in places
        }

    def learn(self, slot: int, news: StepNews) -> None:
        """Take note of the schemas that the news of a slot announce, which these and later news are read with."""
        if news.schemas or news.rider_schemas:
            self._uniform = None
            self._readers[slot].learn(news)

    def riders(self, news: list[StepNews]) -> list[dict[str, Any]]:
        """What has come along with the last step or reset, by environment: fresh at every call, until the next command.

        Args:
            news: By slot, of that step or reset.
        """
        values: list[dict[str, Any]] = [{} for _ in range(self._num_envs)]
        for slot, reader in self._readers.items():
            reader.read_riders(news[slot], values)
        return values

    def _fill_objects(self, news: StepNews, env_ids: range, arrays: list[NDArray[Any]]) -> None:
        for (leaf, row), frozen in news.objects.items():
            # A copy, should thawing give the very object to a caller, who may change it. Of bytes it costs nothing.
            self._objects[leaf, env_ids[row]] = copy.deepcopy(frozen)
            arrays[leaf][env_ids[row]] = self._thaw(frozen)

    def _handed_out(self, *, lend: bool = True) -> list[NDArray[Any]]:
        arrays = self._banks.hand_out(lend=lend)
        return [np.empty(self._num_envs, object) if array is None else array for array in arrays]


class _SliceReader:
    """Reads what one runner says of its environments: those of a slice, or some ``rows`` of it."""

    def __init__(self, views: BatchViews, env_ids: range, thaw: Callable[[Any], Any]) -> None:
        within = slice(env_ids.start, env_ids.stop)
        self.env_ids, self._thaw = env_ids, thaw
        self.rows: set[int] | None = None
        self._infos = InfoReader(views.info_codes[within], views.info_cells[within], thaw)
        self._riders = InfoReader(views.rider_codes[within], views.rider_cells[within], thaw)

    def read(
        self,
        news: StepNews,
        infos: list[dict[Any, Any]],
        finals: dict[int, Any],
        reset_infos: dict[int, Any],
    ) -> None:
        """Put what was said of a step in its places."""
        env_ids, thaw = self.env_ids, self._thaw
        if news is not NO_NEWS:
            finals.update((env_ids[row], thaw(frozen)) for row, frozen in news.finals.items())
            reset_infos.update((env_ids[row], thaw(frozen)) for row, frozen in news.reset_infos.items())
        self._place(self._infos, news.rests, infos)

    def read_riders(self, news: StepNews, values: list[dict[str, Any]]) -> None:
        """Put what has come along with a step in its places."""
        self._place(self._riders, news.riders, values)

    def _place(self, reader: InfoReader, rests: dict[int, Any], dicts: list[dict[Any, Any]]) -> None:
        env_ids = self.env_ids
        if self.rows is None:
            dicts[env_ids.start : env_ids.stop] = reader.read(rests)
            return
        for row, info in zip(sorted(self.rows), reader.read(rests, self.rows), strict=True):
            dicts[env_ids[row]] = info

    def learn(self, news: StepNews) -> None:
        self._infos.learn(news.schemas)
        self._riders.learn(news.rider_schemas)

    def uniform(self) -> InfoSchema | None:
        """The schema of all infos of the slice, if it is one."""
        return None if self.rows is not None else self._infos.uniform()
