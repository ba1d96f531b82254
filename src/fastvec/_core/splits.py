"""Engines over parts of the environments of another, which share its workers.

:func:`split_engine` divides the environments of each worker among k engines of the same kind, its *splits*, and returns
them with a :class:`~fastvec._core.joined.JoinedEngine` that takes the place of the engine it was given.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from fastvec._core.checks import check_count
from fastvec._core.config import EngineConfig
from fastvec._core.dividing import Part, divide
from fastvec._core.engine import Engine
from fastvec._core.joined import JoinedEngine
from fastvec._core.lanes import LanePool, check_divisible, divided, make_lanes
from fastvec._core.layout import BatchViews
from fastvec._core.processes import ProcessEngine
from fastvec._core.reading import BatchReader
from fastvec._core.serial import SerialEngine
from fastvec._core.state import PENDING, EngineState
from fastvec.errors import CallError, ConfigError, EnvError

__all__ = ["ProcessSplit", "SerialSplit", "Sibling", "split_engine"]


class _Family:
    """The splits of one engine.

    Attributes:
        members: All of them.
        why_broken: What has ended them; empty as long as nothing has.
    """

    def __init__(self) -> None:
        self.members: list[weakref.ref[Sibling]] = []
        self.why_broken = ""


class Sibling(Engine):
    """What the splits of one engine have in common: what ends one of them ends all.

    Attributes:
        env_ids: Its environments, as the whole numbers them.
    """

    env_ids: list[int]
    _family: _Family
    _number: int

    def _enter(self, family: _Family, number: int, env_ids: Sequence[int]) -> None:
        self._family, self._number, self.env_ids = family, number, list(env_ids)
        family.members.append(weakref.ref(self))

    def close(self, grace: float | None = None) -> None:
        """See :meth:`Engine.close`; workers end when the last split is closed."""
        self._look_at_siblings()
        super().close(grace)

    def _check_idle(self, wanted: EngineState) -> None:
        self._look_at_siblings()
        super()._check_idle(wanted)

    def _check_usable(self, what: str) -> None:
        self._look_at_siblings()
        super()._check_usable(what)

    def _finish_pending(self, timeout: float | None) -> Any:
        self._check_usable(f"{self.state.value}()")
        return super()._finish_pending(timeout)

    def _look_at_siblings(self) -> None:
        family = self._family
        for member in family.members:
            one = member()
            if one is not None and one.state is EngineState.BROKEN and not family.why_broken:
                family.why_broken = f"split {one._number} has ended them all: {one._why_broken}"
        if family.why_broken and (self.state is EngineState.IDLE or self.state in PENDING):
            self.state, self._why_broken = EngineState.BROKEN, family.why_broken


class ProcessSplit(Sibling, ProcessEngine):
    """A split whose environments are in worker processes.

    Args:
        config: Of the whole.
        pool: Its lanes.
        batch: What has read the batches of the whole.
        family: The splits.
        number: Which of them it is.
        env_ids: Its environments in the whole.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: LanePool,
        batch: BatchReader,
        family: _Family,
        number: int,
        env_ids: Sequence[int],
    ) -> None:
        # While it waits for one split, the workers are at work for the others.
        free_cpus = config.usable_cpus - config.num_workers
        super().__init__(dataclasses.replace(config, num_envs=len(env_ids), usable_cpus=free_cpus), pool)
        self._enter(family, number, env_ids)
        self._batch.follow(batch, env_ids)

    def _break(self, error: BaseException, cause: BaseException | None = None, note: str = "") -> NoReturn:
        for one in (cause or error.__cause__, error):
            if isinstance(one, EnvError) and one.env_index is not None:
                index = one.env_index
                note = f"env {index} of split {self._number} is env {self.env_ids[index]} of the whole"
                break
        super()._break(error, cause, note)


class SerialSplit(Sibling, SerialEngine):
    """A split whose environments are in this process.

    Args:
        whole: What they were in.
        rows: Which of its environments.
        family: The splits.
        number: Which of them it is.
    """

    def __init__(self, whole: SerialEngine, rows: range, family: _Family, number: int) -> None:
        Engine.__init__(self, dataclasses.replace(whole._config, num_envs=len(rows)))
        self.description = whole.description
        self._enter(family, number, rows)
        layout = dataclasses.replace(whole._views.layout, num_envs=len(rows))
        views = BatchViews(layout, np.zeros(layout.nbytes, np.uint8))
        part = Part(rows, range(len(rows)), views, np.zeros(1, np.int64).data)
        self._run(divide(whole._runner, whole._views, part), views)
        self._batch.follow(whole._batch, rows)


def split_engine(engine: Engine, parts: int) -> tuple[JoinedEngine, list[Sibling]]:
    """Divide the environments of each worker among engines that share the workers.

    Args:
        engine: Idle; of no more use afterwards.
        parts: How many engines.

    Returns:
        What takes the engine's place, and the splits.

    Raises:
        ConfigError: A worker has fewer environments than that, or workers are to be replaced.
        CallError: Something is pending, or this has been done before.
    """
    check_count("parts", parts, least=2)
    if isinstance(engine, (JoinedEngine, Sibling)):
        raise CallError(
            "these environments have been split already: keep what split() returned, or ask for more parts at once"
        )
    if engine.state in PENDING:
        raise CallError(f"split() is not possible while a {engine.state.value} is pending: receive it first")
    engine._check_usable("split()")
    if engine._config.spare_resets:
        raise ConfigError(
            "split() and spare_resets do not go together: a worker's spare environments would have to be in several "
            "splits. Leave one of the two out"
        )
    splits: list[Sibling] = []
    if isinstance(engine, ProcessEngine):
        splits += _process_splits(engine, parts)
    else:
        assert isinstance(engine, SerialEngine)
        splits += _serial_splits(engine, parts)
    return JoinedEngine(engine._config, engine.description, splits, [split.env_ids for split in splits]), splits


def _process_splits(engine: ProcessEngine, parts: int) -> list[ProcessSplit]:
    config, pool, family = engine._config, engine._pool, _Family()
    for option, given in (("on_failure='restart'", config.restart), ("the recycling of workers", config.recycles)):
        if given:
            raise ConfigError(
                f"split() and {option} do not go together: a worker that is replaced would have to be in several "
                "splits. Leave one of the two out"
            )
    check_divisible(engine._slices, parts)
    # By worker, by split; then by split, by worker.
    shares = list(zip(*(divided(env_ids, parts) for env_ids in engine._slices), strict=True))
    batch = engine._batch
    pools = make_lanes(engine, pool, shares)
    return [
        ProcessSplit(config, its, batch, family, number, list(itertools.chain(*share)))
        for number, (its, share) in enumerate(zip(pools, shares, strict=True))
    ]


def _serial_splits(engine: SerialEngine, parts: int) -> list[SerialSplit]:
    check_divisible([range(engine.num_envs)], parts)
    family = _Family()
    shares = divided(range(engine.num_envs), parts)
    splits = [SerialSplit(engine, share, family, number) for number, share in enumerate(shares)]
    engine.hand_over()
    return splits
