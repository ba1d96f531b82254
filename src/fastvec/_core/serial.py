"""The engine without processes: the same runner over plain arrays, in this process.

It is the oracle of the tests, the place to set a breakpoint, and what replaces ``DummyVecEnv``.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fastvec._core.actions import check_actions
from fastvec._core.config import EngineConfig
from fastvec._core.engine import EngineState
from fastvec._core.layout import BatchLayout, BatchViews
from fastvec._core.protocol import Adapter, EnvFailure, RemoteFailure, StepNews
from fastvec._core.results import BatchReader, ResetResult, StepResult
from fastvec._core.runner import EnvRunner, build_envs, close_envs
from fastvec.errors import BrokenError, CallError, ClosedError

__all__ = ["SerialEngine"]


class SerialEngine:
    """Environments in this process; see :class:`~fastvec._core.engine.Engine`.

    Args:
        config: Validated options; those that concern processes have no effect.
        env_fns: One factory an environment.
        adapter: What the face adds.
    """

    def __init__(self, config: EngineConfig, env_fns: Sequence[Callable[[], Any]], adapter: Adapter) -> None:
        self.num_envs = config.num_envs
        env_ids = range(self.num_envs)
        try:
            self.envs = build_envs(env_fns, env_ids, adapter)
        except EnvFailure as failure:
            raise _own(failure) from failure.error.__cause__
        try:
            self.description = adapter.describe(self.envs, env_ids)
        except BaseException:
            close_envs(self.envs)
            raise
        layout = BatchLayout.of(self.description, self.num_envs, 0)
        views = BatchViews(layout, np.zeros(layout.nbytes, np.uint8))
        self._runner = EnvRunner(
            self.envs, env_ids, self.description, views, freeze=copy.deepcopy, unsafe_casts=config.unsafe_casts
        )
        self._batch = BatchReader(self.description, views, [env_ids], lambda frozen: frozen)
        self._actions: Any = None
        self._why_broken = ""
        self.state = EngineState.IDLE

    def reset(self, seeds: Sequence[int | None], options: Sequence[Any]) -> ResetResult:
        """See :class:`~fastvec._core.engine.Engine`."""
        self._check_usable("reset()")
        self.state = EngineState.IDLE
        return self._batch.reset([self._guarded(self._runner.reset, seeds, options)])

    def send(self, actions: Any) -> None:
        """See :class:`~fastvec._core.engine.Engine`; the step itself happens in :meth:`recv`."""
        self._check_usable("step()")
        if self.state is EngineState.PENDING:
            raise CallError("a step is pending already: receive it before sending the next")
        batch = check_actions(actions, self.num_envs, self.description.action)
        # A copy, as environments may keep the action that they were given.
        self._actions = batch.objects if batch.array is None else batch.array.copy()
        self.state = EngineState.PENDING

    def recv(self, timeout: float | None = None) -> StepResult:
        """See :class:`~fastvec._core.engine.Engine`."""
        self._check_usable("step()")
        if self.state is not EngineState.PENDING:
            raise CallError("no step is pending: send one first")
        self.state = EngineState.IDLE
        news = self._guarded(self._runner.step, self._actions)
        self._batch.learn(0, news)
        return self._batch.step([news])

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        env_ids: Iterable[int],
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """See :class:`~fastvec._core.engine.Engine`."""
        self._check_usable(name)
        try:
            return self._runner.call(list(env_ids), name, function, args, dict(kwargs or {}))
        except EnvFailure as failure:
            raise _own(failure) from failure.error.__cause__

    def close(self) -> None:
        """See :class:`~fastvec._core.engine.Engine`."""
        if self.state is EngineState.CLOSED:
            return
        self.state = EngineState.CLOSED
        try:
            self._runner.close()
        except EnvFailure as failure:
            raise _own(failure) from failure.error.__cause__

    def _guarded(self, function: Callable[..., StepNews], *args: Any) -> StepNews:
        try:
            return function(*args)
        except EnvFailure as failure:
            error = _own(failure)
            if not isinstance(error, KeyboardInterrupt):
                self.state = EngineState.BROKEN
                first_line = f"{type(error).__name__}: {error}".splitlines()[0]
                self._why_broken = f"the environments ended with an error before ({first_line})"
            raise error from error.__cause__

    def _check_usable(self, what: str) -> None:
        if self.state is EngineState.BROKEN:
            raise BrokenError(f"{what} is not possible: {self._why_broken}. Call close(), and make new ones")
        if self.state is EngineState.CLOSED:
            raise ClosedError(f"{what} is not possible: the environments have been closed")


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
