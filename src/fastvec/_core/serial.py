"""The engine without processes: the same runner over plain arrays, in this process.

It is the oracle of the tests, the place to set a breakpoint, and what replaces ``DummyVecEnv``.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastvec._core.building import build_envs, build_spares, close_envs
from fastvec._core.config import EngineConfig
from fastvec._core.engine import Engine
from fastvec._core.failures import EnvFailure, RemoteFailure
from fastvec._core.layout import BatchLayout, BatchViews
from fastvec._core.leases import Banks, banks_for
from fastvec._core.partial_runner import PartialRunner
from fastvec._core.protocol import Adapter, CallRequest, StepNews
from fastvec._core.reading import BatchReader
from fastvec._core.results import Part, ResetResult, SomeResult, StepResult
from fastvec._core.riders import check_riders
from fastvec._core.state import Call, CallOutcome, EngineState, Reset

__all__ = ["SerialEngine"]


class SerialEngine(Engine):
    """Environments in this process, which do what is sent when it is received.

    Args:
        config: Validated options; those that concern processes have no effect.
        env_fns: One factory an environment.
        adapter: What the face adds.
    """

    def __init__(self, config: EngineConfig, env_fns: Sequence[Callable[[], Any]], adapter: Adapter) -> None:
        super().__init__(config)
        env_ids = range(self.num_envs)
        self.envs: list[Any] = []
        try:
            self.envs = build_envs(env_fns, env_ids, adapter)
            check_riders(self.envs, env_ids, config.with_step, adapter.look_up)
            spares = build_spares(env_fns, env_ids, adapter, self.envs, config.spare_resets)
        except EnvFailure as failure:
            close_envs(self.envs)
            raise _own(failure) from failure.error.__cause__
        try:
            self.description = adapter.describe(self.envs, env_ids)
        except BaseException:
            close_envs([*self.envs, *spares])
            raise
        banks = banks_for(self.description, self.num_envs, copy=config.copy)
        layout = BatchLayout.of(self.description, self.num_envs, 0, has_riders=bool(config.with_step), banks=banks)
        views = BatchViews(layout, np.zeros(layout.nbytes, np.uint8))
        runner = PartialRunner(
            self.envs,
            env_ids,
            self.description,
            views,
            np.zeros(1, np.int64).data,
            freeze=copy.deepcopy,
            unsafe_casts=config.unsafe_casts,
            check_nan=config.check_nan,
            reset_options=config.reset_options,
            autoreset_mode=config.autoreset_mode,
            with_step=config.with_step,
            look_up=adapter.look_up,
            spares=spares,
            hand_over=adapter.hand_over,
        )
        self._run(runner, views)

    def _run(self, runner: PartialRunner, views: BatchViews) -> None:
        """Take up a runner and its arrays."""
        self.envs, self._runner, self._views = runner.envs, runner, views
        self._banks = Banks(views)
        env_ids = range(self.num_envs)
        self._batch = BatchReader(
            self.description,
            views,
            [env_ids],
            lambda frozen: frozen,
            self._banks,
            columns=self._config.info_columns,
        )
        self._request: Any = None
        self._forget_some()

    def hand_over(self) -> None:
        """Leave all environments to splits; this engine is closed then, and they are not."""
        self._runner.envs = []
        self.state, self._gone = EngineState.CLOSED, True

    def _start_reset(self, reset: Reset, deadline: float | None) -> None:
        rows = [row for row in range(self.num_envs) if reset.mask is None or reset.mask[row]]
        self._request = rows, [reset.arguments[row] for row in rows]

    def _finish_reset(self, deadline: float | None, seconds: float | None) -> ResetResult:
        news = self._guarded(self._runner.reset, *self._request, keep=len(self._request[0]) < self.num_envs)
        self._batch.learn(0, news)
        if self._config.with_step and len(self._request[0]) == self.num_envs:
            self._riders = lambda: copy.deepcopy(self._batch.riders([news]))
        return self._batch.reset([news])

    def _start_step(self, array: Any, code: int, objects: list[Any], deadline: float | None) -> None:
        # A copy, as environments may keep the action that they were given.
        self._request = objects if array is None else array.copy()

    def _finish_step(self, deadline: float | None, seconds: float | None) -> StepResult:
        news = self._guarded(self._runner.step, self._request, keep=False)
        self._batch.learn(0, news)
        if self._config.with_step:
            self._riders = lambda: copy.deepcopy(self._batch.riders([news]))
        return self._batch.step([news])

    def _start_some(self, array: Any, code: int, objects: list[Any], env_ids: Sequence[int]) -> None:
        actions = objects if array is None else list(array.copy())
        self._queue.update(zip(env_ids, actions, strict=True))

    def _finish_some(self, least: int, deadline: float | None, seconds: float | None) -> SomeResult:
        # Those that have waited longest; that they are ready is no merit of theirs.
        rows = sorted(itertools.islice(self._queue, least))
        actions = {row: self._queue.pop(row) for row in rows}
        news = self._guarded(self._runner.step_some, actions, keep=True)
        self._batch.learn(0, news)
        return self._batch.some([Part(0, rows, news)])

    def _settle_some(self) -> None:
        """They are stepped when they are received."""

    def _forget_some(self) -> None:
        self._queue: dict[int, Any] = {}

    def _start_call(self, call: Call) -> None:
        self._request = CallRequest(*call)

    def _finish_call(self, deadline: float | None, seconds: float | None) -> CallOutcome:
        try:
            return CallOutcome(self._runner.call(self._request), None)
        except EnvFailure as failure:
            error = _own(failure)
            error.__cause__ = error.__cause__ or failure.error.__cause__
            return CallOutcome([], error)

    def _close(self, grace: float | None) -> None:
        try:
            self._runner.close()
        except EnvFailure as failure:
            raise _own(failure) from failure.error.__cause__

    def _guarded(self, function: Callable[..., StepNews], *args: Any, keep: bool) -> StepNews:
        # Where Ctrl-C comes amid the environments, they can be stepped and reset again.
        self.state = EngineState.IDLE
        self._banks.advance(keep=keep)
        self._runner.use(self._banks.current)
        try:
            return function(*args)
        except EnvFailure as failure:
            error = _own(failure)
            if isinstance(error, KeyboardInterrupt):
                self._banks.keep_rows(slice(failure.env_index, None))
            else:
                self.state = EngineState.BROKEN
                first_line = f"{type(error).__name__}: {error}".splitlines()[0]
                self._why_broken = f"the environments ended with an error before ({first_line})"
            raise error from error.__cause__


def _own(failure: EnvFailure) -> BaseException:
    """What to raise: the environment's own exception with its traceback, or what takes its place."""
    error = failure.error
    if isinstance(error, KeyboardInterrupt):
        return error
    remote = RemoteFailure.of(failure, None, os.getpid())
    if remote.pickled is None and isinstance(error, (SystemExit, GeneratorExit, StopIteration)):
        return remote.exception()
    if error.__cause__ is None:
        error.__cause__ = remote.exception() if remote.pickled is None else remote.exception().__cause__
    return error
